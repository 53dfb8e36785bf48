"""Decides what a pool needs: from the observed members to the writes of one reconcile.

The steps: sort the members, find outdated and stuck ones, choose orphans to adopt, delete or create members, compute
the status. Members that a plan deletes still take up room in the same reconcile; replacements follow when they are
gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sandpool.api import events
from sandpool.api.conditions import PROGRESSING, READY, SIZE_LIMITED, UNSCHEDULABLE, find_condition
from sandpool.api.events import EventSpec
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.views import PodView, SandboxView, WarmPoolStatus, WarmPoolView
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.members import (
    RevisionComparison,
    adoption,
    deletion,
    plan_orphans,
    repairs,
    sort_members,
)
from sandpool.controllers.warmpool.readiness import Progress, assess_readiness, member_problem
from sandpool.controllers.warmpool.rollout import RolloutBounds, step
from sandpool.controllers.warmpool.scaling import (
    CreationBreaker,
    CreationOutcome,
    RefillDelay,
    RefillState,
    least_useful,
    refill,
)
from sandpool.controllers.warmpool.status import MemberCounts, SizeLimit, StatusInputs, next_status, status_patch
from sandpool.controllers.writer import Delete, Patch

# Members of many pools that were created together exceed their grace period together. Their pools are enqueued apart,
# each later by up to this share of its delay.
_JITTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a reconcile reads."""

    pool: WarmPoolView
    sandboxes: Iterable[SandboxView]  # owned by the pool or with its label
    revision: TemplateRevision | None  # None: the template does not exist
    pod_of: Callable[[SandboxView], PodView | None]
    now: datetime
    pending_deletions: Set[str] = frozenset()  # UIDs of members that we deleted and that are still visible
    expectations_met: bool = True  # all expected creations and deletions have been observed
    jitter: float = 0.0  # random number from 0 to 1
    created_at: Mapping[str, datetime] = field(
        default_factory=dict
    )  # creation times of members of this process, by UID
    limit: SizeLimit | None = None  # of the namespace, if ``pool`` has fewer replicas than its object because of it


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of a reconcile. Creations are expected before deletions: both were decided on one view of the pool,
    and while a deletion is outstanding no creation can be expected."""

    state: PoolState
    patches: tuple[Patch, ...] = ()  # of members: repaired labels, adopted orphans
    discard: tuple[Delete, ...] = ()  # of orphans, whose deletion is not expected
    delete: tuple[Delete, ...] = ()  # of members; each deletion is expected before its request
    create: int = 0  # number of members, created in batches of ``slow_start`` sizes
    status: Patch | None = None
    events: tuple[EventSpec, ...] = ()
    requeue: float | None = None  # seconds until the next reconcile if no event comes before


def plan(observed: Observed, options: WarmPoolOptions, state: PoolState) -> Plan:
    pool = observed.pool
    if pool.deleting:
        return Plan(state)

    comparison = None if observed.revision is None else RevisionComparison(observed.revision)
    members = sort_members(pool, observed.sandboxes, observed.pending_deletions)
    outdated = comparison.outdated(members.owned) if comparison is not None else set()
    replaced = [each for each in members.owned if each.uid in outdated and _is_replaced_at_once(each, observed)]
    gone = {member.uid for member in replaced}
    others = [member for member in members.owned if member.uid not in gone]
    readiness = assess_readiness(
        others, observed.pod_of, observed.now, options.readiness_grace_period, observed.created_at
    )
    terminating = members.terminating + len(replaced) + len(readiness.stuck)
    orphans = plan_orphans(
        members.orphans,
        comparison,
        missing=pool.replicas - len(readiness.kept),
        terminating=terminating,
        expectations_met=observed.expectations_met,
    )

    active = (*readiness.kept, *orphans.adopt)
    counts = _count(active, outdated if comparison is not None else None, readiness.unschedulable)
    state = _update_state(
        state, observed, options, counts, [each for each in readiness.stuck if each.uid not in outdated]
    )
    resized = resize(
        pool,
        active,
        outdated=outdated,
        terminating=terminating,
        has_template=comparison is not None,
        expectations_met=observed.expectations_met,
        refill_state=state.refill_state,
        now=observed.now,
        options=options,
    )
    status, status_wait = _status(observed, options, state, counts, readiness.problem)
    readiness_recheck = (
        None if readiness.recheck_after is None else readiness.recheck_after * (1 + _JITTER * observed.jitter)
    )
    recheck = options.unschedulable_recheck_interval if counts.unschedulable else None
    return Plan(
        state=replace(
            state,
            refill_state=resized.refill_state,
            has_warned=counts.unschedulable > 0,
            is_limited=observed.limit is not None,
            status=pool.status,
            status_written=state.status_written if status is None else observed.now,
        ),
        patches=(
            *repairs(readiness.kept, pool),
            *(adoption(orphan, pool) for orphan in orphans.adopt),
        ),
        discard=tuple(deletion(orphan) for orphan in orphans.discard),
        delete=tuple(deletion(member) for member in (*replaced, *readiness.stuck, *resized.delete)),
        create=resized.create,
        status=status,
        events=(*_events(pool, counts, state, options), *_limit_events(observed.limit, state)),
        requeue=min(
            (wait for wait in (readiness_recheck, recheck, resized.wait, status_wait) if wait is not None), default=None
        ),
    )


def _is_replaced_at_once(member: SandboxView, observed: Observed) -> bool:
    """Whether a member of a former template is deleted without waiting for a claim or a step of the rollout.

    A member that is not ready is of no use to claims, and the template was probably changed to mend that. One that has
    just begun to start has no status yet, and stays. A rolling update keeps members that might recover, because its
    bounds count them; those with a problem do not.
    """
    if observed.pool.strategy == RECREATE:
        return True
    if member.ready:
        return False
    if observed.pool.strategy != ROLLING_UPDATE and member.status.condition(READY) is not None:
        return True
    return bool(member_problem(member, observed.pod_of(member)))


def _count(active: Sequence[SandboxView], outdated: Set[str] | None, unschedulable: int) -> MemberCounts:
    """``outdated`` None: there is no template, so no member is current."""
    current = [] if outdated is None else [member for member in active if member.uid not in outdated]
    return MemberCounts(
        members=len(active),
        ready=len([member for member in active if member.status.ready]),
        current=len(current),
        current_ready=len([member for member in current if member.status.ready]),
        unschedulable=unschedulable,
    )


def _update_state(
    state: PoolState, observed: Observed, options: WarmPoolOptions, counts: MemberCounts, stuck: Sequence[SandboxView]
) -> PoolState:
    """The state with the observations of this reconcile, before any decision."""
    pool = observed.pool
    delay_policy = RefillDelay.of(options.replenish_delay, pool.replicas)
    timer = state.refill_state.timer.observe(counts.members, pool.replicas, observed.now, delay_policy)
    state = replace(state, refill_state=replace(state.refill_state, timer=timer))
    if observed.revision is None:
        return state
    good = counts.current_ready if _is_replacing(pool) else counts.ready
    target = observed.revision.hash
    progress = state.progress.observe(target, good=good, desired=pool.replicas, stuck=len(stuck))
    refill_state = state.refill_state
    if state.progress.target not in ("", target):
        # The former template may have been the reason why creations failed.
        refill_state = replace(refill_state, breaker=CreationBreaker())
    return replace(state, progress=progress, refill_state=refill_state)


def _status(
    observed: Observed, options: WarmPoolOptions, state: PoolState, counts: MemberCounts, problem: str
) -> tuple[Patch | None, float | None]:
    """The patch of the status, or how long to delay it: a burst of claims changes the counts many times a second, and
    no client reads them that often."""
    pool = observed.pool
    inputs = StatusInputs(
        replaces=_is_replacing(pool),
        has_template=observed.revision is not None,
        breaker=state.refill_state.breaker,
        has_stalled=state.progress.has_stalled,
        grace=options.readiness_grace_period,
        needed=pool.replicas - RolloutBounds.of(pool).unavailable,
        problem=problem,
        limit=observed.limit,
    )
    body = status_patch(pool.status, next_status(pool, counts, inputs, observed.now))
    if body is None:
        return None, None
    if state.status_written is not None:
        wait = options.status_interval - (observed.now - state.status_written).total_seconds()
        if 0 < wait <= options.status_interval:
            return None, wait
    return Patch(SANDBOX_WARM_POOL, pool.name, body, "status"), None


def _events(
    pool: WarmPoolView, counts: MemberCounts, state: PoolState, options: WarmPoolOptions
) -> tuple[EventSpec, ...]:
    """Events when unschedulable members begin or cease to hold up the pool, once each."""
    if (counts.unschedulable > 0) is state.has_warned:
        return ()
    if state.has_warned:
        return (events.warm_pool_progressing(),)
    grace = options.readiness_grace_period
    return (events.warm_pool_not_progressing(counts.unschedulable, pool.replicas, grace),)


def _limit_events(limit: SizeLimit | None, state: PoolState) -> tuple[EventSpec, ...]:
    return () if limit is None or state.is_limited else (events.warm_pool_limited(limit.message),)


def _is_replacing(pool: WarmPoolView) -> bool:
    """Whether outdated members are replaced; otherwise they are as good as current ones."""
    return pool.strategy in (RECREATE, ROLLING_UPDATE)


@dataclass(frozen=True, slots=True)
class Resize:
    """Members to delete and to create."""

    refill_state: RefillState
    delete: tuple[SandboxView, ...]
    create: int
    wait: float | None


def resize(
    pool: WarmPoolView,
    members: Sequence[SandboxView],
    *,
    outdated: Set[str],
    terminating: int,
    has_template: bool,
    expectations_met: bool,
    refill_state: RefillState,
    now: datetime,
    options: WarmPoolOptions,
) -> Resize:
    """Choose the members to delete and how many to create, by the strategy of the pool.

    ``members`` are those that stay otherwise, ``outdated`` the UIDs among them of a former template.
    """
    population = len(members) + terminating
    old = [member for member in members if member.uid in outdated]
    if pool.strategy == ROLLING_UPDATE and old:
        current = [member for member in members if member.uid not in outdated]
        rollout = step(pool.replicas, RolloutBounds.of(pool), old, current, limit=options.max_batch_size)
        removed = rollout.delete
        missing = min(pool.replicas - len(current), rollout.ceiling - population)
    else:
        removed = tuple(least_useful(members, min(len(members) - pool.replicas, options.max_batch_size)))
        missing = pool.replicas - population
    refilled = refill(
        missing if has_template else 0,
        expectations_met=expectations_met,
        refill_state=refill_state,
        now=now,
        options=options,
    )
    if not removed:
        return Resize(refilled.refill_state, (), refilled.create, refilled.wait)
    if not expectations_met:
        return Resize(refill_state, (), 0, options.expectations_recheck_interval)
    # These were not claimed, so they do not delay the refill.
    timer = refilled.refill_state.timer.changed(-len(removed))
    return Resize(replace(refilled.refill_state, timer=timer), removed, refilled.create, refilled.wait)


@dataclass(frozen=True, slots=True)
class PoolState:
    """State of a pool that is kept from one reconcile to the next and dropped with the pool."""

    refill_state: RefillState = field(default_factory=RefillState)
    progress: Progress = field(default_factory=Progress)
    has_warned: bool = False  # about unschedulable members
    is_limited: bool = False  # the limit of the namespace keeps it smaller, which an event has reported
    status: WarmPoolStatus | None = None  # as the last reconcile saw it or wrote it
    status_written: datetime | None = None

    @classmethod
    def restored(cls, pool: WarmPoolView) -> PoolState:
        """The state of a process that sees the pool for the first time. Events that its predecessor emitted show in the
        status of the pool and are not repeated."""
        condition = find_condition(pool.status.conditions, PROGRESSING)
        reason = "" if condition is None else condition["reason"]
        return cls(
            progress=Progress.restored(pool.status),
            has_warned=reason == UNSCHEDULABLE,
            is_limited=reason == SIZE_LIMITED,
        )

    def attempted(self, attempt: CreationOutcome, now: datetime) -> PoolState:
        return replace(self, refill_state=self.refill_state.attempted(attempt, now))
