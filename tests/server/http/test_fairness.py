"""Limits per user, and fair shares of the event loop between users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from sandpool.kube.errors import TooManyRequests
from sandpool.server.http import HttpLimits
from sandpool.server.http.fairness import LONG, LONGEST_PAUSE, PAUSE, SHARED_SLICE, SLICE, FairQueue, Flow
from sandpool.server.request.messages import Response, ServerRequest, WatchLine, WatchStream

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench, ByteStream

MakeBench = Callable[..., "Awaitable[Bench]"]


class Time:
    """The clock and the CPU of a queue; work advances both."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds


class Rig:
    def __init__(self, **limits: int) -> None:
        self.time = Time()
        self.queue = FairQueue(HttpLimits(**limits), lambda: self.time.now, lambda: self.time.cpu)
        self.order: list[str] = []
        self.turn = 0
        self.connections = 1  # of every user
        self.by_turn: dict[int, list[str]] = {}

    async def request(self, user: str, seconds: float, gate: asyncio.Event | None = None) -> None:
        """Serve one request as a connection does."""
        flow = self.queue.flow(user)
        flow.connections = self.connections
        if self.queue.must_wait(flow):
            await self.queue.wait(flow)
        else:
            flow.in_flight += 1
        try:
            await self.queue.metered(flow, self._work(user, seconds, gate))
        finally:
            self.queue.leave(flow)

    async def _work(self, user: str, seconds: float, gate: asyncio.Event | None) -> None:
        self.time.work(seconds)
        self.order.append(user)
        self.by_turn.setdefault(self.turn, []).append(user)
        if gate is not None:
            await gate.wait()

    async def run(self, *requests: Awaitable[None]) -> None:
        tasks = [asyncio.ensure_future(each) for each in requests]
        while not all(task.done() for task in tasks):
            self.turn += 1
            await asyncio.sleep(0)
        for task in tasks:
            task.result()


async def test_requests_of_one_user_are_spread_over_turns() -> None:
    rig = Rig()
    await rig.run(*(rig.request("a", SLICE) for _ in range(6)))
    assert len(rig.order) == 6
    assert all(len(started) == 1 for started in rig.by_turn.values())


async def test_cheap_requests_start_in_one_turn() -> None:
    rig = Rig()
    await rig.run(*(rig.request("a", SLICE / 100) for _ in range(50)))
    assert len(rig.by_turn[1]) == 50


async def test_a_request_of_another_user_overtakes_a_queue() -> None:
    rig = Rig()
    await rig.run(*(rig.request("hostile", SLICE) for _ in range(100)), rig.request("quiet", SLICE / 10))
    assert rig.order.index("quiet") == 1


async def test_user_beside_others_has_a_smaller_slice_and_pays_its_debts() -> None:
    rig = Rig()
    await rig.run(rig.request("quiet", SHARED_SLICE / 10), *(rig.request("busy", SHARED_SLICE * 3) for _ in range(5)))
    turns = [turn for turn, users in rig.by_turn.items() if "busy" in users]
    assert [later - earlier for earlier, later in pairwise(turns[1:])] == [3] * 2


async def test_user_that_is_alone_has_no_debts() -> None:
    rig = Rig()
    await rig.run(*(rig.request("busy", SLICE * 3) for _ in range(5)))
    turns = [turn for turn, users in rig.by_turn.items() if "busy" in users]
    assert [later - earlier for earlier, later in pairwise(turns[1:])] == [1] * 3


async def test_requests_of_a_user_keep_their_order() -> None:
    rig = Rig()
    numbers: list[int] = []

    async def numbered(number: int) -> None:
        await rig.request("a", SLICE)
        numbers.append(number)

    await rig.run(*(numbered(number) for number in range(20)))
    assert numbers == list(range(20))


