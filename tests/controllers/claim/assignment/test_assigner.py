"""The assigner: one sandbox per claim, in order of arrival, and none lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from sandpool.api.resource import Key
from sandpool.controllers.claim.assignment.assigner import Assigner, Candidate, Stage
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest

POOL = Key("default", "pool")


class Rig:
    """An assigner, and the claims that it enqueued."""

    def __init__(self) -> None:
        self.enqueued: list[str] = []
        self.assigner = Assigner(lambda claim: self.enqueued.append(claim[1]))

    def add(
        self,
        name: str,
        stage: Stage = Stage.READY,
        *,
        node: str = "node",
        pool: Key = POOL,
        compatibility: str = "new",
        uid: str = "",
    ) -> None:
        self.assigner.update(Candidate(Key(pool[0], name), uid or f"uid-{name}", pool, compatibility, node, stage))

    def take(self, claim: str, **options: Any) -> str | None:
        lease = self.assigner.take(request(claim), **options)
        return None if lease is None else lease.sandbox[1]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def request(claim: str, compatibility: str | None = None, pool: Key = POOL) -> SandboxRequest:
    return SandboxRequest(Key(pool[0], claim), pool, compatibility)


# --- taking ----------------------------------------------------------------------------------------------------------


def test_take_returns_none_without_candidates(rig: Rig) -> None:
    assert rig.take("claim") is None


def test_r2_two_claims_never_get_the_same_sandbox(rig: Rig) -> None:
    for number in range(3):
        rig.add(f"s{number}")
    taken = [rig.take(f"c{number}") for number in range(5)]
    assert sorted(name for name in taken if name) == ["s0", "s1", "s2"]
    assert taken[3:] == [None, None]


def test_r1_a_claim_that_asks_again_gets_the_same_sandbox(rig: Rig) -> None:
    rig.add("s1")
    rig.add("s2")
    first = rig.assigner.take(request("claim"))
    assert rig.assigner.take(request("claim")) is first
    assert rig.take("other") == "s2"


def test_r11_sandbox_of_a_same_named_pool_in_another_namespace_is_not_assigned(rig: Rig) -> None:
    rig.add("s1", pool=Key("other", "pool"))
    assert rig.take("claim") is None


def test_r9_incompatible_sandboxes_are_not_assigned(rig: Rig) -> None:
    rig.add("s1", compatibility="gvisor")
    assert rig.assigner.take(request("claim", "kata")) is None
    assert rig.assigner.take(request("claim", "gvisor")) is not None


def test_r8_request_for_the_current_template_is_not_served_with_a_stale_sandbox(rig: Rig) -> None:
    rig.add("stale", compatibility="old")
    rig.assigner.wait(request("claim", "new"))
    rig.add("stale-2", compatibility="old")
    assert rig.enqueued == []
    rig.add("fresh", compatibility="new")
    assert rig.enqueued == ["claim"]


def test_r6_unready_sandbox_is_not_assigned_unless_starting_is_passed(rig: Rig) -> None:
    rig.add("pending", Stage.PENDING)
    rig.add("starting", Stage.STARTING)
    assert rig.take("claim") is None
    assert rig.take("claim", starting=True) == "starting"
    assert rig.take("other", starting=True) is None


def test_ready_sandbox_is_preferred_over_a_starting_one(rig: Rig) -> None:
    rig.add("starting", Stage.STARTING)
    rig.add("ready")
    assert rig.take("claim", starting=True) == "ready"


def test_sandbox_that_is_no_longer_ready_is_not_assigned(rig: Rig) -> None:
    rig.add("s1")
    rig.add("s1", Stage.STARTING)
    assert rig.take("claim") is None


def test_sandbox_that_moves_to_another_pool_is_assigned_by_that_pool(rig: Rig) -> None:
    rig.add("s1")
    rig.add("s1", pool=Key("default", "other"))
    assert rig.take("claim") is None
    assert rig.assigner.take(request("claim", None, Key("default", "other"))) is not None


def test_assignments_alternate_between_nodes(rig: Rig) -> None:
    for number in range(6):
        rig.add(f"s{number}", node="ab"[number % 2])
    nodes = [int((rig.take(f"c{number}") or "")[1:]) % 2 for number in range(6)]
    assert nodes == [0, 1, 0, 1, 0, 1]


def test_assigner_has_no_capacity_limit(rig: Rig) -> None:
    for number in range(3000):
        rig.add(f"s{number}")
    assert len({rig.take(f"c{number}") for number in range(3000)} - {None}) == 3000


# --- leases ----------------------------------------------------------------------------------------------------------


def test_reserved_sandbox_is_not_exchanged_for_a_better_match(rig: Rig) -> None:
    """Two claims that would rather have a new sandbox wait; what becomes ready is an old one. The first keeps it:
    handed on, it would go from one to the other for ever."""
    rig.add("s1", Stage.PENDING, compatibility="old")
    for claim in ("first", "second"):
        rig.assigner.wait(request(claim))
    rig.add("s1", compatibility="old")
    assert rig.enqueued == ["first"]
    lease = rig.assigner.take(request("first", "new"), request("first"))
    assert lease is not None and lease.sandbox[1] == "s1"
    assert rig.enqueued == ["first"]


def test_leased_sandbox_is_not_exchanged_for_a_better_match(rig: Rig) -> None:
    rig.add("s1", compatibility="old")
    lease = rig.assigner.take(request("claim", "new"), request("claim"))
    rig.add("s2", compatibility="new")
    assert lease is not None
    assert rig.assigner.take(request("claim", "new"), request("claim")) is lease


def test_r5_returned_sandbox_is_assigned_next(rig: Rig) -> None:
    rig.add("s1")
    rig.add("s2")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    lease.give_back()
    assert rig.take("other") == "s1"


def test_lease_without_done_returns_the_sandbox(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    with pytest.raises(RuntimeError), lease:
        raise RuntimeError
    assert rig.take("other") == "s1"


async def test_e40_r42_cancelled_reconcile_returns_its_sandbox(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None

    async def write() -> None:
        with lease:
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.take("other") == "s1"


def test_lease_with_done_keeps_the_sandbox(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    with lease:
        lease.done()
    assert lease.has_ended
    assert rig.take("other") is None


def test_r14_event_older_than_the_write_does_not_make_a_taken_sandbox_free(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    rig.add("s1", node="elsewhere")
    lease.done()
    rig.add("s1")
    assert rig.take("other") is None
    rig.assigner.forget(Key("default", "s1"))
    assert len(rig.assigner) == 0


def test_new_sandbox_of_the_same_name_can_be_assigned(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    lease.done()
    rig.add("s1", uid="another")
    assert rig.take("other") == "s1"


def test_change_during_the_lease_applies_after_the_return(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    rig.add("s1", Stage.PENDING)
    lease.give_back()
    assert rig.take("other") is None
    assert rig.assigner.is_worth_waiting(request("other"))


def test_r15_deleted_sandbox_ends_its_lease(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("claim"))
    assert lease is not None
    rig.assigner.forget(Key("default", "s1"))
    assert lease.has_ended
    lease.give_back()
    lease.done()
    assert rig.take("other") is None
    rig.add("s2")
    assert rig.take("claim") == "s2"


def test_forgetting_an_unknown_sandbox_does_nothing(rig: Rig) -> None:
    rig.assigner.forget(Key("default", "s1"))
    assert len(rig.assigner) == 0


def test_claim_that_changes_its_pool_returns_its_sandbox(rig: Rig) -> None:
    rig.add("s1")
    rig.add("s2", pool=Key("default", "other"))
    assert rig.take("claim") == "s1"
    lease = rig.assigner.take(request("claim", None, Key("default", "other")))
    assert lease is not None
    assert lease.sandbox[1] == "s2"
    assert rig.take("another") == "s1"


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_claims_wait_in_arrival_order_and_are_enqueued_when_a_sandbox_is_ready(rig: Rig) -> None:
    for number in range(3):
        rig.add(f"s{number}", Stage.PENDING)
    for name in "abc":
        assert rig.take(name) is None
        assert rig.assigner.is_worth_waiting(request(name))
        rig.assigner.wait(request(name))
    for number in (2, 0, 1):
        rig.add(f"s{number}")
    assert rig.enqueued == ["a", "b", "c"]
    assert [rig.take(name) for name in "abc"] == ["s2", "s0", "s1"]


def test_new_claim_does_not_overtake_an_enqueued_waiter(rig: Rig) -> None:
    rig.assigner.wait(request("a"))
    rig.add("s1")
    assert rig.take("newcomer") is None
    assert rig.take("a") == "s1"


def test_pending_sandbox_is_worth_waiting_for_by_one_claim_only(rig: Rig) -> None:
    rig.add("s1", Stage.PENDING)
    assert rig.assigner.is_worth_waiting(request("a"))
    rig.assigner.wait(request("a"))
    assert not rig.assigner.is_worth_waiting(request("b"))
    assert rig.assigner.is_worth_waiting(request("a"))
    rig.assigner.forget(Key("default", "s1"))
    assert not rig.assigner.is_worth_waiting(request("a"))


def test_returned_sandbox_goes_to_the_first_waiter(rig: Rig) -> None:
    rig.add("s1")
    lease = rig.assigner.take(request("a"))
    rig.assigner.wait(request("b"))
    assert lease is not None
    lease.give_back()
    assert rig.enqueued == ["b"]
    assert rig.take("a") is None
    assert rig.take("b") == "s1"


def test_r41_deleted_claim_passes_its_reservation_to_the_next_waiter(rig: Rig) -> None:
    rig.assigner.wait(request("a"))
    rig.assigner.wait(request("b"))
    rig.add("s1")
    rig.assigner.withdraw(Key("default", "a"))
    assert rig.enqueued == ["a", "b"]
    assert rig.take("b") == "s1"


def test_waiter_keeps_its_place_when_its_reserved_sandbox_is_deleted(rig: Rig) -> None:
    for name in "abc":
        rig.assigner.wait(request(name))
    rig.add("s1")
    rig.add("s2")
    rig.assigner.forget(Key("default", "s1"))
    rig.assigner.forget(Key("default", "s2"))
    rig.enqueued.clear()
    for number in range(3):
        rig.add(f"t{number}")
    assert rig.enqueued == ["a", "b", "c"]


def test_claim_that_took_its_reservation_leaves_the_wait_queue(rig: Rig) -> None:
    rig.assigner.wait(request("a"))
    rig.add("s1")
    assert rig.take("a") == "s1"
    rig.assigner.forget(Key("default", "s1"))
    rig.enqueued.clear()
    rig.add("s2")
    assert rig.enqueued == []
    assert rig.take("b") == "s2"


def test_claim_that_waits_while_a_sandbox_is_free_is_enqueued_at_once(rig: Rig) -> None:
    rig.add("s1")
    rig.assigner.wait(request("a"))
    assert rig.enqueued == ["a"]
    rig.assigner.wait(request("a"))
    assert rig.take("a") == "s1"


# --- cost ------------------------------------------------------------------------------------------------------------


class CountedName(str):
    """A name that counts how often it is hashed or compared, which is all a dict ever does to find something."""

    looks = 0

    def __hash__(self) -> int:
        CountedName.looks += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedName.looks += 1
        return str.__eq__(self, other)


def operations(action: Callable[[], object]) -> int:
    """Executed lines of Python, and name lookups."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before, CountedName.looks = sys.gettrace(), 0
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines + CountedName.looks


def cost_of_a_claim(sandboxes: int) -> list[int]:
    """Return the cost of taking, finishing, forgetting and replacing a sandbox, repeated a few times."""
    rig = Rig()
    for number in range(sandboxes):
        rig.add(CountedName(f"s{number}"), node=f"node-{number % 100}")

    def claim(number: int) -> None:
        lease = rig.assigner.take(request(f"c{number}"))
        assert lease is not None
        lease.done()
        rig.assigner.forget(lease.sandbox)
        rig.add(CountedName(f"t{number}"), Stage.PENDING, node="")
        rig.add(CountedName(f"t{number}"), node=f"node-{number % 100}")

    return [operations(partial(claim, number)) for number in range(20)]


def test_r34_assignment_costs_the_same_with_1_000_and_with_100_000_sandboxes() -> None:
    assert sum(cost_of_a_claim(100_000)) <= 1.01 * sum(cost_of_a_claim(1_000))
