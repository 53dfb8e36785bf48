"""Which members are taking too long to become ready, and what to do about it.

A member gets a grace period. After that it is replaced, unless its pod found no node to run on: a replacement would
find none either, and replacing it again and again would only bother the scheduler, so it is kept and reported.

The grace period starts when the member was created or, if that was later, when its pod found a node: one that waited
for that for hours is not given up the moment it can start. If the member was ready before, it starts when it ceased to
be: a whole pool that loses its network for a moment is left alone. A member whose pod has ended is not waited for; it
never comes back.

When a member was created is what the API's clock says, and the rest is what ours says. If the two differ by more than
the grace period, every new member would be late from the start and be replaced at once, on and on. So a member made by
this process is not older than it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from sandpool.api.conditions import FALSE, FINISHED, POD_SCHEDULED, READY, TRUE, UNSCHEDULABLE
from sandpool.api.views import PodView, SandboxView, parse_time

# A wake-up at the very end of the grace period might find it not quite over.
_WAKE_MARGIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    kept: tuple[SandboxView, ...]  # ready, or still within grace, or unschedulable
    stuck: tuple[SandboxView, ...]  # to be replaced
    unschedulable: int  # of those that are kept
    wake: float | None  # seconds until the next member runs out of grace


def assess(
    members: Iterable[SandboxView],
    pod_of: Callable[[SandboxView], PodView | None],
    now: datetime,
    grace: float,
    made: Mapping[str, datetime] = MappingProxyType({}),
) -> Readiness:
    """``made`` is when this process made members, by UID."""
    kept: list[SandboxView] = []
    stuck: list[SandboxView] = []
    unschedulable = 0
    wake: float | None = None
    for member in members:
        since = None if member.ready else _not_ready_since(member)
        if since is None:
            kept.append(member)
            continue
        remaining = grace - (now - max(since, made.get(member.uid, since))).total_seconds()
        if remaining >= 0:
            wake = min(remaining + _WAKE_MARGIN, wake or float("inf"))
            kept.append(member)
        elif _is_unschedulable(pod := pod_of(member)):
            unschedulable += 1
            kept.append(member)
        elif _has_found_a_node(member, pod):
            wake = min(_WAKE_MARGIN, wake or float("inf"))
            kept.append(member)
        else:
            stuck.append(member)
    return Readiness(tuple(kept), tuple(stuck), unschedulable, wake)


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
    """Whether that happened only now, so that the member's status does not say yet since when it has one."""
    if pod is None or pod.deleting:
        return False
    scheduled = member.status.condition(POD_SCHEDULED)
    return scheduled is not None and (scheduled["status"], scheduled["reason"]) == (FALSE, UNSCHEDULABLE)
