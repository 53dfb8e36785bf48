"""Leader election: acquisition, loss, release, and never two leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import LEASE
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, SystemClock
from sandpool.engine.leaderelection import LeaderElector, LeaseLost, LeaseTiming, unique_identity
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Conflict, already_exists, conflict, not_found
from sandpool.kube.patches import merge_patch
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport

NAME, NAMESPACE = "controller", "default"


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class Contender:
    """A process that would lead, with a wire of its own. ``told`` is what it heard about leading, and when."""

    def __init__(self, identity: str, server: ApiServer, clock: Clock) -> None:
        self.wire = FaultyTransport(server.client().transport)
        self.clock = clock
        self.told: list[tuple[float, bool]] = []
        self.election = LeaderElector(
            Client(self.wire), NAME, NAMESPACE, identity, clock, Random(1), on_change=self.hear
        )
        self.worked = 0  # how often the work has begun
        self.task: asyncio.Task[None] | None = None
        self.tidying = 0.0  # seconds the work takes to stop

    def hear(self, leading: bool) -> None:
        self.told.append((self.clock.monotonic(), leading))

    def start(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.election.lead(self.work))
        return self.task

    async def work(self) -> None:
        self.worked += 1
        try:
            await forever()
        finally:
            await self.clock.sleep(self.tidying)

    def die(self) -> None:
        """Stop as after SIGKILL: no further request is sent."""
        self.wire.fault = lambda request: Fault.HOLD

    @property
    def leads(self) -> bool:
        return self.election.held and self.worked > 0


@dataclass
class World:
    server: ApiServer
    clock: ManualClock = field(default_factory=ManualClock)
    contenders: list[Contender] = field(default_factory=list)

    def contender(self, identity: str, clock: Clock | None = None) -> Contender:
        contender = Contender(identity, self.server, clock or self.clock)
        self.contenders.append(contender)
        return contender

    async def settle(self) -> None:
        """Let all tasks run as far as they can, including the threads of the server."""
        for _ in range(2):
            await self.clock.settle()
            for contender in self.contenders:
                while contender.wire.busy:
                    await contender.wire.quiet()
                    await self.clock.settle()

    async def passes(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        await self.settle()
        while (alarm := self.clock.next_alarm) is not None and self.clock.monotonic() + alarm <= end:
            await self.clock.jump()
            await self.settle()
            assert sum(contender.election.held for contender in self.contenders) <= 1
        await self.clock.advance(end - self.clock.monotonic())

    async def ends(self, task: asyncio.Task[None], limit: float = 60) -> float:
        """Advance the time until a task ends, and return the elapsed time."""
        began = self.clock.monotonic()
        await self.settle()
        while not task.done():
            assert await self.clock.jump()
            await self.settle()
            assert self.clock.monotonic() - began <= limit
        return self.clock.monotonic() - began

    async def spec(self) -> dict[str, Any]:
        lease = await self.server.client().get(LEASE, NAME, NAMESPACE)
        spec: dict[str, Any] = lease["spec"]
        return spec


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = ApiServer(tmp_path)
    await server.start()
    world = World(server)
    yield world
    for contender in world.contenders:
        if contender.task is not None:
            contender.wire.fault = lambda request: Fault.CUT
            contender.tidying = 0.0
            contender.task.cancel()
            with suppress(asyncio.CancelledError, LeaseLost):
                await contender.task
    await server.stop()


async def test_first_contender_acquires_the_lease(world: World) -> None:
    one = world.contender("one")
    one.start()
    await world.settle()
    assert one.leads
    assert one.election._seen.holder == "one"
    assert await world.spec() == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
    }


async def test_leader_renews_every_two_seconds_with_one_request(world: World) -> None:
    one = world.contender("one")
    one.start()
    await world.settle()
    one.wire.requests.clear()
    await world.passes(60)
    assert one.leads
    assert [request.method for request in one.wire.requests] == ["PATCH"] * 30
    spec = await world.spec()
    assert (spec["acquireTime"], spec["renewTime"]) == ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:01:00.000000Z")
    assert spec["leaseTransitions"] == 0


async def test_second_contender_waits_while_the_lease_is_renewed(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    one.start()
    await world.settle()
    two.start()
    await world.passes(120)
    assert one.leads
    assert not two.worked
    assert two.election._seen.holder == "one"


async def test_released_lease_is_taken_within_two_seconds(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    leading = one.start()
    await world.settle()
    two.start()
    await world.passes(21.3)
    leading.cancel()
    await world.settle()
    assert leading.cancelled()
    released = world.clock.monotonic()
    spec = await world.spec()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 0)
    await world.passes(2)
    assert two.leads
    assert two.told[0][0] - released <= 2
    spec = await world.spec()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("two", 15, 1)


async def test_lease_of_a_dead_leader_is_acquired_after_it_expires(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    one.start()
    await world.settle()
    two.start()
    await world.passes(30)
    one.die()
    died = world.clock.monotonic()
    await world.passes(15 + 2 * 2)
    assert two.leads
    # Its last renewal was seen up to one look later than it was made.
    assert 15 <= two.told[0][0] - died <= 15 + 2 * 1.8
    assert (await world.spec())["leaseTransitions"] == 1


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.HOLD])
async def test_leader_stops_at_the_renew_deadline_when_the_api_is_unreachable(world: World, fault: Fault) -> None:
    one = world.contender("one")
    leading = one.start()
    await world.passes(20)
    one.wire.fault = lambda request: fault
    assert await world.ends(leading) == 10
    with pytest.raises(LeaseLost, match="could not be renewed for 10 s"):
        await leading
    assert one.told == [(0, True), (30, False)]
    assert not one.election.held


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.HOLD])
async def test_leader_survives_a_short_outage(world: World, fault: Fault) -> None:
    one = world.contender("one")
    one.start()
    await world.passes(20)
    one.wire.fault = lambda request: fault
    await world.passes(7.9)
    one.wire.fault = lambda request: None
    await world.passes(60)
    assert one.leads
    assert one.told == [(0, True)]


async def test_lost_responses_do_not_end_leadership(world: World) -> None:
    one = world.contender("one")
    writes = iter(range(1000))
    one.wire.fault = lambda request: Fault.LOSE if request.method != "GET" and next(writes) % 2 == 0 else None
    one.start()
    await world.passes(120)
    assert one.leads
    assert one.worked == 1
    assert (await world.spec())["leaseTransitions"] == 0


async def test_foreign_labels_on_the_lease_do_not_end_leadership(world: World) -> None:
    one = world.contender("one")
    one.start()
    await world.passes(5)
    await world.server.client().patch(LEASE, NAME, MergePatch({"metadata": {"labels": {"a": "b"}}}), NAMESPACE)
    await world.passes(20)
    assert one.leads
    assert one.told == [(0, True)]


async def test_annotations_are_written_with_the_lease_and_stay(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    one.election.annotations = lambda: {"seconds": f"{world.clock.monotonic():g}"}

    async def annotations() -> dict[str, str]:
        lease = await world.server.client().get(LEASE, NAME, NAMESPACE)
        return dict(lease["metadata"]["annotations"])

    task = one.start()
    await world.settle()
    assert await annotations() == {"seconds": "0"}
    await world.passes(5)
    assert await annotations() == {"seconds": "4"}
    assert one.election.slow_paths == 0
    await world.passes(0.5)
    task.cancel()
    await world.settle()
    assert await annotations() == {"seconds": "5.5"}, "also when it is released"
    two.start()
    await world.passes(10)
    assert two.leads
    assert await annotations() == {"seconds": "5.5"}


async def test_leader_stops_at_the_next_renewal_when_another_identity_holds_the_lease(world: World) -> None:
    one = world.contender("one")
    leading = one.start()
    await world.passes(5)
    patch = MergePatch({"spec": {"holderIdentity": "usurper"}})
    await world.server.client().patch(LEASE, NAME, patch, NAMESPACE)
    assert await world.ends(leading) <= 2
    with pytest.raises(LeaseLost, match="usurper holds the lease"):
        await leading
    assert (await world.spec())["holderIdentity"] == "usurper"


async def test_deleted_lease_is_created_again(world: World) -> None:
    one = world.contender("one")
    one.start()
    await world.passes(5)
    await world.server.client().delete(LEASE, NAME, NAMESPACE)
    await world.passes(5)
    assert one.leads
    assert (await world.spec())["holderIdentity"] == "one"


async def test_lease_is_renewed_while_the_work_stops(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    one.tidying = 30.0
    leading = one.start()
    await world.settle()
    two.start()
    await world.passes(5)
    leading.cancel()
    await world.passes(29)
    assert one.election.held
    assert not two.worked
    await world.passes(4)
    assert leading.cancelled()
    assert two.leads


async def test_failing_work_releases_the_lease(world: World) -> None:
    one = world.contender("one")

    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await one.election.lead(work)
    assert (await world.spec())["holderIdentity"] == ""
    assert one.told == [(0, True), (0, False)]


async def test_finished_work_releases_the_lease(world: World) -> None:
    one = world.contender("one")

    async def work() -> None:
        assert one.election.held

    await one.election.lead(work)
    assert (await world.spec())["holderIdentity"] == ""


async def test_work_that_fails_to_stop_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one = world.contender("one")

    async def work() -> None:
        try:
            await forever()
        finally:
            raise ValueError("stuck")

    leading = one.task = asyncio.create_task(one.election.lead(work))
    await world.passes(3)
    one.wire.fault = lambda request: Fault.CUT
    await world.ends(leading)
    with pytest.raises(LeaseLost):
        await leading
    assert "the work failed while it was being stopped" in caplog.text


async def test_stopping_before_the_response_arrives_releases_the_lease(world: World) -> None:
    """A contender that is stopped between the request and the response must not keep the lease."""
    one = world.contender("one")
    one.wire.fault = lambda request: Fault.LOSE if request.method == "POST" else None
    waiting = one.start()
    await world.settle()
    assert (await world.spec())["holderIdentity"] == "one"
    waiting.cancel()
    await world.settle()
    assert waiting.cancelled()
    assert (await world.spec())["holderIdentity"] == ""


async def test_lease_is_released_although_a_cancelled_renewal_arrives_late(world: World) -> None:
    one = world.contender("one")
    task = one.start()
    await world.passes(5)
    late = iter([Conflict("a renewal has arrived meanwhile")])
    one.wire.fault = lambda request: next(late, None) if request.method == "PATCH" else None
    task.cancel()
    await world.settle()
    assert task.done()
    assert (await world.spec())["holderIdentity"] == ""


async def test_stopping_does_not_release_the_lease_of_another_leader(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    two.wire.fault = lambda request: Fault.CUT if request.method == "POST" else None
    waiting = two.start()
    await world.settle()
    one.start()
    await world.settle()
    waiting.cancel()
    await world.settle()
    assert [request.method for request in two.wire.requests] == ["GET", "POST", "GET"], "it could not know"
    assert one.leads
    assert (await world.spec())["holderIdentity"] == "one"


async def test_stopping_a_contender_that_never_led_writes_nothing(world: World) -> None:
    one, two = world.contender("one"), world.contender("two")
    one.start()
    await world.settle()
    waiting = two.start()
    await world.passes(10)
    waiting.cancel()
    await world.settle()
    assert {request.method for request in two.wire.requests} == {"GET"}
    assert two.told == []


async def test_contender_can_lead_again_after_losing_the_lease(world: World) -> None:
    one = world.contender("one")
    leading = one.start()
    await world.passes(3)
    one.wire.fault = lambda request: Fault.CUT
    await world.ends(leading)
    one.wire.fault = lambda request: None
    with pytest.raises(LeaseLost):
        await leading
    one.start()
    await world.settle()
    assert one.leads
    assert (await world.spec())["leaseTransitions"] == 0


class Skewed:
    """A clock whose wall time is wrong."""

    def __init__(self, clock: ManualClock, hours: float) -> None:
        self.clock = clock
        self.hours = hours

    def now(self) -> datetime:
        return self.clock.now() + timedelta(hours=self.hours)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@pytest.mark.parametrize("hours", [-3, 3])
async def test_election_works_with_different_wall_clocks(world: World, hours: float) -> None:
    one, two = world.contender("one"), world.contender("two", Skewed(world.clock, hours))
    one.start()
    await world.settle()
    two.start()
    await world.passes(60)
    assert one.leads
    one.die()
    await world.passes(14)
    assert not two.worked
    await world.passes(5)
    assert two.leads


async def test_repeated_failure_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one = world.contender("one")
    one.wire.fault = lambda request: Fault.CUT
    one.start()
    await world.passes(60)
    assert caplog.text.count("the connection is cut") == 1


def test_invalid_lease_timings_are_rejected() -> None:
    for terms in ((10, 10.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)):
        with pytest.raises(ValueError, match="the lease duration must exceed"):
            LeaseTiming(*terms)


def test_generated_identities_differ() -> None:
    assert unique_identity() != unique_identity()


async def test_election_works_with_defaults_and_the_system_clock(world: World) -> None:
    election = LeaderElector(world.server.client(), "other", NAMESPACE, "me", SystemClock(), Random(1))
    async with asyncio.timeout(10):
        await election.lead(lambda: asyncio.sleep(0))


# --- never two, whatever the network and the scheduler do -------------------------------------------------------------


class FakeApi:
    """Just enough of an API to keep one Lease."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0

    def handle(self, request: Request) -> Object:
        if request.method == "POST":
            if self.lease is not None:
                raise already_exists(LEASE, NAME)
            return self.keep(request.body)
        if self.lease is None:
            raise not_found(LEASE, NAME)
        if request.method == "PATCH":
            if request.body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise conflict(LEASE, NAME, "the object has been modified")
            return self.keep(merge_patch(self.lease, request.body))
        return self.lease

    def keep(self, lease: Object) -> Object:
        self.version += 1
        self.lease = merge_patch(lease, {"metadata": {"resourceVersion": str(self.version)}})
        return self.lease


