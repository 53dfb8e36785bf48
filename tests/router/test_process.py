"""The data plane as a confined process, with a sandbox that is a server of the test."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from sandpool.api.kinds import POD, SANDBOX
from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import MergePatch
from sandpool.kube.user_roles import grant_role
from sandpool.router.dialer import connect
from sandpool.router.listeners import open_listeners
from sandpool.router.process import RouterProcess, read_quiet, supervised
from sandpool.router.role import ROLE_NAME, RULES
from sandpool.router.router import RouterOptions
from sandpool.router.settings import RouterSettings
from sandpool.router.targets import Target
from sandpool.router.tokens import ALL, TokenScope, TokenSigner
from sandpool.server.request.messages import User
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new, pod, pod_template
from tests.support.api_objects import owner_reference
from tests.support.sandbox_objects import pod_status

SECRET = b"a secret of thirty-two bytes or more"
ROUTER = User("router")
BOX = {"X-Sandbox-ID": "box"}


class Sandbox:
    """The server of the only sandbox. ``entered`` is set by a request for /slow, which waits for ``release``."""

    def __init__(self) -> None:
        self.port = 0
        self.dialled: list[Target] = []
        self.entered, self.release = asyncio.Event(), asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/slow":
            self.entered.set()
            await self.release.wait()
        return web.Response(text=f"{request.path} {len(await request.read())}")

    async def dial(self, target: Target, port: int) -> socket.socket:
        self.dialled.append(target)
        return await connect("127.0.0.1", self.port)


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox()
    server = web.Server(sandbox.handle)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    sandbox.port = listening.sockets[0].getsockname()[1]
    yield sandbox
    listening.close()
    await server.shutdown()


@pytest_asyncio.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """An API with a ready sandbox called box."""
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0))
    await daemon.start()
    client = daemon.server.client()
    await grant_role(client, ROUTER.name, ROLE_NAME, RULES)
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
    made = pod("box")
    made["metadata"]["ownerReferences"] = [owner_reference(box, controller=True)]
    await client.create(POD, made, "default")
    status = pod_status("Running", ready=True, ips=["10.1.0.1"])
    await client.patch(POD, "box", MergePatch({"status": status}), "default", subresource="status")
    yield daemon
    await daemon.stop(0)


@asynccontextmanager
async def routed(
    daemon: Daemon, sandbox: Sandbox, settings: RouterSettings
) -> AsyncIterator[tuple[RouterProcess, str, MetricsRegistry]]:
    metrics = MetricsRegistry()
    process = supervised(SystemClock(), Random(0))
    plane = RouterProcess(process, sandbox.dial, partial(daemon.http.connect, ROUTER), settings, metrics)
    (listening,) = await open_listeners("127.0.0.1", 0)
    with listening:
        await plane.start([listening])
        try:
            yield plane, f"http://127.0.0.1:{listening.getsockname()[1]}", metrics
        finally:
            await plane.stop(0)


async def get(url: str, headers: dict[str, str]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def test_requests_share_a_connection_that_the_parent_made(
    daemon: Daemon, sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    async with routed(daemon, sandbox, RouterSettings()) as (_, url, metrics):
        for path in ("/one", "/two"):
            assert await get(f"{url}{path}", BOX) == (200, f"{path} 0")
        async with aiohttp.ClientSession() as session, session.post(url, data=b"x" * 1_000_000, headers=BOX) as answer:
            assert await answer.text() == "/ 1000000"
        assert (await get(url, {"X-Sandbox-ID": "none"}))[0] == 404
        found = await daemon.server.client().get(POD, "box", "default")
        assert sandbox.dialled == [Target("default", "box", found["metadata"]["uid"], "")]
        text = (await metrics.render())[0].decode()
        assert 'sandbox_router_requests_total{code="200",method="GET",sandbox_namespace="default"} 2.0' in text
    assert capfd.readouterr().err == "", "no module was imported too late"


async def test_sandbox_that_refuses_is_retried_and_reported(daemon: Daemon, sandbox: Sandbox) -> None:
    settings = RouterSettings(RouterOptions(retry_delays=(0.01, 0.01)))
    async with routed(daemon, sandbox, settings) as (_, url, metrics):
        with socket.create_server(("127.0.0.1", 0)) as unused:
            sandbox.port = unused.getsockname()[1]
        status, text = await get(url, BOX)
        assert (status, len(sandbox.dialled)) == (502, 3)
        assert "Could not connect to the backend sandbox: box" in text
        shown = (await metrics.render())[0].decode()
        assert 'sandbox_router_upstream_retries_total{sandbox_namespace="default"} 2.0' in shown


async def test_clients_need_a_token_unless_their_connection_grants_the_namespace(
    daemon: Daemon, sandbox: Sandbox
) -> None:
    until = int(SystemClock().now().timestamp()) + 60
    token = {"Authorization": f"Bearer {TokenSigner(SECRET).make(TokenScope(ALL, (ALL,), until))}"}
    async with routed(daemon, sandbox, RouterSettings(token_secret=SECRET)) as (plane, url, _):
        assert (await get(url, BOX))[0] == 401
        assert (await get(url, BOX | token))[0] == 200
        for granted, status in ((ALL, 200), ("default", 200), ("team", 401), ("", 401)):
            reader, writer = await asyncio.open_connection(sock=await plane.connect_forwarded(granted))
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
            writer.close()
            await writer.wait_closed()
    for uid, status in ((os.getuid(), 200), (os.getuid() + 1, 401)):
        settings = RouterSettings(token_secret=SECRET, trusted_uids=frozenset({uid}))
        async with routed(daemon, sandbox, settings) as (_, url, _):
            assert (await get(url, BOX))[0] == status


async def test_stopping_waits_for_requests_in_service(daemon: Daemon, sandbox: Sandbox) -> None:
    async with routed(daemon, sandbox, RouterSettings()) as (plane, url, _):
        asking = asyncio.create_task(get(f"{url}/slow", BOX))
        await asyncio.wait_for(sandbox.entered.wait(), 30)
        pid = plane.process.pid
        stopping = asyncio.create_task(plane.stop(30))
        sandbox.release.set()
        assert await asyncio.wait_for(asking, 30) == (200, "/slow 0")
        await asyncio.wait_for(stopping, 30)
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert plane.process.restarts == 0


async def test_quiet_pod_loses_its_idle_connections_and_a_busy_one_is_reported(
    daemon: Daemon, sandbox: Sandbox
) -> None:
    uid = (await daemon.server.client().get(POD, "box", "default"))["metadata"]["uid"]
    async with routed(daemon, sandbox, RouterSettings()) as (plane, url, _):
        assert await plane.quiesce({uid: 0.0, "another": 1.0}) == {uid: float("inf"), "another": float("inf")}
        slow = asyncio.create_task(get(f"{url}/slow", BOX))
        await sandbox.entered.wait()
        assert await plane.quiesce({uid: 0.0}) == {uid: 0.0}
        sandbox.release.set()
        assert (await slow)[0] == 200
        (quiet,) = (await plane.quiesce({uid: 0.0})).values()
        assert 0.0 <= quiet < 60.0
        dialled = len(sandbox.dialled)
        assert (await get(url, BOX))[0] == 200
        assert len(sandbox.dialled) == dialled + 1


@pytest.mark.parametrize("answer", [b"", b"[]", b"[" * 100_000, b"x", b'{"uid": 1%s}' % (b"0" * 400)])
def test_malformed_answer_about_quiet_pods_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):
        read_quiet(answer, {"uid": 1.0})


def test_answer_about_quiet_pods_is_read_with_distrust() -> None:
    answer = b'{"uid": 3, "never asked": 9, "text": "5", "negative": -1, "none": NaN}'
    asked = dict.fromkeys(("uid", "text", "negative", "none"), 1.0)
    assert read_quiet(answer, asked) == {"uid": 3.0}
