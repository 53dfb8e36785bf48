from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.warmpool.scaling import (
    CreationBreaker,
    CreationOutcome,
    Refill,
    RefillDelay,
    RefillState,
    RefillTimer,
    TokenBucket,
    TokenGrant,
    least_useful,
    refill,
    slow_start,
    take,
)

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def refilled(
    scene: Scene,
    missing: int,
    refill_state: RefillState | None = None,
    expectations_met: bool = True,
    **settings: float,
) -> Refill:
    given = WarmPoolOptions(**settings)  # type: ignore[arg-type]
    return refill(
        missing,
        expectations_met=expectations_met,
        refill_state=refill_state or RefillState(),
        now=scene.now,
        options=given,
    )


@pytest.mark.parametrize("missing", [0, -3])
def test_full_pool_creates_nothing(scene: Scene, missing: int) -> None:
    assert refilled(scene, missing) == Refill(0, RefillState())


def test_missing_members_are_created_at_once_up_to_the_batch_size(scene: Scene) -> None:
    assert refilled(scene, 7).create == 7
    assert refilled(scene, 7000).create == 300
    assert refilled(scene, 7000, max_batch_size=50).create == 50


def test_r18_nothing_is_created_until_expectations_are_met(scene: Scene) -> None:
    refill_state = RefillState(bucket=TokenBucket(5, scene.now))
    # Edge case 30: a rejected creation takes no tokens, so none is returned.
    assert refilled(scene, 3, refill_state, expectations_met=False, max_refill_rate=10) == Refill(0, refill_state, 30.0)


def test_r24_nothing_is_created_while_claims_are_served(scene: Scene) -> None:
    refill_state = RefillState(timer=RefillTimer(4, scene.at(12)))
    assert refilled(scene, 3, refill_state) == Refill(0, refill_state, 12.0)


def test_r27_nothing_is_created_during_a_pause(scene: Scene) -> None:
    refill_state = RefillState(breaker=CreationBreaker(3, scene.at(4), "no"))
    assert refilled(scene, 3, refill_state) == Refill(0, refill_state, 4.0)


def test_r27_one_member_is_created_to_test_an_open_breaker(scene: Scene) -> None:
    assert refilled(scene, 300, RefillState(breaker=CreationBreaker(3, scene.at(-1), "no"))).create == 1
    assert refilled(scene, 300, RefillState(breaker=CreationBreaker(2, scene.at(-1), "no"))).create == 300


def test_creation_is_limited_by_the_rate(scene: Scene) -> None:
    assert refilled(scene, 30, max_refill_rate=10) == Refill(10, RefillState(bucket=TokenBucket(0, scene.now)))
    empty = RefillState(bucket=TokenBucket(0, scene.now))
    assert refilled(scene, 30, empty, max_refill_rate=10) == Refill(0, empty, 0.1)


def test_attempt_updates_hold_and_breaker(scene: Scene) -> None:
    refill_state = RefillState(timer=RefillTimer(2)).attempted(CreationOutcome(3, "quota"), scene.now)
    assert refill_state == RefillState(timer=RefillTimer(5), breaker=CreationBreaker(1, scene.at(1), "quota"))


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (3, [1, 2]), (10, [1, 2, 4, 3]), (300, [1, 2, 4, 8, 16, 32, 64, 128, 45])]
)
def test_slow_start_doubles_the_batch(count: int, sizes: list[int]) -> None:
    assert list(slow_start(count)) == sizes


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_r26_unready_members_are_deleted_first_then_the_newest(scene: Scene) -> None:
    members = [
        scene.member("ready-old", age=90),
        scene.member("unready-old", age=80, ready=False),
        scene.member("ready-new", age=10),
        scene.member("unready-new", age=20, ready=False),
    ]
    gone = [member.name for member in least_useful(members, 3)]
    assert gone == ["unready-new", "unready-old", "ready-new"]


def test_outdated_members_are_deleted_before_equally_ready_current_ones(scene: Scene) -> None:
    members = [
        scene.member("current", age=1),
        scene.member("outdated", age=90),
        scene.member("current-unready", age=90, ready=False),
        scene.member("outdated-unready", age=80, ready=False),
    ]
    gone = [member.name for member in least_useful(members, 4, lambda member: "outdated" in member.name)]
    assert gone == ["outdated-unready", "current-unready", "outdated", "current"]


@pytest.mark.parametrize("excess", [0, -2])
def test_no_excess_deletes_nothing(scene: Scene, excess: int) -> None:
    assert least_useful(scene.members(3), excess) == []


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