class Trouble:
    """A transport to the API whose requests may be slow or lost; and a clock that wakes its sleepers late, as for
    a process that is starved or was suspended. Both behave once ``over``."""

    def __init__(self, api: FakeApi, clock: ManualClock, rng: Random) -> None:
        self.api = api
        self.clock = clock
        self.rng = rng
        self.over = False
        self.wall = timedelta(seconds=rng.uniform(-9999, 9999))

    async def delay(self, chance: float, longest: float) -> None:
        if not self.over and self.rng.random() < chance:
            await self.clock.sleep(self.rng.uniform(0, longest))

    def lose(self) -> None:
        if not self.over and self.rng.random() < 0.1:
            raise ConnectionError("lost")

    async def request(self, request: Request) -> Object:
        await self.delay(0.3, 20)
        self.lose()
        answer = self.api.handle(request)
        await self.delay(0.3, 20)
        self.lose()
        return answer

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def now(self) -> datetime:
        return self.clock.now() + self.wall

    def monotonic(self) -> float:
        return self.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        await self.delay(0.2, 30)


async def contend(election: LeaderElector) -> None:
    while True:
        with suppress(LeaseLost):
            await election.lead(forever)


@asynccontextmanager
async def running(elections: list[LeaderElector], clock: ManualClock) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(contend(election)) for election in elections]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            await clock.jump()


@given(st.integers(0, 2**32), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_two_contenders_never_lead_at_once(seed: int, contenders: int) -> None:
    async def scenario() -> None:
        clock, api, rng = ManualClock(), FakeApi(), Random(seed)
        troubles = [Trouble(api, clock, rng) for _ in range(contenders)]
        elections = [
            LeaderElector(Client(trouble), NAME, NAMESPACE, f"contender-{number}", trouble, rng)
            for number, trouble in enumerate(troubles)
        ]
        async with running(elections, clock):
            while clock.monotonic() < 120:
                await clock.jump()
                assert sum(election.held for election in elections) <= 1
            for trouble in troubles:
                trouble.over = True
            # Whatever was under way ends within 70 s; then a lease runs out at most once.
            await clock.advance(70 + 15 + 2 * 1.8)
            assert sum(election.held for election in elections) == 1

    asyncio.run(scenario())
