"""A dashboard of the in-process world: real controllers, a simulated node, and commands that run on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
import pytest_asyncio

from sandpool.dashboard.access import login_url, one_time_code
from sandpool.dashboard.guard import SESSION_HEADER, GuardOptions
from sandpool.dashboard.server import Dashboard, DashboardOptions
from sandpool.dashboard.target import DashboardTarget
from sandpool.engine.clock import SystemClock
from sandpool.engine.health import HealthServer, metrics_page
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.testing.world import World
from tests.support import in_process_world
from tests.support.browser import Browser, Page, chromium, connected, find_chromium
from tests.support.fake_pod_client import FakePodClient

directory, pods, world = in_process_world.directory, in_process_world.pods, in_process_world.world

TOKEN = "t" * 64


class Served:
    """A dashboard that listens, and its world."""

    def __init__(self, world: World, dashboard: Dashboard) -> None:
        self.world = world
        self.dashboard = dashboard
        self.namespace = world.namespace
        self.url = f"http://127.0.0.1:{dashboard.port}"

    def login_url(self) -> str:
        return login_url(self.url, TOKEN, SystemClock())

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Visitor]:
        """A client that has logged in, and does what our pages do."""
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            code = one_time_code(TOKEN, SystemClock())
            async with session.post(
                f"{self.url}/api/login", json={"code": code}, headers={"Origin": self.url}
            ) as response:
                assert response.status == 200
            page = await (await session.get(f"{self.url}/")).text()
            yield Visitor(self.url, session, page)


class Visitor:
    """``secret`` is the second secret of the session, as a page has it."""

    def __init__(self, url: str, session: aiohttp.ClientSession, page: str) -> None:
        self.url = url
        self.session = session
        self.page = page
        self.secret = page.partition("session&quot;: &quot;")[2].partition("&quot;")[0]
        assert self.secret

    async def call(self, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded answer."""
        own = {"Origin": self.url, SESSION_HEADER: self.secret, **{k.replace("_", "-"): v for k, v in headers.items()}}
        async with self.session.request(method, self.url + path, json=content, headers=own) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> Any:
        status, answer = await self.call("GET", path)
        assert status == 200, answer
        return answer

    async def does(self, method: str, path: str, content: Any = None) -> Any:
        status, answer = await self.call(method, path, content)
        assert status == 200, answer
        return answer


class ServedMetrics(NamedTuple):
    registry: MetricsRegistry
    url: str


async def next_event(live: aiohttp.ClientResponse, name: str) -> Any:
    """The content of the next event of this name in the stream of a page."""
    while line := await live.content.readline():
        if line == b"event: %s\n" % name.encode():
            return orjson.loads((await live.content.readline()).removeprefix(b"data: "))
    raise AssertionError(f"the stream ended without an event {name}")


@pytest.fixture
def target(world: World, pods: FakePodClient) -> DashboardTarget:
    return DashboardTarget(world.client, pods, "the test")


@asynccontextmanager
async def serving(world: World, target: DashboardTarget, guard: GuardOptions | None = None) -> AsyncIterator[Served]:
    """Serve a dashboard for the length of the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    options = DashboardOptions(TOKEN, guard=guard or GuardOptions())
    dashboard = Dashboard(target, options, SystemClock(), Random(1))
    await dashboard.start([listening])
    await dashboard.board.attempted()
    try:
        yield Served(world, dashboard)
    finally:
        await dashboard.stop()
        # Transports close their sockets in the next iterations of the event loop.
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def served(world: World, target: DashboardTarget) -> AsyncIterator[Served]:
    async with serving(world, target) as made:
        yield made


@pytest_asyncio.fixture
async def read_only(world: World, target: DashboardTarget) -> AsyncIterator[Served]:
    async with serving(world, replace(target, title="look only"), GuardOptions(read_only=True)) as made:
        yield made


@pytest_asyncio.fixture
async def metrics() -> AsyncIterator[ServedMetrics]:
    """Metrics at the page that controllers have for them."""
    registry = MetricsRegistry()
    server = HealthServer("127.0.0.1:0", metrics_page(registry))
    await server.start()
    yield ServedMetrics(registry, f"http://127.0.0.1:{server.port}/metrics")
    await server.stop()


@pytest_asyncio.fixture
async def visitor(served: Served) -> AsyncIterator[Visitor]:
    async with served.client() as made:
        yield made


@pytest.fixture(scope="session")
def browser_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all tests of a worker."""
    if find_chromium() is None:
        pytest.skip("there is no chromium on this machine; as root run: apt-get install chromium")
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest_asyncio.fixture
async def browser(browser_address: str) -> AsyncIterator[Browser]:
    async with connected(browser_address) as made:
        yield made


@pytest_asyncio.fixture
async def page(browser: Browser, served: Served) -> AsyncIterator[Page]:
    """A page that has logged in. Errors that it logs fail the test."""
    page = await browser.page()
    await page.goto(served.login_url())
    await page.wait("document.querySelector('.page-header')")
    yield page
    assert page.problems == []
