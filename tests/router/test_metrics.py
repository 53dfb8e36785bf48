"""Metrics of a router: names and labels of the Go router, durations, and a router in another process."""

from __future__ import annotations

import asyncio
import math

import aiohttp
import pytest
from aiohttp import web

from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.metrics.controller import export_build_info
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.http1 import MalformedMessage
from sandpool.router.metrics import BUILD_INFO, DURATION, REQUESTS, RouterMetrics
from sandpool.router.router import Router, RouterOptions
from sandpool.testing.clock import ManualClock
from sandpool.testing.waiting import until
from tests.router.test_router import BOX, Sandbox
from tests.router.test_router import sandbox as sandbox
from tests.support.exposition import exported

_NAMESPACE = "sandbox_namespace"
_REQUEST = ("method", "code", _NAMESPACE)
# Names, kinds and labels of the Go router.
RECORDED: list[tuple[str, str, tuple[str, ...]]] = [
    ("sandbox_router_requests_total", "counter", _REQUEST),
    ("sandbox_router_request_duration_seconds", "histogram", _REQUEST),
    ("sandbox_router_inflight_requests", "gauge", ()),
    ("sandbox_router_upstream_errors_total", "counter", (_NAMESPACE, "reason")),
    ("sandbox_router_upstream_retries_total", "counter", (_NAMESPACE,)),
    ("sandbox_router_authz_decisions_total", "counter", (_NAMESPACE, "decision")),
    (
        "sandbox_router_build_info",
        "gauge",
        ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
    ),
]
# Metrics of the Go router about what does not exist here: addresses that may be out of date, and certificates that are
# read again.
ABSENT = {"sandbox_router_cache_invalidations_total", "sandbox_router_cert_reloads_total"}
BUCKETS = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180}


class Routed:
    """A router that listens, a client of it, and its metrics."""

    def __init__(self, sandbox: Sandbox, clock: Clock) -> None:
        self.metrics = MetricsRegistry()
        options = RouterOptions(retry_delays=(0.0,))
        self.router = Router(sandbox, sandbox.dial, clock, RouterMetrics(self.metrics), options=options)

    async def __aenter__(self) -> Routed:
        await self.router.listen("127.0.0.1", 0)
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{self.router.ports[0]}", headers=BOX)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.router.stop(0)

    async def get(self, path: str = "/", **headers: str) -> int:
        named = {f"X-Sandbox-{key}": value for key, value in headers.items()}
        async with self.session.get(path, headers=named) as answer:
            await answer.read()
            return answer.status


async def test_metrics_have_the_names_and_labels_of_the_go_router(sandbox: Sandbox) -> None:
    async with Routed(sandbox, SystemClock()) as routed:
        export_build_info(routed.metrics, BUILD_INFO)
        assert [await routed.get(), await routed.get(Port="9"), await routed.get(ID="none")] == [200, 502, 404]
        found = exported((await routed.metrics.render())[0].decode())
    shown = {name: (each.kind, each.labels) for name, each in found.items() if name.startswith("sandbox_router_")}
    assert shown == {name: (kind, frozenset(labels)) for name, kind, labels in RECORDED}
    assert not ABSENT & set(found)
    assert set(found[DURATION.name].buckets) - BUCKETS == {0.001, 0.0025, math.inf}
    namespaces = {name: found[name].values[_NAMESPACE] for name, _, labels in RECORDED if _NAMESPACE in labels}
    assert namespaces == {
        "sandbox_router_requests_total": {"default", "-"},
        "sandbox_router_request_duration_seconds": {"default", "-"},
        "sandbox_router_upstream_errors_total": {"default"},
        "sandbox_router_upstream_retries_total": {"default"},
        "sandbox_router_authz_decisions_total": {"default", "-"},
    }
    assert found["sandbox_router_upstream_errors_total"].values["reason"] == {"dial"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(), "dial"),
        (TimeoutError(), "timeout"),
        (EOFError(), "eof"),
        (MalformedMessage("not HTTP"), "malformed"),
        (Exception(), "other"),
    ],
)
async def test_upstream_errors_have_a_reason(error: Exception, reason: str) -> None:
    metrics = MetricsRegistry()
    RouterMetrics(metrics).failed(error, "team")
    shown = f'sandbox_router_upstream_errors_total{{reason="{reason}",sandbox_namespace="team"}} 1.0'
    assert shown in await text(metrics)


