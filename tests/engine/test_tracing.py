"""Disabled tracing, and how it is enabled."""

from __future__ import annotations

import sys

import pytest

from sandpool.engine.tracing import NoTracing, open_tracing


def test_disabled_tracing_records_nothing() -> None:
    tracing = open_tracing(False, "service")
    with tracing.span("ReconcileSandbox", '{"traceparent":"00-1-1-01"}', {"name": "a"}) as span:
        assert not span.recording
        span.event("ExistingPodStatusObserved", {"pod.Name": "p"})
        assert tracing.context() == ""
    tracing.close()


def test_disabled_tracing_lets_exceptions_pass() -> None:
    with pytest.raises(ValueError, match="no"), NoTracing().span("a"):
        raise ValueError("no")


def test_disabled_tracing_allocates_no_span() -> None:
    tracing = NoTracing()
    assert tracing.span("a") is tracing.span("b")


def test_missing_packages_disable_tracing_and_the_log_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "sandpool.engine.tracing_otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert isinstance(open_tracing(True, "service"), NoTracing)
    assert "pip install 'sandpool[otel]'" in caplog.text
