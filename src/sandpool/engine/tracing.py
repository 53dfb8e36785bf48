"""Tracing: spans of reconciles, joined to the trace of the request that created the object.

The W3C trace context of a request travels in an annotation of the object (``api.labels.TRACE_CONTEXT``) as a JSON map
of headers, because the request has been answered long before the controllers begin to work on the object.

Tracing is off by default and needs the packages of the extra ``otel``. Off, a span is one shared object that does
nothing; a recorded span costs about 25 µs, a good part of the cost of a warm claim.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

_log = logging.getLogger(__name__)

# Attributes of spans and span events.
Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    @property
    def recording(self) -> bool:
        """Whether the span is exported; if not, callers can skip expensive attributes."""
        ...

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Add an event to the span, at the current time."""
        ...


class Tracing(Protocol):
    def span(self, name: str, parent: str = "", attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """Open a span for a ``with`` block. An exception that leaves the block is recorded in the span.

        The parent is the span of the surrounding block in this task; otherwise the one in ``parent``, the value of the
        annotation; otherwise the span begins a new trace.
        """
        ...

    def context(self) -> str:
        """The annotation value for objects created within the current span; empty without a span."""
        ...

    def close(self) -> None:
        """Export the remaining spans. It may block on the network: do not call it in the event loop."""
        ...


class _NoSpan:
    recording = False

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *error: object) -> None:
        pass


_NO_SPAN = _NoSpan()


class NoTracing:
    def span(self, name: str, parent: str = "", attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        return _NO_SPAN

    def context(self) -> str:
        return ""

    def close(self) -> None:
        pass


def open_tracing(enabled: bool, service: str) -> Tracing:
    """Open tracing. The standard variables configure the export, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
    if not enabled:
        return NoTracing()
    try:
        from sandpool.engine.tracing_otel import export

        return export(service)
    except ImportError as missing:
        _log.warning("tracing is off: %s; install it with: pip install 'sandpool[otel]'", missing)
        return NoTracing()
