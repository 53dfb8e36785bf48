"""What the router says about a pod that is about to sleep: since when it serves no request, and no idle connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sandpool.router.dialer import connect
from sandpool.router.targets import Target
from sandpool.router.upstream import Upstream, UpstreamPool
from sandpool.testing.clock import ManualClock

BOX = Target("default", "box", "uid-1", "10.1.0.1")
OTHER = Target("default", "other", "uid-2", "10.1.0.2")


class Sandbox:
    """Accepts connections and counts those that are open."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted = 0
        self.closed = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        with suppress(ConnectionError):
            await reader.read()
        self.closed.set()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def dial(self, target: Target, port: int) -> socket.socket:
        return await connect("127.0.0.1", self.port)


@asynccontextmanager
async def pool() -> AsyncIterator[tuple[UpstreamPool, Sandbox, ManualClock]]:
    sandbox, clock = Sandbox(), ManualClock()
    server = await asyncio.start_server(sandbox.accept, "127.0.0.1", 0)
    sandbox.port = server.sockets[0].getsockname()[1]
    upstreams = UpstreamPool(sandbox.dial, clock)
    yield upstreams, sandbox, clock
    upstreams.close()
    await asyncio.gather(*sandbox.serving)
    server.close()
    await server.wait_closed()


async def serve_one(upstreams: UpstreamPool, target: Target = BOX) -> Upstream:
    upstream = await upstreams.acquire(target, 80, repeatable=True)
    upstream.in_service = True
    return upstream


async def test_pod_without_requests_is_quiet_for_ever() -> None:
    async with pool() as (upstreams, _, _clock):
        assert upstreams.quiesce("uid-1", 10.0) == float("inf")


async def test_pod_is_in_use_from_the_connection_to_the_end_of_the_request() -> None:
    async with pool() as (upstreams, _, clock):
        upstream = await serve_one(upstreams)
        await clock.advance(100)
        assert upstreams.quiesce("uid-1", 10.0) == 0.0
        assert upstreams.quiesce("uid-2", 10.0) == float("inf")
        upstreams.release(upstream)
        await clock.advance(7)
        assert upstreams.quiesce("uid-1", 10.0) == 7.0


async def test_pod_is_in_use_while_a_connection_is_being_made() -> None:
    async with pool() as (upstreams, sandbox, _):
        dialling, go_on = asyncio.Event(), asyncio.Event()
        dial = sandbox.dial

        async def slow(target: Target, port: int) -> socket.socket:
            dialling.set()
            await go_on.wait()
            return await dial(target, port)

        upstreams.dial = slow
        acquiring = asyncio.create_task(upstreams.acquire(BOX, 80, repeatable=True))
        await dialling.wait()
        assert upstreams.quiesce("uid-1", 0.0) == 0.0
        go_on.set()
        upstreams.release(await acquiring)


async def test_idle_connections_are_kept_until_the_pod_is_quiet_for_long_enough() -> None:
    async with pool() as (upstreams, sandbox, clock):
        upstreams.release(await serve_one(upstreams))
        await clock.advance(9)
        assert upstreams.quiesce("uid-1", 10.0) == 9.0
        again = upstreams.acquire_idle(BOX, 80, repeatable=True)
        assert again is not None
        upstreams.release(again)
        await clock.advance(10)
        assert upstreams.quiesce("uid-1", 10.0) == 10.0
        assert upstreams.acquire_idle(BOX, 80, repeatable=True) is None, "the next request makes a new connection"
        await sandbox.closed.wait()
        assert upstreams.quiesce("uid-1", 10.0) == 10.0, "closing them is no use of the pod"


async def test_request_that_is_cut_off_is_use_until_then() -> None:
    async with pool() as (upstreams, sandbox, clock):
        upstream = await serve_one(upstreams)
        await clock.advance(50)
        upstream.close()
        await sandbox.closed.wait()
        await clock.settle()
        await clock.advance(3)
        assert upstreams.quiesce("uid-1", 10.0) == 3.0


async def test_pod_that_is_gone_is_forgotten() -> None:
    async with pool() as (upstreams, _, clock):
        upstreams.release(await serve_one(upstreams))
        await clock.advance(5)
        assert upstreams.quiesce("uid-1", 5.0) == 5.0
        upstreams.forget("uid-1")
        await clock.settle()
        assert upstreams.quiesce("uid-1", 5.0) == float("inf")
