"""The HTTP pages for probes and monitoring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from sandpool.api.metrics import Metric
from sandpool.engine.health import Checks, HealthServer, Page, PageResponse, metrics_page, parse_address
from sandpool.engine.listener import GateLimits
from sandpool.engine.metrics.registry import MetricsRegistry


class Visitor:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        async with self.session.request(method, self.url + path, headers=headers) as response:
            return response.status, await response.text()


@asynccontextmanager
async def visitor(pages: Mapping[str, Page]) -> AsyncIterator[Visitor]:
    endpoint = HealthServer("127.0.0.1:0", pages)
    await endpoint.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Visitor(session, endpoint.port)
    finally:
        await endpoint.stop()


async def test_healthz_answers_ok() -> None:
    async with visitor(Checks("healthz").pages()) as me:
        assert await me.get("/healthz") == (200, "ok")
        assert await me.get("/healthz?verbose") == (200, "healthz check passed\n")
        assert await me.get("/healthz", "HEAD") == (200, "")


async def test_readyz_reports_each_named_check(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    complaint = "the cache of pods has not been filled"
    checks = Checks("readyz", {"ping": lambda: "", "caches": lambda: complaint})
    async with visitor(checks.pages()) as me:
        failed = "[+]ping ok\n[-]caches failed: reason withheld\nreadyz check failed\n"
        for _ in range(3):
            assert await me.get("/readyz") == (500, failed)
        assert await me.get("/readyz/ping") == (200, "ok")
        assert await me.get("/readyz/caches") == (500, "[-]caches failed: reason withheld\nreadyz check failed\n")
        assert await me.get("/readyz/other") == (404, "404 page not found\n")
        assert caplog.messages == [f"readyz caches: {complaint}"]
        complaint = ""
        assert await me.get("/readyz") == (200, "ok")
        assert await me.get("/readyz?verbose=1") == (200, "[+]ping ok\n[+]caches ok\nreadyz check passed\n")
        assert caplog.messages[1:] == ["readyz caches: ok"]


async def test_check_that_raises_counts_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise KeyError("pods")

    async with visitor(Checks("readyz", {"caches": broken}).pages()) as me:
        assert (await me.get("/readyz"))[0] == 500
    assert "KeyError: 'pods'" in caplog.text


async def test_checks_can_be_added_while_serving() -> None:
    checks = Checks("readyz")
    async with visitor(checks.pages()) as me:
        assert (await me.get("/readyz"))[0] == 200
        checks.checks["lease"] = lambda: "lost"
        assert (await me.get("/readyz"))[0] == 500


async def test_metrics_page_serves_text_and_openmetrics() -> None:
    metrics = MetricsRegistry()
    metrics.counter(Metric("things_total", "counter", (), "Things.")).add()
    async with visitor(metrics_page(metrics)) as me:
        status, text = await me.get("/metrics")
        assert status == 200
        assert "\nthings_total 1.0\n" in text
        status, text = await me.get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
        assert text.endswith("# EOF\n")


async def test_one_address_serves_metrics_and_health() -> None:
    pages = {**metrics_page(MetricsRegistry()), **Checks("healthz").pages(), **Checks("readyz").pages()}
    async with visitor(pages) as me:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert (await me.get(path))[0] == 200


async def test_unknown_page_is_404_and_post_is_405() -> None:
    async with visitor(Checks("healthz").pages()) as me:
        for path in ("/", "/metrics", "/healthzz", "/healthz/a/b", "/debug/pprof"):
            assert (await me.get(path))[0] == 404
        assert (await me.get("/healthz", "POST"))[0] == 405


async def test_page_that_raises_is_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: web.BaseRequest) -> PageResponse:
        raise ValueError("no")

    async with visitor({"/broken": broken, **Checks("healthz").pages()}) as me:
        assert (await me.get("/broken"))[0] == 500
        assert (await me.get("/healthz"))[0] == 200
    assert "/broken failed" in caplog.text


async def test_stop_waits_for_a_response_under_way() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> PageResponse:
        entered.set()
        await leave.wait()
        return PageResponse(b"done")

    endpoint = HealthServer("127.0.0.1:0", {"/slow": slow})
    await endpoint.start()
    async with aiohttp.ClientSession() as session:
        me = Visitor(session, endpoint.port)
        asking = asyncio.create_task(me.get("/slow"))
        await entered.wait()
        stopping = asyncio.create_task(endpoint.stop(30))
        leave.set()
        assert await asking == (200, "done")
        await stopping
        with pytest.raises(aiohttp.ClientConnectorError):
            await me.get("/slow")


async def test_stop_does_not_wait_for_ever() -> None:
    entered = asyncio.Event()

    async def stuck(request: web.BaseRequest) -> PageResponse:
        entered.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    endpoint = HealthServer("127.0.0.1:0", {"/stuck": stuck})
    await endpoint.start()
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(Visitor(session, endpoint.port).get("/stuck"))
        await entered.wait()
        async with asyncio.timeout(10):
            await endpoint.stop(0.01)
        with pytest.raises(aiohttp.ClientError):
            await asking


async def test_port_in_use_is_reported() -> None:
    one = HealthServer("127.0.0.1:0", {})
    await one.start()
    with pytest.raises(OSError, match="in use"):
        await HealthServer(f"127.0.0.1:{one.port}", {}).start()
    await one.stop()


async def test_address_0_serves_nothing() -> None:
    endpoint = HealthServer("0", {})
    await endpoint.start()
    assert endpoint.port == 0
    await endpoint.stop()


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        (":8080", (None, 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8081", ("::1", 8081)),
        ("localhost:65535", ("localhost", 65535)),
        ("0", None),
    ],
)
def test_address_is_parsed(address: str, parsed: tuple[str | None, int] | None) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", "8080", "localhost", ":", ":x", ":65536", "::1:8080", "[::1]", "a:-1"])
def test_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(address)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("a.localhost", 200)),
        *(("evil.example", 421), ("127.0.0.1.evil.example", 421), ("10.0.0.1", 421), ("[", 421)),
    ],
)
async def test_web_page_cannot_read_pages_of_its_machine_under_its_own_name(host: str, status: int) -> None:
    async with visitor(Checks("healthz").pages()) as me:
        assert (await me.get("/healthz", Host=host))[0] == status


async def test_address_of_other_machines_has_any_name() -> None:
    """Monitors in a cluster know pods and services by names of their own."""
    server = HealthServer("0.0.0.0:0", Checks("healthz").pages())
    await server.start()
    async with aiohttp.ClientSession() as session:
        assert await Visitor(session, server.port).get("/healthz", Host="controller.sandpool") == (200, "ok")
    await server.stop()


async def test_idle_connections_make_room_for_a_monitor() -> None:
    limits = GateLimits(connections=4, per_address=4, strangers=4, strangers_per_address=4)
    server = HealthServer("127.0.0.1:0", Checks("healthz").pages(), limits)
    await server.start()
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    async with aiohttp.ClientSession() as session:
        assert await Visitor(session, server.port).get("/healthz") == (200, "ok")
    async with asyncio.timeout(30):
        assert await idle[0][0].read() == b"", "the oldest one was closed"
    for _, writer in idle:
        writer.close()
    await server.stop()


async def test_endless_head_is_refused() -> None:
    server = HealthServer("127.0.0.1:0", Checks("healthz").pages())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
    async with asyncio.timeout(30):
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    writer.close()
    await server.stop()
