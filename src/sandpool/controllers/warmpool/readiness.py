"""Which members take too long to become ready, and whether the pool makes progress.

A member has a grace period. After it the member is replaced, unless its pod is unschedulable: a replacement would be
too, and replacing it repeatedly would only load the scheduler. Such a member is kept and reported.

The grace period starts at the creation of the member or, if later, when its pod was scheduled: a pod that waited for a
node for hours is not given up the moment it can start. If the member was ready before, it starts when it ceased to be:
a whole pool that loses its network for a moment is left alone. A member whose pod has ended gets no grace, since it
never recovers.

The creation time is from the clock of the API, all others from ours. If the two differ by more than the grace period,
every new member would be late from the start and be replaced at once, for ever. So the creation time that this process
remembers for its own members wins if it is later.

``member_problem`` says why a member is not ready, as far as waiting alone does not resolve it.

``Progress`` lets automation distinguish a failing template from a slow one. It has no deadline of its own. The pool has
stalled when a member of the current template did not become ready within its grace period. It stays stalled although
that member is replaced, until more members are good than before, or all are, or the template changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from sandpool.api.conditions import (
    FALSE,
    FINISHED,
    POD_SCHEDULED,
    PROGRESS_DEADLINE_EXCEEDED,
    PROGRESSING,
    READY,
    RECONCILER_ERROR,
    TRUE,
    UNSCHEDULABLE,
    find_condition,
)
from sandpool.api.views import PodView, SandboxView, WarmPoolStatus, parse_time

# A reconcile at the very end of the grace period might find it not quite over.
_RECHECK_MARGIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Members sorted by readiness."""

    kept: tuple[SandboxView, ...]  # ready, within grace, or unschedulable
    stuck: tuple[SandboxView, ...]  # to be replaced
    unschedulable: int  # among the kept ones
    recheck_after: float | None  # seconds until the next member exceeds its grace period
    problem: str = ""  # of the first member that has one; empty if none has


def assess_readiness(
    members: Iterable[SandboxView],
    pod_of: Callable[[SandboxView], PodView | None],
    now: datetime,
    grace: float,
    created_at: Mapping[str, datetime] = MappingProxyType({}),
) -> Readiness:
    """``created_at`` has the creation times, by UID, of members that this process created."""
    kept: list[SandboxView] = []
    stuck: list[SandboxView] = []
    unschedulable = 0
    recheck_after: float | None = None
    problems: list[tuple[str, str]] = []
    for member in members:
        if member.status.ready:
            kept.append(member)
            continue
        if problem := member_problem(member, pod_of(member)):
            problems.append((member.name, problem))
        if (since := _not_ready_since(member)) is None:
            kept.append(member)
            continue
        remaining = grace - (now - max(since, created_at.get(member.uid, since))).total_seconds()
        if remaining >= 0:
            recheck_after = min(remaining + _RECHECK_MARGIN, recheck_after or float("inf"))
            kept.append(member)
        elif _is_unschedulable(pod := pod_of(member)):
            unschedulable += 1
            kept.append(member)
        elif _has_found_a_node(member, pod):
            recheck_after = min(_RECHECK_MARGIN, recheck_after or float("inf"))
            kept.append(member)
        else:
            stuck.append(member)
    return Readiness(tuple(kept), tuple(stuck), unschedulable, recheck_after, min(problems, default=("", ""))[1])


def member_problem(member: SandboxView, pod: PodView | None) -> str:
    """The reason why a member is not ready; empty if it is just starting. The text is stable while the reason is."""
    ready = member.status.condition(READY)
    if ready is not None and ready["reason"] == RECONCILER_ERROR:
        return str(ready["message"])  # a quota, for example
    if pod is None or pod.deleting:
        return ""
    if pod.unschedulable and pod.scheduling is not None:
        return pod.scheduling.message
    if pod.last_end is not None:
        return pod.last_end.describe()
    return pod.waiting or (f"{pod.reason}: {pod.message}" if pod.reason else "")


def _not_ready_since(member: SandboxView) -> datetime | None:
    created = member.creation_timestamp
    ready = member.status.condition(READY)
    if created is None or ready is None:
        return created
    finished = member.status.condition(FINISHED)
    if finished is not None and finished["status"] == TRUE:
        return created
    since = max(created, parse_time(ready["lastTransitionTime"]) or created)
    scheduled = member.status.condition(POD_SCHEDULED)
    if scheduled is None or scheduled["status"] != TRUE:
        return since
    return max(since, parse_time(scheduled["lastTransitionTime"]) or since)


def _is_unschedulable(pod: PodView | None) -> bool:
    return pod is not None and not pod.deleting and pod.unschedulable


def _has_found_a_node(member: SandboxView, pod: PodView | None) -> bool:
    """Whether the pod was scheduled only now, so that the status of the member does not show since when yet."""
    if pod is None or pod.deleting:
        return False
    scheduled = member.status.condition(POD_SCHEDULED)
    return scheduled is not None and (scheduled["status"], scheduled["reason"]) == (FALSE, UNSCHEDULABLE)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a pool towards its template."""

    target: str = ""  # hash of the template revision; empty if none was seen yet
    good: int = 0  # number of good members
    has_stalled: bool = False

    @classmethod
    def restored(cls, status: WarmPoolStatus) -> Progress:
        """The state that a predecessor of this process left in the status of the pool."""
        condition = find_condition(status.conditions, PROGRESSING)
        has_stalled = condition is not None and condition["reason"] == PROGRESS_DEADLINE_EXCEEDED
        return cls(has_stalled=has_stalled)

    def observe(self, target: str, *, good: int, desired: int, stuck: int) -> Progress:
        """``stuck`` is the number of members of the current template that exceeded their grace period."""
        if good >= desired or (target == self.target and good > self.good):
            has_stalled = False
        else:
            has_stalled = stuck > 0 or (self.target in ("", target) and self.has_stalled)
        return Progress(target, good, has_stalled)