async def test_concurrent_requests_of_a_user_are_limited() -> None:
    rig = Rig(requests_per_user=3, queued_per_user=2)
    gate = asyncio.Event()
    tasks = [asyncio.ensure_future(rig.request("a", 0.0, gate)) for _ in range(6)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.order == ["a"] * 3
    with pytest.raises(TooManyRequests) as refused:
        await tasks[5]
    assert refused.value.retry_after == 1
    await rig.request("b", 0.0)
    gate.set()
    await asyncio.gather(*tasks[:5])
    assert rig.order.count("a") == 5


async def test_a_cancelled_request_gives_its_place_back() -> None:
    rig = Rig(requests_per_user=1, queued_per_user=10)
    gate = asyncio.Event()
    first, second, third = (asyncio.ensure_future(rig.request("a", 0.0, gate)) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    gate.set()
    await third
    assert rig.queue.flow("a").in_flight == 0
    await asyncio.gather(first, second, return_exceptions=True)


async def test_a_request_that_is_admitted_and_cancelled_at_once_gives_its_place_back() -> None:
    rig = Rig(requests_per_user=1)
    flow = rig.queue.flow("a")
    flow.connections = flow.in_flight = 1
    waiting = asyncio.ensure_future(rig.queue.wait(flow))
    await asyncio.sleep(0)
    flow.in_flight = 0
    rig.queue._admit(flow)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert flow.in_flight == 0


async def test_a_long_step_is_followed_by_a_pause_if_others_are_active() -> None:
    rig = Rig()
    await rig.request("quiet", SLICE / 10)
    await rig.request("hostile", 2 * LONG)
    flow = rig.queue.flow("hostile")
    assert flow.paused_until == pytest.approx(rig.time.now + PAUSE * 2 * LONG)
    assert rig.queue.must_wait(flow)
    rig.time.now = flow.paused_until
    assert not rig.queue.must_wait(flow) or flow.spent >= SLICE
    await rig.request("hostile", 10.0)
    assert flow.paused_until <= rig.time.now + LONGEST_PAUSE


async def test_a_user_that_is_alone_never_pauses() -> None:
    rig = Rig()
    await rig.request("quiet", SLICE)
    rig.time.now += 5
    await rig.request("busy", 50 * LONG)
    await rig.request("busy", 50 * LONG)
    assert rig.queue.flow("busy").paused_until == 0


async def test_paused_requests_start_after_the_pause() -> None:
    rig = Rig()
    flow = rig.queue.flow("a")
    flow.paused_until = rig.time.now + 0.001
    waiting = asyncio.ensure_future(rig.request("a", 0.0))
    await asyncio.sleep(0)
    assert not rig.order
    rig.time.now += 1
    await asyncio.wait_for(waiting, 20)
    assert rig.order == ["a"]


async def test_every_step_is_charged_and_exceptions_pass_through() -> None:
    rig = Rig()
    flow = Flow("a")

    async def work() -> str:
        rig.time.work(1)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        except TimeoutError:
            rig.time.work(2)
        await asyncio.sleep(0)
        rig.time.work(3)
        return "done"

    async def broken() -> None:
        rig.time.work(4)
        raise LookupError

    charged: list[float] = []
    rig.queue.charge = lambda flow, seconds: charged.append(seconds)  # type: ignore[method-assign]
    assert await rig.queue.metered(flow, work()) == "done"
    with pytest.raises(LookupError):
        await rig.queue.metered(flow, broken())
    assert sum(charged) == 10


async def test_flows_are_forgotten_when_they_are_unused() -> None:
    rig = Rig()
    rig.connections = 0  # closed while the request was served
    for number in range(100):
        await rig.request(f"user-{number}", SLICE)
    assert len(rig.queue) == 0


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def as_bob(wire: ByteStream, path: str, *lines: str) -> None:
    head = [f"GET {path} HTTP/1.1", "Host: test", "Authorization: Bearer bob-token", *lines, "", ""]
    wire.send("\r\n".join(head).encode())


async def test_the_connections_of_a_user_are_limited(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(connections_per_user=2))
    wires = [await bench.connect() for _ in range(3)]
    for wire in wires[:2]:
        wire.request()
        assert (await wire.answer()).status == 200
    wires[2].request()
    answer = await wires[2].answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.json["message"] == "admin has 2 connections, which is the limit"
    bob = await bench.connect()
    as_bob(bob, "/x")
    assert (await bob.answer()).status == 200
    await wires[0].close()
    await bench.until(lambda: bench.server.fairness.flow("admin").connections == 1)
    again = await bench.connect()
    again.request()
    assert (await again.answer()).status == 200


async def test_the_watches_of_a_user_are_limited(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(streams_per_user=2))
    closed: list[int] = []

    async def watch(_: ServerRequest) -> Response:
        end = asyncio.Event()

        async def lines() -> AsyncGenerator[list[WatchLine], None]:
            yield [WatchLine("ADDED", None, b"{}")]
            await end.wait()

        def close() -> None:
            closed.append(1)
            end.set()

        return Response(stream=WatchStream(lines(), close))

    bench.handler.routes["/watch"] = watch
    wires = [await bench.connect() for _ in range(3)]
    for wire in wires[:2]:
        wire.request("GET", "/watch")
        assert (await wire.head())[0] == 200
    wires[2].request("GET", "/watch")
    answer = await wires[2].answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert closed, "the watch that was refused is closed"
    bob = await bench.connect()
    as_bob(bob, "/watch")
    assert (await bob.head())[0] == 200
    wires[0].abort()
    await bench.until(lambda: bench.server.fairness.flow("admin").streams == 1)
    wires[2].request("GET", "/watch")
    assert (await wires[2].head())[0] == 200


async def test_bytes_of_bodies_of_a_user_are_limited(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(body_bytes_per_user=1000))
    gate = asyncio.Event()

    async def slow(_: ServerRequest) -> Response:
        await gate.wait()
        return Response(object={})

    bench.handler.routes["/slow"] = slow
    holder, second, third = [await bench.connect() for _ in range(3)]
    holder.request("POST", "/slow", body=b"x" * 700)
    await bench.until(lambda: len(bench.handler.requests) == 1)
    second.request("POST", "/x", body=b"x" * 700)
    answer = await second.answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    gate.set()
    assert (await holder.answer()).status == 200
    third.request("POST", "/x", body=b"x" * 700)
    assert (await third.answer()).status == 200
    assert bench.server.fairness.flow("admin").buffered == 0


async def test_a_body_that_stops_half_way_is_not_counted_for_ever(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(body_bytes_per_user=1000))
    wire, other = await bench.connect(), await bench.connect()
    other.request()
    await other.answer()
    wire.request("POST", "/x", "Content-Length: 900")
    wire.send(b"x" * 800)
    await bench.until(lambda: bench.server.fairness.flow("admin").buffered == 800)
    wire.abort()
    await bench.until(lambda: bench.server.fairness.flow("admin").buffered == 0)


async def test_429_when_the_queue_of_a_user_is_full(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(requests_per_user=1, queued_per_user=1))
    gate = asyncio.Event()

    async def slow(_: ServerRequest) -> Response:
        await gate.wait()
        return Response(object={})

    bench.handler.routes["/slow"] = slow
    wires = [await bench.connect() for _ in range(3)]
    wires[0].request("GET", "/slow")
    await bench.until(lambda: len(bench.handler.requests) == 1)
    wires[1].request("GET", "/slow")
    await bench.until(lambda: bench.server.fairness.waiting(bench.server.fairness.flow("admin")) == 1)
    wires[2].request("GET", "/x")
    answer = await wires[2].answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.json["reason"] == "TooManyRequests"
    bob = await bench.connect()
    as_bob(bob, "/x")
    assert (await bob.answer()).status == 200, "other users are not concerned"
    gate.set()
    assert (await wires[0].answer()).status == (await wires[1].answer()).status == 200


async def test_anonymous_clients_share_a_flow_per_address(make_bench: MakeBench) -> None:
    bench = await make_bench(limits=HttpLimits(requests_per_user=1, queued_per_user=0))
    gate = asyncio.Event()

    async def slow(_: ServerRequest) -> Response:
        await gate.wait()
        return Response(object={})

    bench.handler.routes["/healthz"] = slow
    first, second, known = [await bench.connect() for _ in range(3)]
    for wire in (first, second):
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await second.answer()).status == 429
    known.request()
    assert (await known.answer()).status == 200
    gate.set()
    assert (await first.answer()).status == 200
