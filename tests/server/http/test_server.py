"""The listener: who gets in, and how everything ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.server.http.cycle import RequestCycle
from sandpool.server.request.messages import Response, ServerRequest, User, WatchLine, WatchStream

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench

MakeBench = Callable[..., "Awaitable[Bench]"]


# -- who is asking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic YTpi\r\n", "Authorization: Bearer\r\n"]
)
async def test_unauthenticated_request_is_401(bench: Bench, header: str) -> None:
    wire = await bench.connect()
    wire.send(f"GET /api HTTP/1.1\r\nHost: a\r\n{header}\r\n".encode())
    answer = await wire.answer()
    assert answer.status == 401
    assert answer.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }
    assert not bench.handler.requests


async def test_unauthenticated_body_is_not_read(bench: Bench) -> None:
    wire = await bench.connect()
    wire.send(b"POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\nExpect: 100-continue\r\n\r\n")
    assert (await wire.answer()).status == 401


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version"])
async def test_health_and_version_are_public(bench: Bench, path: str) -> None:
    wire = await bench.connect()
    wire.send(f"GET {path}?verbose HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (await wire.answer()).json["user"] == "system:anonymous"
    wire.send(f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\n\r\n".encode())
    assert (await wire.answer()).status == 401, "bad credentials are worse than none"


async def test_impersonation_headers_set_the_user(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "Impersonate-User: jane", "Impersonate-Group: a,b", "Impersonate-Group: c")
    assert (await wire.answer()).json["user"] == "jane"
    assert bench.handler.requests[0].user.groups == ("a,b", "c", "system:authenticated")


async def test_impersonation_needs_permission(bench: Bench) -> None:
    wire = await bench.connect()
    wire.send(b"GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer bob-token\r\nImpersonate-User: jane\r\n\r\n")
    assert (await wire.answer()).status == 403
    assert not bench.handler.requests


async def test_audit_id_is_unique_or_that_of_the_client(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request("GET", "/x", "Audit-ID: mine-1")
    assert (await wire.answer()).headers["audit-id"] == "mine-1"
    wire.request("GET", "/x", f"Audit-ID: {'x' * 65}")
    generated = (await wire.answer()).headers["audit-id"]
    assert len(generated) == 36


# -- audit -------------------------------------------------------------------------------------------------------------


class Notes:
    def __init__(self) -> None:
        self.taken: list[tuple[RequestCycle, int, str]] = []

    def record(self, cycle: RequestCycle, status: int, problem: str, seconds: float) -> None:
        self.taken.append((cycle, status, problem))


async def test_every_request_is_recorded(make_bench: MakeBench) -> None:
    notes = Notes()
    bench = await make_bench(audit=notes)

    async def broken(request: ServerRequest) -> Response:
        raise ValueError("hunter2")

    bench.handler.routes["/broken"] = broken
    wire = await bench.connect()
    wire.request("GET", "/x")
    length = len((await wire.answer()).body)
    wire.request("GET", "/broken", "Impersonate-User: jane")
    await wire.answer()
    wire.send(b"nonsense\r\n\r\n")
    await wire.answer()
    good, bad, nonsense = notes.taken
    assert (good[0].request.path, good[0].caller.name, good[0].sent, good[1:]) == ("/x", "admin", length, (200, ""))
    assert (bad[0].caller.name, bad[0].request.user.name, bad[1]) == ("admin", "jane", 500)
    assert "hunter2" in bad[2]
    assert nonsense[1] == 400


async def test_watches_and_disconnects_are_recorded(make_bench: MakeBench) -> None:
    notes = Notes()
    bench = await make_bench(audit=notes)
    never = asyncio.Event()

    async def events() -> AsyncGenerator[list[WatchLine], None]:
        yield [WatchLine("ADDED", None, b"{}")]
        await never.wait()

    async def watch(request: ServerRequest) -> Response:
        return Response(stream=WatchStream(events(), lambda: None))

    async def slow(request: ServerRequest) -> Response:
        await never.wait()
        return Response()

    bench.handler.routes.update({"/watch": watch, "/slow": slow})
    watcher, reader = await bench.connect(), await bench.connect()
    watcher.request("GET", "/watch")
    await watcher.head()
    line = await watcher.chunk()
    reader.request("GET", "/slow")
    await bench.until(lambda: len(bench.handler.requests) == 2)
    watcher.abort()
    await bench.until(lambda: len(notes.taken) == 1)
    reader.abort()
    await bench.until(lambda: len(notes.taken) == 2)
    assert (notes.taken[0][0].sent, notes.taken[0][1]) == (len(line), 200)
    assert notes.taken[1][1] == 499


async def test_local_connection_that_nobody_waits_for_any_more_is_closed(bench: Bench) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    (await bench.server.connect(User("router"))).close()  # uvloop keeps a descriptor from the first connection on
    await bench.settle()
    before = descriptors()
    connecting = asyncio.create_task(bench.server.connect(User("router")))
    await asyncio.sleep(0)
    assert descriptors() > before
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await bench.settle()
    assert descriptors() == before


# -- the end -----------------------------------------------------------------------------------------------------------


async def stop(bench: Bench, grace: float = 10.0) -> asyncio.Task[None]:
    stopping = asyncio.create_task(bench.server.stop(grace))
    await bench.settle()
    return stopping


async def test_stop_closes_idle_connections_and_the_port(bench: Bench) -> None:
    wire = await bench.connect()
    wire.request()
    await wire.answer()
    await (await stop(bench))
    assert await wire.rest() == b""
    with pytest.raises(ConnectionError):
        await bench.connect()
    await bench.server.stop()


async def test_stop_ends_watches_cleanly(bench: Bench) -> None:
    closed: list[bool] = []
    ended = asyncio.Event()

    async def events() -> AsyncGenerator[list[WatchLine], None]:
        try:
            yield [WatchLine("ADDED", None, b"{}")]
            await ended.wait()
        finally:
            closed.append(True)

    async def watch(request: ServerRequest) -> Response:
        return Response(stream=WatchStream(events(), ended.set))

    bench.handler.routes["/watch"] = watch
    wire = await bench.connect()
    wire.request("GET", "/watch")
    await wire.head()
    await wire.chunk()
    await (await stop(bench))
    assert await wire.chunk() == b"", "the stream is complete"
    assert await wire.rest() == b""
    assert closed == [True]


async def test_stop_waits_for_requests_in_flight(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow(request: ServerRequest) -> Response:
        await gate.wait()
        return Response(object="done")

    bench.handler.routes["/slow"] = slow
    wire = await bench.connect()
    wire.request("POST", "/slow")
    await bench.until(lambda: bool(bench.handler.requests))
    stopping = await stop(bench)
    assert not stopping.done()
    gate.set()
    answer = await wire.answer()
    assert (answer.json, answer.headers["connection"]) == ("done", "close")
    await stopping


async def test_stop_starts_no_new_watch(bench: Bench) -> None:
    gate = asyncio.Event()
    began: list[bool] = []

    async def events() -> AsyncGenerator[list[WatchLine], None]:
        began.append(True)
        yield []

    async def watch(request: ServerRequest) -> Response:
        await gate.wait()
        return Response(stream=WatchStream(events(), lambda: None))

    bench.handler.routes["/watch"] = watch
    wire = await bench.connect()
    wire.request("GET", "/watch")
    await bench.until(lambda: bool(bench.handler.requests))
    stopping = await stop(bench)
    gate.set()
    assert (await wire.answer()).status == 503
    await stopping
    assert not began


@pytest.mark.parametrize("vanish", [False, True])
async def test_stop_gives_up_after_the_grace_period(bench: Bench, vanish: bool) -> None:
    outcome: list[str] = []

    async def stuck(request: ServerRequest) -> Response:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.append("cancelled")
            raise
        return Response()

    bench.handler.routes["/stuck"] = stuck
    wire = await bench.connect()
    wire.request("POST", "/stuck")
    await bench.until(lambda: bool(bench.handler.requests))
    if vanish:
        wire.abort()
        await bench.until(lambda: not bench.server._connections)
    stopping = await stop(bench, grace=10)
    bench.clock.advance(9)
    await bench.settle()
    assert not stopping.done()
    assert not outcome
    bench.clock.advance(2)
    await stopping
    assert outcome == ["cancelled"]


async def test_port_in_use_is_an_error(bench: Bench, make_bench: Callable[..., Any]) -> None:
    with pytest.raises(OSError, match="in use"):
        await make_bench(port=bench.server.port)
