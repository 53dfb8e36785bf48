from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sandpool.engine.expectations import LIFETIME, Expectations
from sandpool.testing.clock import START, ManualClock


class Watch:
    """A clock that is simply set, for tests without an event loop."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time)

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def expectations() -> Expectations[str]:
    return Expectations(ManualClock())


def test_unknown_owner_has_no_expectations() -> None:
    expected = expectations()
    assert expected.satisfied("pool")
    assert expected.pending_deletions("pool") == set()
    expected.settle_creations("pool")
    expected.settle_deletion("pool", "uid")
    expected.forget("pool")
    assert expected.satisfied("pool")


def test_creations_are_settled_one_by_one() -> None:
    expected = expectations()
    assert expected.try_expect("pool", 3)
    expected.settle_creations("pool")
    expected.settle_creations("pool", 1)
    assert not expected.satisfied("pool")
    expected.settle_creations("pool")
    assert expected.satisfied("pool")


def test_failed_creations_are_settled_together() -> None:
    expected = expectations()
    assert expected.try_expect("pool", 300)
    expected.settle_creations("pool", 299)
    assert not expected.satisfied("pool")
    expected.settle_creations("pool", 5)
    assert expected.satisfied("pool")


def test_expectations_of_owners_are_independent() -> None:
    expected = expectations()
    assert expected.try_expect("pool", 1)
    assert expected.try_expect("other", 1)
    expected.settle_creations("other")
    assert not expected.satisfied("pool")
    assert expected.satisfied("other")


async def test_r18_five_reconciles_over_a_stale_list_create_once() -> None:
    expected = expectations()
    created, missing = 0, 3
    for _ in range(5):
        if expected.try_expect("pool", missing):
            created += missing
    assert created == 3


async def test_r18_eight_concurrent_reconciles_create_once() -> None:
    expected = expectations()
    created = 0

    async def reconcile() -> None:
        nonlocal created
        if expected.try_expect("pool", 3):
            for _ in range(3):
                await asyncio.sleep(0)
                created += 1

    await asyncio.gather(*(reconcile() for _ in range(8)))
    assert created == 3


def test_r19_pending_deletion_holds_creations_back() -> None:
    """A replacement is not created before the deletion has been observed."""
    expected = expectations()
    expected.expect_deletion("pool", "a")
    assert expected.pending_deletions("pool") == {"a"}
    assert not expected.try_expect("pool", 1)
    expected.settle_deletion("pool", "a")
    assert expected.pending_deletions("pool") == set()
    assert expected.try_expect("pool", 1)


def test_deletion_seen_twice_settles_only_itself() -> None:
    expected = expectations()
    expected.expect_deletion("pool", "a")
    expected.expect_deletion("pool", "b")
    expected.settle_deletion("pool", "a")
    expected.settle_deletion("pool", "a")
    expected.settle_deletion("pool", "never expected")
    assert not expected.satisfied("pool")
    assert expected.pending_deletions("pool") == {"b"}


def test_r20_deletion_that_found_nothing_is_rolled_back_at_once() -> None:
    """Otherwise the pool creates nothing until the expectation expires."""
    expected = expectations()
    expected.expect_deletion("pool", "a")
    expected.settle_deletion("pool", "a")  # what the controller does with a 404
    assert expected.try_expect("pool", 1)


def test_empty_uid_is_ignored() -> None:
    expected = expectations()
    expected.expect_deletion("pool", "")
    assert expected.satisfied("pool")
    expected.settle_deletion("pool", "")


def test_zero_creations_are_not_granted() -> None:
    expected = expectations()
    assert not expected.try_expect("pool", 0)
    assert not expected.try_expect("pool", -1)
    assert expected.satisfied("pool")


async def test_lost_event_blocks_for_five_minutes_at_most() -> None:
    clock = ManualClock()
    expected: Expectations[str] = Expectations(clock)
    assert expected.try_expect("pool", 2)
    await clock.advance(LIFETIME)
    assert not expected.satisfied("pool")
    await clock.advance(0.001)
    assert expected.satisfied("pool")


async def test_new_expectation_extends_the_lifetime_of_the_others() -> None:
    clock = ManualClock()
    expected: Expectations[str] = Expectations(clock)
    assert expected.try_expect("pool", 2)
    await clock.advance(200)
    expected.expect_deletion("pool", "a")
    await clock.advance(200)
    assert not expected.satisfied("pool")
    expected.settle_deletion("pool", "a")
    assert not expected.satisfied("pool")
    await clock.advance(101)
    assert expected.satisfied("pool")


async def test_pending_deletions_expire() -> None:
    clock = ManualClock()
    expected: Expectations[str] = Expectations(clock)
    expected.expect_deletion("pool", "a")
    await clock.advance(LIFETIME + 1)
    assert expected.pending_deletions("pool") == set()


async def test_expired_expectation_is_not_revived_by_the_next_one() -> None:
    clock = ManualClock()
    expected: Expectations[str] = Expectations(clock)
    assert expected.try_expect("pool", 2)
    await clock.advance(LIFETIME + 1)
    expected.expect_deletion("pool", "a")
    expected.settle_deletion("pool", "a")
    assert expected.satisfied("pool")


def test_deleted_owner_has_no_expectations() -> None:
    expected = expectations()
    assert expected.try_expect("pool", 2)
    expected.expect_deletion("pool", "a")
    expected.forget("pool")
    assert expected.satisfied("pool")


class ExpectationsModel(RuleBasedStateMachine):
    """Against one list of what is outstanding, and the moment at which it lapses."""

    owners = st.sampled_from(["p", "q"])
    uids = st.sampled_from(["1", "2", "3"])

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch()
        self.expected: Expectations[str] = Expectations(self.watch)
        self.outstanding: dict[str, list[str]] = {"p": [], "q": []}  # UIDs, and "new" per creation
        self.lapses = {"p": 0.0, "q": 0.0}

    @rule(seconds=st.sampled_from([1.0, 150.0, LIFETIME, 400.0]))
    def wait(self, seconds: float) -> None:
        self.watch.time += seconds
        for owner, lapses in self.lapses.items():
            if self.watch.time > lapses:
                self.outstanding[owner] = []

    @rule(owner=owners, count=st.integers(-1, 4))
    def try_expect(self, owner: str, count: int) -> None:
        granted = count > 0 and not self.outstanding[owner]
        assert self.expected.try_expect(owner, count) == granted
        if granted:
            self.outstanding[owner] = ["new"] * count
            self.lapses[owner] = self.watch.time + LIFETIME

    @rule(owner=owners, uid=uids)
    def expect_deletion(self, owner: str, uid: str) -> None:
        self.expected.expect_deletion(owner, uid)
        if uid not in self.outstanding[owner]:
            self.outstanding[owner].append(uid)
        self.lapses[owner] = self.watch.time + LIFETIME

    @rule(owner=owners, count=st.integers(0, 4))
    def settle_creations(self, owner: str, count: int) -> None:
        self.expected.settle_creations(owner, count)
        for _ in range(min(count, self.outstanding[owner].count("new"))):
            self.outstanding[owner].remove("new")

    @rule(owner=owners, uid=uids)
    def settle_deletion(self, owner: str, uid: str) -> None:
        self.expected.settle_deletion(owner, uid)
        if uid in self.outstanding[owner]:
            self.outstanding[owner].remove(uid)

    @rule(owner=owners)
    def forget(self, owner: str) -> None:
        self.expected.forget(owner)
        self.outstanding[owner] = []

    @invariant()
    def they_agree(self) -> None:
        for owner, outstanding in self.outstanding.items():
            assert self.expected.satisfied(owner) == (not outstanding)
            assert self.expected.pending_deletions(owner) == set(outstanding) - {"new"}


TestExpectationsModel = ExpectationsModel.TestCase
TestExpectationsModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