async def test_unknown_methods_are_one_series() -> None:
    metrics = MetricsRegistry()
    router = RouterMetrics(metrics)
    for method in (b"GET", b"BREW", b"WHEN"):
        router.answered(method, 200, 0.002, "team")
    values = exported((await metrics.render())[0].decode())["sandbox_router_requests_total"].values
    assert values["method"] == {"GET", "other"}


async def test_duration_ends_with_the_response(sandbox: Sandbox) -> None:
    """The sandbox takes three seconds until its head, and two more until its end."""
    clock = ManualClock()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        await clock.advance(3)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begin")
        await clock.advance(2)
        await response.write_eof(b"end")
        return response

    sandbox.answer = slow
    async with Routed(sandbox, clock) as routed:
        assert await routed.get() == 200
        ((labels, (counts, total)),) = routed.metrics.histogram(DURATION).series.items()
    assert (labels, sum(counts)) == (("GET", "200", "default"), 1)
    assert total == pytest.approx(5.0)


@pytest.mark.parametrize("ends", ["answered", "given up", "rejected"])
async def test_request_is_in_flight_until_it_ends(sandbox: Sandbox, ends: str) -> None:
    released = asyncio.Event()

    async def wait(request: web.BaseRequest) -> web.StreamResponse:
        await released.wait()
        return web.Response(text="done")

    sandbox.answer = wait
    async with Routed(sandbox, SystemClock()) as routed:
        metrics = routed.router.metrics

        async def inflight() -> float:
            return metrics.inflight

        asking = asyncio.create_task(routed.get())
        await until(inflight)
        if ends == "rejected":
            assert await routed.get(ID="none") == 404
        assert "sandbox_router_inflight_requests 1.0" in await text(routed.metrics)
        if ends == "given up":
            asking.cancel()
        else:
            released.set()
        await asyncio.gather(asking, return_exceptions=True)

        async def is_idle() -> bool:
            return metrics.inflight == 0

        await until(is_idle)
        released.set()
        assert "sandbox_router_inflight_requests 0.0" in await text(routed.metrics)
        answers = {
            "answered": {("GET", "200", "default")},
            "rejected": {("GET", "200", "default"), ("GET", "404", "-")},
        }
        assert routed.metrics.counter(REQUESTS).values.keys() == answers.get(ends, set())


async def text(metrics: MetricsRegistry) -> set[str]:
    body, _ = await metrics.render()
    return {line for line in body.decode().splitlines() if line.startswith("sandbox_router")}


async def test_values_of_another_process_replace_those_of_the_last_time() -> None:
    here, there = MetricsRegistry(), MetricsRegistry()
    shown, made = RouterMetrics(here), RouterMetrics(there)
    made.answered(b"GET", 200, 0.002, "team")
    made.retried("team")
    made.decided(True, "team")
    made.decided(False)
    made.failed(TimeoutError(), "team")
    made.inflight = 3
    shown.load(made.dump())
    made.answered(b"GET", 200, 0.2, "team")
    shown.load(made.dump())
    assert await text(here) == await text(there)
    assert 'sandbox_router_requests_total{code="200",method="GET",sandbox_namespace="team"} 2.0' in await text(here)


@pytest.mark.parametrize(
    "dump",
    [
        b"",
        b"[]",
        b"{}",
        b'{"counters": {}, "durations": [[["GET", "200", "team"], [1], 0.5]]}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET"], 1]]}, "durations": []}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET", "200", ""], -1]]}, "durations": []}',
        b'{"counters": {"sandbox_router_requests_total": [[["GET", "200", ""], "1"]]}, "durations": []}',
        b'{"counters": {}, "durations": [], "inflight": -1}',
        b'{"counters": {"x": [%s]}, "durations": []}' % b",".join([b"[[],1]"] * 20_001),
    ],
    ids=["empty", "list", "incomplete", "buckets", "labels", "negative", "text", "inflight", "many"],
)
async def test_malformed_dump_is_refused(dump: bytes) -> None:
    metrics = MetricsRegistry()
    router = RouterMetrics(metrics)
    router.retried("team")
    before = await text(metrics)
    with pytest.raises(ValueError, match="router"):
        router.load(dump)
    assert await text(metrics) == before
