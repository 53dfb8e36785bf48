"""Numbers of the controllers, from the metrics page."""

from __future__ import annotations

from sandpool.api.metrics import CLAIM_CREATIONS
from sandpool.dashboard.controller_metrics import ControllerMetrics, parse, summary
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.transports import REQUESTS
from sandpool.engine.workqueue.metrics import QUEUE_DEPTH


async def test_writes_conflicts_throttling_and_queues_are_summed() -> None:
    metrics = MetricsRegistry()
    requests = metrics.counter(REQUESTS)
    counts = {("200", "GET"): 9, ("200", "PATCH"): 4, ("201", "POST"): 3, ("409", "PATCH"): 2, ("429", "GET"): 1}
    counts[("409", "POST")] = 5  # the name is taken, which is no conflict
    for (code, method), count in counts.items():
        requests.add(code, method, "host", amount=count)
    waiting: dict[tuple[str, ...], float] = {
        ("a", "claims", "0"): 2.0,
        ("a", "claims", "100"): 3.0,
        ("b", "pools", "0"): 1.0,
    }
    metrics.collect(QUEUE_DEPTH, lambda: waiting)
    metrics.counter(CLAIM_CREATIONS).add("ns", "t", "warm", "p", "ready", "x", amount=5)
    page, _ = await metrics.render("")
    assert summary(page.decode()) == {
        "writes": 14.0,
        "conflicts": 2.0,
        "throttled": 1.0,
        "claims": 5.0,
        "depth": {"claims": 5.0, "pools": 1.0},
    }


def test_nonsense_is_no_series() -> None:
    page = 'a{b="c\\"d",e="f"} 1\n# HELP a\nbroken{ 1\n\nname 2e3\nother NaN\n{x="y"} 1\nname\n'
    found = [(each.name, each.labels) for each in parse(page)]
    assert found == [("a", {"b": 'c\\"d', "e": "f"}), ("name", {}), ("other", {})]


async def test_a_page_that_does_not_answer_leaves_nothing() -> None:
    metrics = ControllerMetrics("http://127.0.0.1:9/metrics")
    await metrics.refresh()
    assert metrics.latest is None
    await metrics.close()
    unknown = ControllerMetrics(None)
    await unknown.refresh()
    assert unknown.latest is None
