"""Traces: which pass over which object took how long, joined to the trace of whoever asked for the object.

The W3C trace context of a request travels in an annotation of the object (``api.labels.TRACE_CONTEXT``), as a JSON map
of headers, because the request itself is long answered when controllers begin to work for it.

Tracing is off unless asked for, and then needs the packages of the extra ``otel``. Off, a span is one shared object
that does nothing; a recorded one costs some 25 µs, a good part of what a warm claim costs altogether.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

_log = logging.getLogger(__name__)

# What attributes of spans and their events may be.
Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    @property
    def recording(self) -> bool:
        """Whether anybody will see it; if not, nothing expensive need be found out for it."""
        ...

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something happened at this moment of the span."""
        ...


class Tracing(Protocol):
    def span(self, name: str, parent: str = "", attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """A span for the length of a ``with`` block; an exception that leaves the block is recorded in it.

        Its parent is the span whose block surrounds it, in this task; or else the one an annotation's value speaks of;
        or else it begins a trace.
        """
        ...

    def context(self) -> str:
        """The annotation's value for objects made on behalf of the current span; empty if there is none."""
        ...

    def close(self) -> None:
        """Send what has not been sent. May wait for the network: not for the event loop."""
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
    """Tracing as asked for. Where spans go is said by the usual variables, ``OTEL_EXPORTER_OTLP_ENDPOINT`` first."""
    if not enabled:
        return NoTracing()
    try:
        from sandpool.engine.tracing_otel import export

        return export(service)
    except ImportError as missing:
        _log.warning("there will be no traces: %s; pip install 'sandpool[otel]' brings what is needed", missing)
        return NoTracing()
