"""One pass over a pool: from what is seen to what should be written.

The steps, each in a file of its own: who the members are, which of them are stale, which are stuck, which orphans to
take in, then to give some up or to create some, and what to say about all that. What a plan deletes still takes up room
in the same pass; replacements come when it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sandpool.api import events
from sandpool.api.events import Happening
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.views import PodView, SandboxView, WarmPoolView
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.breaker import Breaker
from sandpool.controllers.warmpool.hold import Patience
from sandpool.controllers.warmpool.members import adoption, deletion, repair, sort_members
from sandpool.controllers.warmpool.memory import Memory
from sandpool.controllers.warmpool.orphans import vet
from sandpool.controllers.warmpool.readiness import assess
from sandpool.controllers.warmpool.resize import resize
from sandpool.controllers.warmpool.rollout import Bounds
from sandpool.controllers.warmpool.staleness import Staleness
from sandpool.controllers.warmpool.status import Census, Circumstances, status_of, status_patch
from sandpool.controllers.writer import Delete, Patch

# Members of many pools that were created together run out of grace together. Their pools wake up apart, each later by
# up to this share of its wait.
_JITTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """What a pass looks at."""

    pool: WarmPoolView
    sandboxes: Iterable[SandboxView]  # those the pool owns and those with its label
    revision: TemplateRevision | None  # None: there is no such template
    pod_of: Callable[[SandboxView], PodView | None]
    now: datetime
    pending_deletions: Set[str] = frozenset()  # UIDs of members that we deleted and have not seen go
    settled: bool = True  # nothing we created or deleted has yet to be seen
    chance: float = 0.0  # a random number from 0 to 1
    made: Mapping[str, datetime] = field(default_factory=dict)  # when this process made members, by UID


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write. Creations are expected before deletions are: both were decided on one view of the pool, and once
    a deletion is outstanding the books allow no creation."""

    memory: Memory
    patches: tuple[Patch, ...] = ()  # of members: labels put right, orphans adopted
    discard: tuple[Delete, ...] = ()  # of orphans, which nobody keeps books of
    delete: tuple[Delete, ...] = ()  # of members; each is expected before it is asked for
    create: int = 0  # members, each a ``new_member`` with a name of its own, in batches of ``slow_start`` sizes
    status: Patch | None = None
    events: tuple[Happening, ...] = ()
    requeue: float | None = None  # seconds after which to look again if nothing happens before


def plan(seen: Seen, settings: WarmPoolOptions, memory: Memory) -> Plan:
    pool = seen.pool
    if pool.deleting:
        return Plan(memory)

    staleness = None if seen.revision is None else Staleness(seen.revision)
    members = sort_members(pool, seen.sandboxes, seen.pending_deletions)
    outdated = {member.uid for member in members.owned if staleness is not None and staleness.is_stale(member)}
    replaced = [member for member in members.owned if pool.strategy == RECREATE and member.uid in outdated]
    others = [member for member in members.owned if pool.strategy != RECREATE or member.uid not in outdated]
    readiness = assess(others, seen.pod_of, seen.now, settings.readiness_grace_period, seen.made)
    terminating = members.terminating + len(replaced) + len(readiness.stuck)
    orphans = vet(
        members.orphans,
        staleness,
        missing=pool.replicas - len(readiness.kept),
        terminating=terminating,
        settled=seen.settled,
    )

    active = (*readiness.kept, *orphans.adopt)
    census = _count(active, outdated if staleness is not None else None, readiness.unschedulable)
    memory = _remember(memory, seen, settings, census, [each for each in readiness.stuck if each.uid not in outdated])
    resized = resize(
        pool,
        active,
        outdated=outdated,
        terminating=terminating,
        has_template=staleness is not None,
        settled=seen.settled,
        supply=memory.supply,
        now=seen.now,
        settings=settings,
    )
    status, status_wait = _status(seen, settings, memory, census)
    wake = None if readiness.wake is None else readiness.wake * (1 + _JITTER * seen.chance)
    recheck = settings.unschedulable_recheck_interval if census.unschedulable else None
    repairs = (repair(member, pool) for member in readiness.kept)
    return Plan(
        memory=replace(
            memory,
            supply=resized.supply,
            has_warned=census.unschedulable > 0,
            status_written=memory.status_written if status is None else seen.now,
        ),
        patches=(
            *(patch for patch in repairs if patch is not None),
            *(adoption(orphan, pool) for orphan in orphans.adopt),
        ),
        discard=tuple(deletion(orphan) for orphan in orphans.discard),
        delete=tuple(deletion(member) for member in (*replaced, *readiness.stuck, *resized.delete)),
        create=resized.create,
        status=status,
        events=_news(pool, census, memory, settings),
        requeue=min((wait for wait in (wake, recheck, resized.wait, status_wait) if wait is not None), default=None),
    )