HALF_A_MINUTE = RefillDelay(30)


def test_edge_29_first_filling_is_not_delayed(scene: Scene) -> None:
    assert RefillTimer().observe(0, 5, scene.now, HALF_A_MINUTE).remaining(scene.now) == 0


def test_edge_29_drop_delays_the_refill(scene: Scene) -> None:
    timer = RefillTimer(members=5).observe(4, 5, scene.now, HALF_A_MINUTE)
    assert timer.remaining(scene.at(0)) == 30
    assert timer.remaining(scene.at(12)) == 18
    assert timer.remaining(scene.at(31)) == 0


def test_edge_29_every_drop_restarts_the_delay(scene: Scene) -> None:
    timer = RefillTimer(members=5).observe(4, 5, scene.now, HALF_A_MINUTE).observe(3, 5, scene.at(20), HALF_A_MINUTE)
    assert timer.remaining(scene.at(20)) == 30


def test_reconcile_without_a_drop_does_not_restart_the_delay(scene: Scene) -> None:
    timer = RefillTimer(members=5).observe(4, 5, scene.now, HALF_A_MINUTE).observe(4, 5, scene.at(20), HALF_A_MINUTE)
    assert timer.remaining(scene.at(20)) == 10


def test_full_pool_ends_the_delay(scene: Scene) -> None:
    assert (
        RefillTimer(members=5)
        .observe(4, 5, scene.now, HALF_A_MINUTE)
        .observe(4, 4, scene.at(1), HALF_A_MINUTE)
        .remaining(scene.at(1))
        == 0
    )


def test_delay_of_zero_keeps_no_state(scene: Scene) -> None:
    assert RefillTimer(members=5, until=scene.at(9)).observe(1, 5, scene.now, RefillDelay(0)) == RefillTimer()


def test_deletions_by_the_pool_are_no_drop(scene: Scene) -> None:
    timer = RefillTimer().observe(5, 5, scene.now, HALF_A_MINUTE).changed(-2).observe(3, 5, scene.at(1), HALF_A_MINUTE)
    assert timer.remaining(scene.at(1)) == 0


def test_created_members_can_drop_again(scene: Scene) -> None:
    timer = RefillTimer().observe(0, 5, scene.now, HALF_A_MINUTE).changed(+5).observe(4, 5, scene.at(1), HALF_A_MINUTE)
    assert timer.remaining(scene.at(1)) == 30
    assert RefillTimer().changed(3) == RefillTimer()


def test_delay_counts_from_the_first_drop_when_few_members_are_left(scene: Scene) -> None:
    delay_policy = RefillDelay(2, reserve=3)
    timer = RefillTimer(members=10).observe(9, 10, scene.now, delay_policy).observe(3, 10, scene.at(1), delay_policy)
    assert timer.remaining(scene.at(1)) == 2, "there is enough for the next"
    timer = timer.observe(2, 10, scene.at(1.5), delay_policy)
    assert timer.remaining(scene.at(1.5)) == 0.5
    timer = timer.observe(1, 10, scene.at(2), delay_policy)
    assert timer.remaining(scene.at(2)) == 0, "claims that keep coming do not keep the pool empty"


def test_delay_applies_again_after_a_refill(scene: Scene) -> None:
    delay_policy = RefillDelay(2, reserve=3)
    timer = (
        RefillTimer(members=10)
        .observe(2, 10, scene.now, delay_policy)
        .observe(1, 10, scene.at(2), delay_policy)
        .changed(+9)
    )
    assert timer.observe(2, 10, scene.at(3), delay_policy).remaining(scene.at(3)) == 2


def test_failed_refill_is_not_delayed_again(scene: Scene) -> None:
    delay_policy = RefillDelay(2, reserve=3)
    timer = (
        RefillTimer(members=10)
        .observe(2, 10, scene.now, delay_policy)
        .observe(1, 10, scene.at(2), delay_policy)
        .changed(0)
    )
    assert timer.observe(0, 10, scene.at(3), delay_policy).remaining(scene.at(3)) == 0


def test_delay_depends_on_the_size_of_the_pool() -> None:
    assert [RefillDelay.of(None, replicas).delay for replicas in (0, 1, 5, 10, 105, 100_000)] == [0, 0, 0, 0.1, 2, 2]
    assert RefillDelay.of(None, 100).reserve == 25
    assert RefillDelay.of(7, 100) == RefillDelay(7), "a delay that is given is kept as it is"


