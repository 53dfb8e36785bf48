"""Expiry of a sandbox: first the status, then pod and Service are deleted, and by policy the Sandbox itself.

These are two reconciles. A client that sees the pod vanish can therefore read why, and a controller that stops in
between continues from the status.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sandpool.api.conditions import (
    FALSE,
    FINISHED,
    POD_SCHEDULED,
    READY,
    SANDBOX_EXPIRED,
    STATE_LOST,
    SUSPENDED,
    observe_generation,
    remove_condition,
    set_condition,
)
from sandpool.api.kinds import POD, SANDBOX, SERVICE
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxStatus, SandboxView, ServiceView
from sandpool.controllers.sandbox.status import status_patch
from sandpool.controllers.writer import Delete

#: The second reconcile follows immediately.
IMMEDIATELY: Final = timedelta(milliseconds=1)
#: Shortest delay until the next check of the clock.
_SHORTEST_WAIT: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """``children`` are deleted first; one that is gone already counts as deleted. Then either the sandbox is deleted,
    whatever the result for the children, which go with it; or the status is written if all children could be deleted.
    """

    children: tuple[Delete, ...]
    sandbox: Delete | None
    status_patch: Object | None


def has_expired(sandbox: SandboxView, now: datetime) -> bool:
    return sandbox.shutdown_time is not None and now >= sandbox.shutdown_time


def is_marked_expired(sandbox: SandboxView) -> bool:
    """Whether the status shows the expiry."""
    return sandbox.status.reason(READY) == SANDBOX_EXPIRED[0]


def time_to_expiry(sandbox: SandboxView, now: datetime) -> timedelta | None:
    """Delay until the next check of the clock."""
    return None if sandbox.shutdown_time is None else max(sandbox.shutdown_time - now, _SHORTEST_WAIT)


def mark_expired(sandbox: SandboxView, status: SandboxStatus, now: str) -> SandboxStatus:
    """The status with Ready=False because of expiry. Suspended and Finished keep what they show of the time before,
    at the generation that was observed now."""
    conditions = remove_condition(status.conditions, POD_SCHEDULED)
    conditions = observe_generation(conditions, (SUSPENDED, FINISHED, STATE_LOST), sandbox.generation)
    conditions = set_condition(
        conditions, READY, FALSE, *SANDBOX_EXPIRED, observed_generation=sandbox.generation, now=now
    )
    return replace(status, conditions=conditions)


def plan_expiry(
    sandbox: SandboxView, owned_pods: Iterable[PodView], service: ServiceView | None, now: str
) -> ExpiryPlan:
    """Plan the second reconcile. Volumes are kept: a retained sandbox may be given more time."""
    children = [Delete(POD, pod.name, pod.uid) for pod in owned_pods if not pod.deleting]
    if service is not None and service.controlled_by(sandbox) and not service.deleting:
        children.append(Delete(SERVICE, service.name, service.uid))
    if sandbox.deleted_on_expiry:
        return ExpiryPlan(tuple(children), Delete(SANDBOX, sandbox.name, sandbox.uid), None)
    expired = mark_expired(sandbox, sandbox.status, now)
    return ExpiryPlan(tuple(children), None, status_patch(sandbox.status, SandboxStatus(conditions=expired.conditions)))
