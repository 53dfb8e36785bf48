"""What clients of the router get after a sandbox has lost its state: 410 once, unless they opt out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from aiohttp import web

from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.router.metrics import RouterMetrics
from sandpool.router.router import Router
from sandpool.router.targets import SandboxResolver, Target
from tests.router.test_targets import OWN, lost, ready_pod, saw, targets  # noqa: F401  # a fixture
from tests.support.sandbox_objects import sandbox

BOX = {"X-Sandbox-ID": "box"}
ACCEPTS = {"X-Sandbox-Accept-State-Loss": "true"}


@pytest_asyncio.fixture
async def session(targets: SandboxResolver) -> AsyncIterator[aiohttp.ClientSession]:  # noqa: F811
    """A client of a router whose sandboxes all answer with their path."""

    async def answer(request: web.BaseRequest) -> web.Response:
        assert "X-Sandbox-Accept-State-Loss" not in request.headers
        return web.Response(text=request.path)

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def dial(target: Target, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, runner.addresses[0][:2])
        return sock

    router = Router(targets, dial, SystemClock(), RouterMetrics(MetricsRegistry()))
    await router.listen("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{router.ports[0]}", headers=BOX) as session:
        yield session
    await router.stop(0)
    await runner.cleanup()


async def test_first_caller_after_a_loss_gets_410_with_the_reason_and_the_next_one_is_served(
    session: aiohttp.ClientSession,
    targets: SandboxResolver,  # noqa: F811
) -> None:
    async with session.get("/before") as answer:
        assert (answer.status, await answer.text()) == (200, "/before")
    lost(targets, "10")
    async with session.post("/first", data=b"x" * 1000) as answer:
        assert answer.status == 410
        detail = (await answer.json())["detail"]
    assert detail.startswith("Sandbox box has lost its state. Killed at 2026-01-01T00:00:00Z. (StateLost: OOMKilled")
    assert "X-Sandbox-Accept-State-Loss: true" in detail, "it says how to opt out"
    async with session.get("/second") as answer:
        assert (answer.status, await answer.text()) == (200, "/second")


async def test_caller_that_opts_out_by_the_header_is_served_and_leaves_the_news_to_others(
    session: aiohttp.ClientSession,
    targets: SandboxResolver,  # noqa: F811
) -> None:
    lost(targets, "10")
    async with session.get("/", headers=ACCEPTS) as answer:
        assert answer.status == 200
    async with session.get("/") as answer:
        assert answer.status == 410


async def test_caller_of_a_sandbox_that_was_suspended_gets_409(
    session: aiohttp.ClientSession,
    targets: SandboxResolver,  # noqa: F811
) -> None:
    box = sandbox("box", spec={"operatingMode": "Suspended"})
    box["metadata"]["resourceVersion"] = "10"
    saw(targets, box, ready_pod(box, OWN, resourceVersion="10", deletionTimestamp="2026-01-01T00:00:00Z"))
    async with session.get("/") as answer:
        assert (answer.status, await answer.json()) == (409, {"detail": "Sandbox box is suspended."})
