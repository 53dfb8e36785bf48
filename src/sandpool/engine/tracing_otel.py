"""Traces with OpenTelemetry. Only imported when tracing is on, because its packages are an extra."""

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
    """Send spans by OTLP to where the environment says, under this name unless the environment has another."""
    attributes = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return OpenTelemetryTracing(provider)


class OpenTelemetryTracing:
    """The provider is not made that of the whole process, which belongs to whoever embeds us."""

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
    """Whoever may write an object may write anything into the annotation; what makes no sense begins a new trace."""
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
    """HTTP unless gRPC is asked for, whose package is large and not part of the extra."""
    kind = "grpc" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" else "http"
    exporter: SpanExporter = import_module(
        f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter"
    ).OTLPSpanExporter()
    return exporter
