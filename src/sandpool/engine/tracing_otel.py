"""Tracing with OpenTelemetry. Imported only when tracing is on, because its packages are an extra."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import orjson
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandpool import __version__
from sandpool.engine.tracing import Attributes, Span

_W3C = TraceContextTextMapPropagator()


def export(service: str) -> OpenTelemetryTracing:
    """Export spans by OTLP as configured in the environment; ``service`` is the default service name."""
    attributes = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return OpenTelemetryTracing(provider)


class OpenTelemetryTracing:
    """Uses a provider of its own: the global one belongs to the program that embeds this package."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("sandpool", __version__)

    @contextmanager
    def span(self, name: str, parent: str = "", attributes: Attributes | None = None) -> Iterator[Span]:
        context = None if trace.get_current_span().get_span_context().is_valid else _parent(parent)
        with self._tracer.start_as_current_span(name, context, attributes=attributes) as span:
            yield _Recorded(span)

    def context(self) -> str:
        headers: dict[str, str] = {}
        _W3C.inject(headers)
        return orjson.dumps(headers).decode() if headers else ""

    def close(self) -> None:
        self.provider.shutdown()


class _Recorded:
    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        self._span.add_event(name, attributes)


def _parent(annotation: str) -> Context | None:
    """Parse the annotation. Its writer is not trusted: an invalid value begins a new trace."""
    if not annotation:
        return None
    try:
        headers = orjson.loads(annotation)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(headers, dict):
        return None
    return _W3C.extract({name: value for name, value in headers.items() if isinstance(value, str)})


def _exporter() -> SpanExporter:
    """The exporter: HTTP unless gRPC is configured. The gRPC package is large and not part of the extra."""
    kind = "grpc" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else "http"
    exporter: SpanExporter = import_module(
        f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter"
    ).OTLPSpanExporter()
    return exporter