class ClaimedPool:
    """A pool of 300 with a derived delay, on a clock that stands still between its reconciles. Members that are created
    are there at once."""

    replicas = 300

    def __init__(self, scene: Scene, replenish_delay: float | None = None) -> None:
        self.scene = scene
        self.delay_policy = RefillDelay.of(replenish_delay, self.replicas)
        self.members = self.replicas
        self.timer = RefillTimer(self.replicas)
        self.most_missing = 0

    def reconcile(self, second: float, claims: int) -> int:
        """Reconcile after some claims and return how many members are created."""
        self.members -= claims
        self.most_missing = max(self.most_missing, self.replicas - self.members)
        now = self.scene.at(second)
        self.timer = self.timer.observe(self.members, self.replicas, now, self.delay_policy)
        state = RefillState(timer=self.timer)
        done = refill(
            self.replicas - self.members, expectations_met=True, refill_state=state, now=now, options=WarmPoolOptions()
        )
        self.timer = self.timer.changed(done.create)
        self.members += done.create
        return done.create


@pytest.mark.parametrize("per_second", [1, 10, 30, 50])
def test_derived_delay_does_not_apply_to_a_steady_load(scene: Scene, per_second: int) -> None:
    pool = ClaimedPool(scene)
    created = [pool.reconcile(number / per_second, 1) for number in range(20 * per_second)]
    assert created == [1] * len(created), "each claim is replaced at once, also the first"


def test_derived_delay_ends_when_a_heavy_load_turns_out_to_be_steady(scene: Scene) -> None:
    pool = ClaimedPool(scene)
    created = [pool.reconcile(number / 100, 1) for number in range(2000)]
    assert created[-1500:] == [1] * 1500
    assert pool.most_missing < 300, "the pool has not run empty meanwhile"


def test_derived_delay_applies_to_a_burst_until_its_last_claim(scene: Scene) -> None:
    pool = ClaimedPool(scene)
    assert [pool.reconcile(number / 100, 30) for number in range(7)] == [0] * 7
    assert pool.reconcile(2.05, 0) == 0
    assert pool.reconcile(2.06, 0) == 210, "two seconds after the last claim"


def test_burst_is_recognised_after_25_claims(scene: Scene) -> None:
    pool = ClaimedPool(scene)
    created = [pool.reconcile(number / 1000, 1) for number in range(200)]
    assert created[:25] == [1] * 25
    assert created[26:] == [0] * 174


def test_derived_delay_applies_to_each_burst_of_a_series(scene: Scene) -> None:
    pool = ClaimedPool(scene)
    for begin in range(0, 50, 10):
        assert pool.reconcile(begin, 200) == 0
        assert pool.reconcile(begin + 2, 0) == 200


def test_derived_delay_applies_to_a_burst_on_top_of_a_steady_load(scene: Scene) -> None:
    pool = ClaimedPool(scene)
    for number in range(200):
        pool.reconcile(number / 10, 1)
    assert pool.reconcile(20, 150) == 0
    assert pool.reconcile(22, 0) == 150


def test_configured_delay_applies_to_a_steady_load(scene: Scene) -> None:
    pool = ClaimedPool(scene, replenish_delay=2)
    assert [pool.reconcile(number, 1) for number in range(20)] == [0] * 20


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def failed(scene: Scene, times: int) -> CreationBreaker:
    breaker = CreationBreaker()
    for _ in range(times):
        breaker = breaker.attempted(CreationOutcome(0, "no"), scene.now)
    return breaker


def test_r27_breaker_opens_after_repeated_failures(scene: Scene) -> None:
    assert [failed(scene, times).is_open for times in range(5)] == [False, False, False, True, True]


