"""Events are written once and soon, and no caller waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.events import EventSpec, claim_expired, sandbox_adopted, warm_pool_progressing
from sandpool.api.kinds import EVENT
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.kube.client import Client
from sandpool.kube.errors import ServiceUnavailable, already_exists
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport


def claim(number: int = 0) -> ObjectReference:
    return ObjectReference("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", f"c{number}", "default", f"u-{number}")


class World:
    """A recorder on a real API."""

    def __init__(self, server: ApiServer, **limits: Any) -> None:
        self.api = server.client()
        self.wire = FaultyTransport(self.api.transport)
        self.clock = ManualClock()
        self.recorder = EventRecorder(Client(self.wire), self.clock, "host", **limits)
        self.recorder.start()

    async def settle(self) -> None:
        await self.clock.settle()
        while self.wire.busy:
            await self.wire.quiet()
            await self.clock.settle()

    async def passes(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        await self.settle()
        while (alarm := self.clock.next_alarm) is not None and self.clock.monotonic() + alarm <= end:
            await self.clock.jump()
            await self.settle()
        await self.clock.advance(end - self.clock.monotonic())

    async def stop(self, seconds: float = 5.0) -> None:
        stopping = asyncio.create_task(self.recorder.stop(seconds))
        while not stopping.done():
            await self.settle()
            if not stopping.done():
                await self.clock.jump()
        await stopping

    async def events(self) -> list[Object]:
        listed = await self.api.list(EVENT, "default")
        return sorted(listed["items"], key=lambda event: (event["eventTime"], event["metadata"]["name"]))

    async def counts(self) -> list[int]:
        return [event["series"]["count"] if "series" in event else 1 for event in await self.events()]

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.wire.requests]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def world(server: ApiServer) -> AsyncIterator[World]:
    world = World(server)
    yield world
    await world.stop()


async def test_event_is_written_at_once(world: World) -> None:
    world.recorder.event(claim(), sandbox_adopted("s"))
    await world.settle()
    [event] = await world.events()
    assert event["note"] == 'Adopted warm pool Sandbox "s"'
    assert event["regarding"]["name"] == "c0"
    assert event["metadata"]["name"] == f"c0.{1767225600 * 10**9:x}"
    assert event["reportingInstance"] == "sandboxclaim-controller-host"
    assert "series" not in event
    assert (world.recorder.written, world.recorder.dropped) == (1, 0)


async def test_repeated_event_is_counted_and_written_every_ten_seconds(world: World) -> None:
    for _ in range(25):
        world.recorder.event(claim(), claim_expired())
        await world.passes(1)
    await world.passes(10)
    [event] = await world.events()
    assert event["series"] == {"count": 25, "lastObservedTime": "2026-01-01T00:00:24.000000Z"}
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert world.methods == ["POST", "PATCH", "PATCH", "PATCH"]


async def test_event_repeated_before_its_first_write_is_written_once(world: World) -> None:
    for _ in range(7):
        world.recorder.event(claim(), claim_expired())
    await world.settle()
    assert await world.counts() == [7]
    assert world.methods == ["POST"]


async def test_event_repeated_during_its_write_is_counted(world: World) -> None:
    def again(request: Request) -> None:
        if len(world.wire.requests) == 1:
            world.recorder.event(claim(), claim_expired())

    world.wire.fault = again
    world.recorder.event(claim(), claim_expired())
    await world.settle()
    assert await world.counts() == [1]
    await world.passes(10)
    assert await world.counts() == [2]


async def test_events_with_different_object_or_text_are_separate(world: World) -> None:
    for spec in (claim_expired(), sandbox_adopted("a"), sandbox_adopted("b")):
        for number in range(2):
            world.recorder.event(claim(number), spec)
    await world.settle()
    events = await world.events()
    assert len({event["metadata"]["name"] for event in events}) == len(events) == 6


async def test_event_repeated_after_six_quiet_minutes_is_a_new_event(world: World) -> None:
    world.recorder.event(claim(), claim_expired())
    await world.passes(360)
    world.recorder.event(claim(), claim_expired())
    await world.passes(361)
    world.recorder.event(claim(), claim_expired())
    await world.settle()
    assert await world.counts() == [2, 1]


async def test_deleted_event_is_created_again(world: World) -> None:
    world.recorder.event(claim(), claim_expired())
    await world.passes(1)
    [event] = await world.events()
    await world.api.delete(EVENT, event["metadata"]["name"], "default")
    world.recorder.event(claim(), claim_expired())
    await world.passes(10)
    [again] = await world.events()
    assert again["metadata"]["name"] != event["metadata"]["name"]
    assert again["series"]["count"] == 2


async def test_event_of_a_cluster_scoped_object_is_in_namespace_default(world: World) -> None:
    world.recorder.event(ObjectReference("v1", "Node", "n", uid="u"), warm_pool_progressing())
    await world.settle()
    [event] = await world.events()
    assert event["metadata"]["namespace"] == "default"


async def test_lost_response_does_not_duplicate_the_event(world: World) -> None:
    world.wire.fault = lambda request: Fault.LOSE if len(world.wire.requests) == 1 else None
    world.recorder.event(claim(), claim_expired())
    await world.settle()
    world.recorder.event(claim(), claim_expired())
    await world.passes(11)
    assert await world.counts() == [2]
    assert world.recorder.dropped == 0


@pytest.mark.parametrize("fault", [Fault.CUT, ServiceUnavailable("not now")])
async def test_events_are_written_after_a_short_outage(world: World, fault: Fault | Exception) -> None:
    world.wire.fault = lambda request: fault
    for number in range(6):
        world.recorder.event(claim(number), claim_expired())
    await world.passes(6.9)
    world.wire.fault = lambda request: None
    await world.passes(0.2)
    assert len(await world.events()) == 6
    assert world.recorder.dropped == 0


async def test_events_are_dropped_after_a_long_outage(world: World) -> None:
    world.wire.fault = lambda request: Fault.CUT
    for _ in range(3):
        world.recorder.event(claim(), claim_expired())
    await world.passes(16)
    assert world.recorder.dropped == 3
    assert len(world.wire.requests) == 5
    world.wire.fault = lambda request: None
    world.recorder.event(claim(), claim_expired())
    await world.settle()
    assert await world.counts() == [1]


async def test_rejected_event_is_dropped_at_once(world: World) -> None:
    world.recorder.event(ObjectReference("v1", "Pod", "p", "nowhere"), claim_expired())
    await world.settle()
    assert (world.recorder.written, world.recorder.dropped) == (0, 1)
    assert len(world.wire.requests) == 1


async def test_event_that_cannot_be_encoded_does_not_stop_the_writers(world: World) -> None:
    for _ in range(8):
        world.recorder.event(claim(), claim_expired())
        world.recorder.event(claim(), EventSpec("a", "Normal", "b", "c", 1))  # type: ignore[arg-type]
        await world.settle()
    assert world.recorder.dropped == 8
    await world.passes(10)
    assert await world.counts() == [8]


async def test_event_writes_are_rate_limited_after_a_burst(server: ApiServer) -> None:
    world = World(server, rate=8, burst=16)  # fractions that floats hold exactly
    for number in range(40):
        world.recorder.event(claim(number), claim_expired())
    await world.settle()
    assert len(world.wire.requests) == 16
    await world.passes(1)
    assert len(world.wire.requests) == 24
    await world.passes(2)
    assert len(await world.events()) == 40
    await world.stop()


async def test_event_storm_is_bounded_in_memory_and_keeps_the_first_events(server: ApiServer) -> None:
    world = World(server, capacity=50)
    for number in range(80):
        world.recorder.event(claim(number), claim_expired())
    assert world.recorder.dropped == 30
    await world.settle()
    assert {event["regarding"]["name"] for event in await world.events()} == {f"c{number}" for number in range(50)}
    for number in range(80, 90):
        world.recorder.event(claim(number), claim_expired())
        await world.settle()
    assert len(await world.events()) == 60, "written ones make room"
    assert world.recorder.dropped == 30
    await world.stop()


async def test_stop_writes_the_pending_events(server: ApiServer) -> None:
    world = World(server)
    world.recorder.event(claim(1), claim_expired())
    await world.settle()
    for _ in range(3):
        world.recorder.event(claim(1), claim_expired())
        world.recorder.event(claim(2), claim_expired())
    await world.stop()
    assert await world.counts() == [4, 3]
    assert world.clock.monotonic() == 0
    world.recorder.event(claim(3), claim_expired())
    assert world.recorder.dropped == 1


async def test_stop_has_a_deadline(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    world = World(server)
    world.wire.fault = lambda request: Fault.HOLD
    for number in range(9):
        world.recorder.event(claim(number), claim_expired())
        world.recorder.event(claim(number), claim_expired())
    await world.stop(3)
    assert world.clock.monotonic() == 3
    assert world.recorder.dropped == 18
    assert "18 events could not be written" in caplog.text


async def test_recorder_works_with_the_system_clock(server: ApiServer) -> None:
    recorder = EventRecorder(server.client(), SystemClock(), "host")
    recorder.start()
    recorder.event(claim(), claim_expired())
    await recorder.stop()
    assert recorder.written == 1


# --- the books balance, whatever happens ------------------------------------------------------------------------------


class FakeApi:
    """Just enough of an API to keep Events; requests and answers get lost."""

    def __init__(self, faults: list[int]) -> None:
        self.events: dict[str, Object] = {}
        self.faults = faults

    async def request(self, request: Request) -> Any:
        fault = self.faults.pop() if self.faults else 0
        if fault == 1:
            raise ConnectionError("cut")
        if request.method == "POST":
            name = request.body["metadata"]["name"]
            if name in self.events:
                raise already_exists(EVENT, name)
            self.events[name] = request.body
        else:
            self.events[request.path.rsplit("/", 1)[1]].update(request.body)
        if fault == 2:
            raise ConnectionError("lost")
        return {}

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def seen(self) -> int:
        return sum(event.get("series", {}).get("count", 1) for event in self.events.values())


@given(
    occurrences=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 30)), max_size=60),
    faults=st.lists(st.integers(0, 2), max_size=60),
    capacity=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_every_event_is_written_or_counted_as_dropped(
    occurrences: list[tuple[int, float]], faults: list[int], capacity: int
) -> None:
    async def scenario() -> None:
        clock, api = ManualClock(), FakeApi(faults.copy())
        recorder = EventRecorder(Client(api), clock, "host", capacity=capacity, rate=1, burst=3, window=20, spacing=5)
        recorder.start()
        for number, pause in occurrences:
            recorder.event(claim(number), claim_expired())
            await clock.advance(pause)
            assert len(recorder._entries) <= capacity
        stopping = asyncio.create_task(recorder.stop(1000))
        await clock.advance(1000)
        await stopping
        lost = len(occurrences) - api.seen()
        # An answer that was lost makes us believe in less than there is, never in more.
        assert 0 <= lost <= recorder.dropped
        if not faults:
            assert lost == recorder.dropped

    asyncio.run(scenario())
