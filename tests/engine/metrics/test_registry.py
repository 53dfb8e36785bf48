"""MetricsRegistry as Prometheus gets them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from sandpool.api.metrics import CLAIM_CREATIONS, CLAIM_STARTUP_LATENCY, SANDBOXES, Metric
from sandpool.engine.metrics.registry import MetricsRegistry, Samples

PLAIN = Metric("plain_total", "counter", (), "No labels.")


async def series(metrics: MetricsRegistry) -> dict[str, float]:
    text, _ = await metrics.render()
    return {
        sample.name + str(sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_counter_is_exported_by_labels() -> None:
    metrics = MetricsRegistry()
    count = metrics.counter(CLAIM_CREATIONS)
    for _ in range(3):
        count.add("team", "python", "warm", "pool", "ready", "controller")
    metrics.counter(PLAIN).add(amount=2)
    text, content_type = await metrics.render()
    assert content_type.startswith("text/plain; version=")
    labels = (
        'created_by="controller",launch_type="warm",namespace="team",pod_condition="ready",'
        'sandbox_template="python",warmpool_name="pool"'
    )
    assert f"agent_sandbox_claim_creation_total{{{labels}}} 3.0\n" in text.decode()
    assert "# TYPE agent_sandbox_claim_creation_total counter\n" in text.decode()
    assert "\nplain_total 2.0\n" in text.decode()


async def test_histogram_is_exported_with_its_buckets() -> None:
    metrics = MetricsRegistry()
    distribution = metrics.histogram(CLAIM_STARTUP_LATENCY)
    for milliseconds in (20, 100, 101, 1e9):
        distribution.observe(milliseconds, "warm", "python")
    found = await series(metrics)
    name = "agent_sandbox_claim_startup_latency_ms"
    assert found[f"{name}_bucket['100', 'python', 'warm']"] == 2
    assert found[f"{name}_bucket['250', 'python', 'warm']"] == 3
    assert found[f"{name}_bucket['240000', 'python', 'warm']"] == 3
    assert found[f"{name}_bucket['+Inf', 'python', 'warm']"] == 4
    assert found[f"{name}_count['python', 'warm']"] == 4
    assert found[f"{name}_sum['python', 'warm']"] == 20 + 100 + 101 + 1e9


async def test_registering_a_metric_twice_returns_the_same_metric() -> None:
    metrics = MetricsRegistry()
    metrics.counter(PLAIN).add()
    metrics.counter(PLAIN).add()
    assert metrics.histogram(CLAIM_STARTUP_LATENCY) is metrics.histogram(CLAIM_STARTUP_LATENCY)
    assert (await series(metrics))["plain_total[]"] == 2


async def test_collected_metric_is_read_per_scrape_in_the_event_loop() -> None:
    metrics, truth = MetricsRegistry(), 1.0

    def collect() -> Samples:
        assert threading.current_thread() is threading.main_thread()
        return {("team", "True", "false", "warm", "python", "None", "controller"): truth}

    metrics.collect(SANDBOXES, collect)
    metrics.collect(SANDBOXES, lambda: {("other", "True", "false", "cold", "python", "None", "controller"): 7})
    key = "agent_sandboxes['None', 'True', 'controller', 'false', 'python', 'team', 'warm']"
    assert (await series(metrics))[key] == 1
    truth = 5.0
    assert (await series(metrics))[key] == 5
    text, _ = await metrics.render()
    assert text.decode().count("# TYPE agent_sandboxes gauge\n") == 1
    assert text.decode().count("\nagent_sandboxes{") == 2


async def test_collected_counter_has_the_type_counter() -> None:
    metrics = MetricsRegistry()
    metrics.collect(PLAIN, lambda: {(): 3})
    text, _ = await metrics.render()
    assert "# TYPE plain_total counter\nplain_total 3.0\n" in text.decode()


async def test_failing_collector_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    metrics = MetricsRegistry()

    def broken() -> Samples:
        raise ValueError("no")

    metrics.collect(PLAIN, broken)
    metrics.collect(PLAIN, lambda: {(): 3})
    assert (await series(metrics))["plain_total[]"] == 3
    assert "collecting plain_total failed" in caplog.text


async def test_openmetrics_is_served_on_request() -> None:
    metrics = MetricsRegistry()
    metrics.counter(PLAIN).add()
    metrics.histogram(CLAIM_STARTUP_LATENCY).observe(1, "warm", "python")
    text, content_type = await metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert b"plain_total 1.0\n" in text
    assert b'le="100.0"' in text, "this format is strict about numbers"


async def test_incomplete_labels_are_rejected() -> None:
    metrics = MetricsRegistry()
    with pytest.raises(ValueError, match="has the labels"):
        metrics.counter(CLAIM_CREATIONS).add("team")
    with pytest.raises(ValueError, match="has the labels"):
        metrics.histogram(CLAIM_STARTUP_LATENCY).observe(1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9)), st.lists(st.floats(0.001, 1e9), min_size=1, unique=True))
def test_histograms_agree_with_prometheus_client(values: list[float], bounds: list[float]) -> None:
    metric = Metric("h", "histogram", (), "-", tuple(sorted(bounds)))
    metrics, registry = MetricsRegistry(), CollectorRegistry()
    theirs = Histogram("h", "-", buckets=metric.buckets, registry=registry)
    metrics.histogram(metric)
    for value in values:
        metrics.histogram(metric).observe(value)
        theirs.observe(value)
    [family] = registry.collect()
    expected = [sample.value for sample in family.samples if sample.name in ("h_bucket", "h_count")]
    found = [s.value for s in metrics.histogram(metric).copy().family(True).samples if s.name != "h_sum"]
    assert found == (expected if values else [])


async def test_process_metrics_are_exported() -> None:
    found = await series(MetricsRegistry())
    assert found["process_resident_memory_bytes[]"] > 0
    assert any(name.startswith("python_gc_collections_total") for name in found)


async def test_event_loop_keeps_running_while_metrics_are_rendered() -> None:
    metrics = MetricsRegistry()
    distribution = metrics.histogram(CLAIM_STARTUP_LATENCY)
    for number in range(300):
        distribution.observe(1, "warm", f"template-{number}")
    rendering = asyncio.create_task(metrics.render())
    rounds = 0
    while not rendering.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > 3


async def test_registries_are_independent() -> None:
    one, two = MetricsRegistry(), MetricsRegistry()
    one.counter(PLAIN).add()
    two.counter(PLAIN).add(amount=4)
    assert (await series(one))["plain_total[]"] == 1
    assert (await series(two))["plain_total[]"] == 4