def test_r27_pauses_grow_to_five_minutes(scene: Scene) -> None:
    pauses = [failed(scene, times).remaining(scene.now) for times in range(12)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert failed(scene, 5000).pause == 300


def test_r27_success_closes_the_breaker(scene: Scene) -> None:
    assert failed(scene, 7).attempted(CreationOutcome(1, ""), scene.now) == CreationBreaker()


def test_partial_success_resets_the_failure_count(scene: Scene) -> None:
    assert failed(scene, 7).attempted(CreationOutcome(3, "quota"), scene.now) == CreationBreaker(
        1, scene.at(1), "quota"
    )


def test_no_attempt_keeps_the_breaker(scene: Scene) -> None:
    assert failed(scene, 7).attempted(CreationOutcome(0, ""), scene.at(3)) == failed(scene, 7)


def test_pause_ends(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(1.5)) == 2.5
    assert failed(scene, 3).remaining(scene.at(4)) == 0


def test_clock_set_back_does_not_extend_the_pause(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(-3600)) == 4


def test_r23_pools_that_failed_together_resume_at_different_times(scene: Scene) -> None:
    waits = [
        failed(scene, 2).attempted(CreationOutcome(0, "no", jitter=jitter), scene.now).remaining(scene.now)
        for jitter in (0.0, 0.25, 0.5, 1.0)
    ]
    assert waits == [4, 3.5, 3, 2]


def test_retry_after_of_the_api_is_kept_in_full(scene: Scene) -> None:
    breaker = CreationBreaker().attempted(
        CreationOutcome(0, "too many requests", retry_after=30, jitter=0.9), scene.now
    )
    assert breaker.pause == breaker.remaining(scene.now) == 30
    assert breaker.attempted(CreationOutcome(0, "no"), scene.at(30)).remaining(scene.at(30)) == 2


def test_message_about_a_terminating_namespace_without_the_cause_does_not_open_the_breaker(scene: Scene) -> None:
    error = "unable to create new content in namespace team because it is being terminated"
    breaker = CreationBreaker().attempted(CreationOutcome(0, error), scene.now)
    assert not breaker.is_open
    assert breaker.pause == 1


def test_terminating_namespace_opens_the_breaker_at_once_for_the_longest_pause(scene: Scene) -> None:
    breaker = CreationBreaker().attempted(CreationOutcome(2, "forbidden", namespace_terminating=True), scene.now)
    assert breaker.is_open
    assert breaker.pause == breaker.remaining(scene.now) == 300
    assert breaker.attempted(CreationOutcome(1, ""), scene.at(300)) == CreationBreaker()


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_edge_30_no_limit_keeps_no_state(scene: Scene) -> None:
    assert take(TokenBucket(0, scene.now), 300, 0, scene.now) == TokenGrant(300, None)


def test_bucket_starts_full_and_holds_one_second(scene: Scene) -> None:
    assert take(None, 300, 10, scene.now) == TokenGrant(10, TokenBucket(0, scene.now))
    assert take(None, 4, 10, scene.now) == TokenGrant(4, TokenBucket(6, scene.now))


def test_tokens_are_refilled_with_time(scene: Scene) -> None:
    bucket = TokenBucket(0, scene.now)
    assert take(bucket, 300, 10, scene.at(0.5)).count == 5
    assert take(bucket, 300, 10, scene.at(60)).count == 10


def test_empty_bucket_returns_the_wait(scene: Scene) -> None:
    assert take(TokenBucket(0.5, scene.now), 3, 2, scene.now) == TokenGrant(0, TokenBucket(0.5, scene.now), 0.25)


def test_edge_30_bucket_of_a_fractional_rate_holds_one_token(scene: Scene) -> None:
    grant = take(None, 3, 0.1, scene.now)
    assert grant == TokenGrant(1, TokenBucket(0, scene.now))
    assert take(grant.bucket, 2, 0.1, scene.now).wait == 10
    assert take(grant.bucket, 2, 0.1, scene.at(1000)).count == 1


@pytest.mark.parametrize("rate", [1e18, 1e300, 1.7e308])
def test_edge_30_huge_rates_do_not_overflow(scene: Scene, rate: float) -> None:
    assert take(TokenBucket(0, scene.now), 300, rate, scene.at(10**6)).count == 300


def test_clock_set_back_takes_no_tokens(scene: Scene) -> None:
    assert take(TokenBucket(3, scene.now), 300, 10, scene.at(-3600)).count == 3


@given(rate=st.floats(0.01, 500), steps=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=30))
def test_rate_is_never_exceeded(rate: float, steps: list[tuple[float, int]]) -> None:
    bucket: TokenBucket | None = None
    start = now = datetime.fromisoformat("2026-11-01T12:00:00Z")
    created = 0
    for elapsed, wanted in steps:
        now += timedelta(seconds=elapsed)
        grant = take(bucket, wanted, rate, now)
        created += grant.count
        assert created <= max(1, rate) + rate * (now - start).total_seconds() + 1e-6
        if grant.wait is not None:  # having waited, there is one
            assert take(grant.bucket, wanted, rate, now + timedelta(seconds=grant.wait + 1e-6)).count >= 1
        bucket = grant.bucket