def _count(active: Sequence[SandboxView], outdated: Set[str] | None, unschedulable: int) -> Census:
    """``outdated`` None: there is no template, so nobody is of the current one."""
    current = [] if outdated is None else [member for member in active if member.uid not in outdated]
    return Census(
        members=len(active),
        ready=sum(member.ready for member in active),
        current=len(current),
        current_ready=sum(member.ready for member in current),
        unschedulable=unschedulable,
    )


def _remember(
    memory: Memory, seen: Seen, settings: WarmPoolOptions, census: Census, stuck: Sequence[SandboxView]
) -> Memory:
    """The memory with what this pass sees, before anything is decided."""
    pool = seen.pool
    patience = Patience.of(settings.replenish_delay, pool.replicas)
    hold = memory.supply.hold.observe(census.members, pool.replicas, seen.now, patience)
    memory = replace(memory, supply=replace(memory.supply, hold=hold))
    if seen.revision is None:
        return memory
    good = census.current_ready if _is_replacing(pool) else census.ready
    target = seen.revision.hash
    progress = memory.progress.observe(target, good=good, desired=pool.replicas, stuck=len(stuck))
    supply = memory.supply
    if memory.progress.target not in ("", target):
        # Whatever kept creation from succeeding may have been the template.
        supply = replace(supply, breaker=Breaker())
    return replace(memory, progress=progress, supply=supply)


def _status(seen: Seen, settings: WarmPoolOptions, memory: Memory, census: Census) -> tuple[Patch | None, float | None]:
    """The patch of the status, or how long to wait with it: a burst of claims changes the counts many times a second,
    and nobody reads them that often."""
    pool = seen.pool
    circumstances = Circumstances(
        replaces=_is_replacing(pool),
        has_template=seen.revision is not None,
        breaker=memory.supply.breaker,
        has_stalled=memory.progress.has_stalled,
        grace=settings.readiness_grace_period,
        needed=pool.replicas - Bounds.of(pool).unavailable,
    )
    body = status_patch(pool.status, status_of(pool, census, circumstances, seen.now))
    if body is None:
        return None, None
    if memory.status_written is not None:
        wait = settings.status_interval - (seen.now - memory.status_written).total_seconds()
        if 0 < wait <= settings.status_interval:
            return None, wait
    return Patch(SANDBOX_WARM_POOL, pool.name, body, "status"), None


def _news(pool: WarmPoolView, census: Census, memory: Memory, settings: WarmPoolOptions) -> tuple[Happening, ...]:
    """The pool is held up by members that find no node, or no longer is; said once each time."""
    if (census.unschedulable > 0) is memory.has_warned:
        return ()
    if memory.has_warned:
        return (events.warm_pool_progressing(),)
    grace = settings.readiness_grace_period
    return (events.warm_pool_not_progressing(census.unschedulable, pool.replicas, grace),)


def _is_replacing(pool: WarmPoolView) -> bool:
    """Whether outdated members are replaced; otherwise they are as good as any."""
    return pool.strategy in (RECREATE, ROLLING_UPDATE)
