"""Traces with OpenTelemetry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from sandpool.engine.tracing import open_tracing
from sandpool.engine.tracing_otel import OpenTelemetryTracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ANNOTATION = json.dumps({"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"})


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = OpenTelemetryTracing(provider)

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.tracing.close()


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent is not None else ""


def test_span_has_attributes_and_events(traced: Traced) -> None:
    with traced.tracing.span("ReconcileSandbox", attributes={"sandbox": "team/a", "attempt": 2}) as span:
        assert span.recording
        span.event("NewPodStatusObserved", {"pod.Phase": "Running"})
    made = traced.span("ReconcileSandbox")
    assert made.attributes == {"sandbox": "team/a", "attempt": 2}
    assert parent_of(made) == ""
    [event] = made.events
    assert (event.name, event.attributes) == ("NewPodStatusObserved", {"pod.Phase": "Running"})


def test_span_joins_the_trace_of_the_annotation(traced: Traced) -> None:
    with traced.tracing.span("ReconcileSandboxClaim", ANNOTATION):
        pass
    made = traced.span("ReconcileSandboxClaim")
    assert (trace_of(made), parent_of(made)) == (TRACE, SPAN)


def test_nested_span_is_a_child_of_the_outer_one(traced: Traced) -> None:
    with traced.tracing.span("outer"), traced.tracing.span("inner", ANNOTATION):
        pass
    outer, inner = traced.span("outer"), traced.span("inner")
    assert trace_of(inner) == trace_of(outer) != TRACE
    assert outer.context is not None
    assert parent_of(inner) == f"{outer.context.span_id:016x}"


def test_context_is_the_annotation_for_child_objects(traced: Traced) -> None:
    assert traced.tracing.context() == ""
    with traced.tracing.span("first", ANNOTATION):
        annotation = traced.tracing.context()
    assert json.loads(annotation)["tracestate"] == "vendor=1"
    with traced.tracing.span("second", annotation):
        pass
    first = traced.span("first").context
    assert first is not None
    assert (trace_of(traced.span("second")), parent_of(traced.span("second"))) == (TRACE, f"{first.span_id:016x}")
    assert traced.tracing.context() == ""


def test_exception_is_recorded_in_the_span_and_raised(traced: Traced) -> None:
    with pytest.raises(ValueError, match="no"), traced.tracing.span("failing"):
        raise ValueError("no")
    made = traced.span("failing")
    assert not made.status.is_ok
    assert made.events[0].name == "exception"


async def test_tasks_have_separate_spans(traced: Traced) -> None:
    async def reconcile(name: str) -> None:
        with traced.tracing.span(name):
            await asyncio.sleep(0)
            with traced.tracing.span(f"{name}-child"):
                await asyncio.sleep(0)

    await asyncio.gather(*(reconcile(name) for name in "abc"))
    for name in "abc":
        assert trace_of(traced.span(f"{name}-child")) == trace_of(traced.span(name))
    assert len({trace_of(traced.span(name)) for name in "abc"}) == 3


def test_unsampled_trace_is_propagated_as_unsampled(traced: Traced) -> None:
    tracing = OpenTelemetryTracing(TracerProvider(sampler=ALWAYS_OFF))
    with tracing.span("a") as span:
        assert not span.recording
        flags = json.loads(tracing.context())["traceparent"].rsplit("-")[-1]
        assert int(flags, 16) & 1 == 0, "what is made for it is not sampled either"


@settings(deadline=None)
@given(
    st.one_of(
        st.text(),
        st.builds(json.dumps, st.recursive(st.none() | st.text() | st.integers(), st.lists)),
        st.builds(
            json.dumps, st.dictionaries(st.sampled_from(["traceparent", "tracestate", "x"]), st.text() | st.integers())
        ),
    )
)
def test_invalid_annotation_starts_a_new_trace(annotation: str) -> None:
    traced = Traced()
    with traced.tracing.span("a", annotation):
        pass
    assert parent_of(traced.span("a")) == ""


def test_service_name_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collector listens there; closing without recorded spans must not fail."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing = open_tracing(True, "agent-sandbox-controller")
    assert isinstance(tracing, OpenTelemetryTracing)
    assert tracing.provider.resource.attributes["service.name"] == "agent-sandbox-controller"
    tracing.close()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    tracing = open_tracing(True, "agent-sandbox-controller")
    assert isinstance(tracing, OpenTelemetryTracing)
    assert tracing.provider.resource.attributes["service.name"] == "mine"
    tracing.close()
