"""Responses that their clients do not read hold a bounded number of bytes, and the oldest of them are dropped."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack

import pytest

from sandpool.server.http import HttpLimits
from sandpool.server.http.unread import UnreadBytes, UnreadResponse
from sandpool.server.request.messages import Response, ServerRequest, WatchLine, WatchStream
from tests.server.http.conftest import Bench, ByteStream

MakeBench = Callable[..., Awaitable[Bench]]
LIMITS = HttpLimits(unread_bytes_per_user=100, unread_bytes=150, unread_superseded_bytes=1000)
#: More than a connection, with the buffers of the kernel, takes of a client that does not read.
LARGE = 8 << 20


class Responses:
    """Responses that wait, and those that were dropped."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.superseded = 0
        self.unread = UnreadBytes(limits, lambda: self.superseded)
        self.dropped: list[str] = []
        self.waiting = ExitStack()

    def wait(
        self, name: str, own: int, shared: bytes | None = None, *, user: str = "ann", holds_states: bool = False
    ) -> None:
        since = self.superseded if holds_states else None
        response = UnreadResponse(user, own, shared, since, lambda: self.dropped.append(name))
        self.waiting.enter_context(self.unread.waiting(response))


def test_response_that_waits_longest_is_dropped() -> None:
    responses = Responses()
    for name in "abcd":
        responses.wait(name, 40)
    assert responses.dropped == ["a", "b"]
    assert responses.unread.of("ann") == responses.unread.total == 80
    responses.waiting.close()
    assert responses.unread.of("ann") == responses.unread.total == 0


def test_object_that_many_watches_send_counts_once() -> None:
    responses = Responses()
    shared = b"x" * 60
    for name in "abcd":
        responses.wait(name, 10, shared)
    assert responses.dropped == []
    assert responses.unread.total == 4 * 10 + 60
    responses.wait("e", 10, b"y" * 60)
    assert responses.dropped == ["a", "b", "c", "d"]
    assert responses.unread.total == 10 + 60


def test_one_response_may_wait_however_large() -> None:
    responses = Responses()
    responses.wait("a", 1000)
    assert responses.dropped == []


def test_user_who_holds_most_gives_way_to_others() -> None:
    responses = Responses()
    for name in "ab":
        responses.wait(name, 45, user="ann")
    responses.wait("c", 50, user="bob")
    responses.wait("d", 30, user="cy")
    assert responses.dropped == ["a"]
    assert responses.unread.total == 45 + 50 + 30


def test_response_that_holds_replaced_objects_is_dropped() -> None:
    responses = Responses()
    responses.wait("list", 10, holds_states=True)
    responses.wait("watch", 10)
    responses.superseded = 1000
    responses.unread.sweep()
    assert responses.dropped == []
    responses.superseded = 1001
    responses.unread.sweep()
    assert responses.dropped == ["list"]


# -- through connections ----------------------------------------------------------------------------------------------


def large_watch(encoded: bytes) -> Callable[[ServerRequest], Awaitable[Response]]:
    """A watch that sends an object again and again."""

    async def lines() -> AsyncGenerator[list[WatchLine], None]:
        while True:
            yield [WatchLine("MODIFIED", None, encoded)]

    async def handle(request: ServerRequest) -> Response:
        return Response(stream=WatchStream(lines(), lambda: None))

    return handle


async def open_unread(bench: Bench, path: str, count: int) -> None:
    """Open connections that send a request and do not read its response."""
    for _ in range(count):
        wire: ByteStream = await bench.connect()
        wire.stop_reading()
        wire.request("GET", path)


def held(bench: Bench) -> int:
    """Bytes in the write buffers of all connections."""
    return sum(each._transport.get_write_buffer_size() for each in bench.server._connections)


def blocked(bench: Bench) -> int:
    return sum(each._writer.blocked for each in bench.server._connections)


async def test_unread_watches_of_a_large_object_share_its_bytes(make_bench: MakeBench) -> None:
    bench = await make_bench()
    encoded = b'"' + b"x" * (3 << 20) + b'"'
    bench.handler.routes["/watch"] = large_watch(encoded)
    await open_unread(bench, "/watch", 20)
    await bench.until(lambda: blocked(bench) == 20)
    await bench.settle()
    assert held(bench) <= 20 * 256 * 1024, "a watch holds its buffer and a piece, not the object"
    assert bench.server.unread.of("admin") <= 20 * 320 * 1024 + len(encoded)
    assert len(bench.server._connections) == 20, "no watch is dropped"


async def test_unread_watches_of_different_large_objects_are_dropped(make_bench: MakeBench) -> None:
    limit = 10 << 20
    bench = await make_bench(limits=HttpLimits(unread_bytes_per_user=limit))
    for number in range(10):
        bench.handler.routes[f"/watch/{number}"] = large_watch(b'"%d' % number + b"x" * (3 << 20) + b'"')
        await open_unread(bench, f"/watch/{number}", 1)
    await bench.until(lambda: blocked(bench) == len(bench.server._connections) == 3)
    assert bench.server.unread.of("admin") <= limit


@pytest.mark.parametrize("parts", [True, False], ids=["list", "object"])
async def test_unread_responses_are_dropped_beyond_the_limit(make_bench: MakeBench, parts: bool) -> None:
    async def large(request: ServerRequest) -> Response:
        data = b"x" * LARGE
        return Response(parts=[data, data]) if parts else Response(encoded=data)

    limit = 1 << 20
    bench = await make_bench(limits=HttpLimits(unread_bytes_per_user=limit))
    bench.handler.routes["/large"] = large
    await open_unread(bench, "/large", 20)
    most = 19 if parts else 1  # an object that no other response sends is held by its response
    await bench.until(lambda: 0 < blocked(bench) == len(bench.server._connections) <= most)
    assert parts is False or bench.server.unread.of("admin") <= limit


async def test_unread_list_is_dropped_when_its_objects_are_replaced(make_bench: MakeBench) -> None:
    superseded = 0

    async def large(request: ServerRequest) -> Response:
        return Response(parts=[b"x" * LARGE])

    bench = await make_bench(superseded=lambda: superseded)
    bench.handler.routes["/large"] = large
    await open_unread(bench, "/large", 1)
    await bench.until(lambda: blocked(bench) == 1)
    superseded = HttpLimits().unread_superseded_bytes
    bench.server.sweep()
    await bench.settle()
    assert blocked(bench) == 1
    superseded += 1
    bench.server.sweep()
    await bench.until(lambda: not bench.server._connections)
