"""Decides what a sandbox needs: the steps for its children, and the status that follows from them.

A reconcile decides twice. ``plan`` returns the writes for the children. The controller performs them and reports the
results in ``PerformResult``. ``compute_status`` then returns the status, which depends on both. Steps are independent:
an error of the volumes does not keep the controller from handling the pod, and the status shows all errors together.

Some writes may be delayed, so that several changes become one request. The delay counts from the moment at which the
write was first needed; finding the need again does not extend it, or a busy object would never be written. Only that
moment is remembered, and the write is computed from the state at the end of the delay. A restart forgets the moment,
so the write is delayed once more and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from sandpool.api.conditions import MULTIPLE_PODS, READY, multiple_pods_message
from sandpool.api.events import EventSpec, multiple_pods, state_lost
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import PodView, SandboxStatus, SandboxView, ServiceView, VolumeClaimView
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.sandbox import state_loss
from sandpool.controllers.sandbox.expiry import (
    IMMEDIATELY,
    ExpiryPlan,
    has_expired,
    is_marked_expired,
    mark_expired,
    plan_expiry,
    time_to_expiry,
)
from sandpool.controllers.sandbox.pod import PodPlan, owned_pods, plan_pod, shows
from sandpool.controllers.sandbox.service import ServicePlan, plan_service
from sandpool.controllers.sandbox.state_loss import StateLoss
from sandpool.controllers.sandbox.status import ChildrenState, is_urgent, status, status_patch
from sandpool.controllers.sandbox.volumes import VolumesPlan, plan_volumes
from sandpool.controllers.writer import Create

#: Upper bound of the delay for labels of pods, since network policies select by them.
LONGEST_WRITE_BEHIND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class PendingWrites:
    """Delayed writes of one sandbox: since when the metadata of its pod and its own status are due."""

    pod: datetime | None = None
    status: datetime | None = None


def remaining_delay(since: datetime | None, window: timedelta, now: datetime) -> timedelta:
    """Remaining delay of a write that is needed since ``since``, or since now if that is None. Zero: write."""
    return max(timedelta(0), (since or now) + window - now)


def write_behind_window(asked_for: timedelta) -> timedelta:
    return min(asked_for, LONGEST_WRITE_BEHIND)


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a reconcile reads. All but the sandbox may be missing or belong to another owner; the plan decides."""

    sandbox: SandboxView
    pods: tuple[PodView, ...] = ()  # owned by the UID of the sandbox
    tracked_pod: PodView | None = None  # named sandbox.pod_name
    service: ServiceView | None = None  # of the sandbox's name
    volume_claims: Mapping[str, VolumeClaimView] = field(default_factory=dict)  # by name
    waiting: PendingWrites = field(default_factory=PendingWrites)  # from the last reconcile
    in_use_since: datetime | None = None  # None: no client can have used the sandbox


@dataclass(frozen=True, slots=True)
class ChildrenPlan:
    """Steps for a sandbox that is to run, in order: volumes, pod, Service."""

    volumes: VolumesPlan
    pod: PodPlan
    service: ServicePlan | None  # None: leave it as it is
    pod_waits: timedelta | None = None  # remaining delay of the write of the pod, which is left out here

    @property
    def creates(self) -> bool:
        """Whether the plan creates any object."""
        service = None if self.service is None else self.service.write
        return Create in {type(write) for write in (*self.volumes.writes, self.pod.write, service)}


@dataclass(frozen=True, slots=True)
class PerformResult:
    """Results of the steps: the pod as the API answered, or else as planned, and the errors."""

    pod: PodView | None = None
    volumes_error: str = ""
    pod_error: str = ""
    service_error: str = ""
    retry_after: float = 0.0  # seconds the API asked us to wait
    namespace_terminating: bool = False  # cause of one of the errors


@dataclass(frozen=True, slots=True)
class StatusPlan:
    status_patch: Object | None = None  # of the status subresource
    status: SandboxStatus | None = field(default=None, compare=False)  # after the patch; None if not computed
    event: EventSpec | None = None
    loss: EventSpec | None = None  # an event for the sandbox and its claim
    errors: tuple[str, ...] = ()  # to be retried with back-off
    retry_after: float = 0.0  # seconds the API asked us to wait before that
    namespace_terminating: bool = False  # cause of one of the errors
    requeue_after: timedelta | None = None
    waiting: PendingWrites = field(default_factory=PendingWrites)  # for the next reconcile


def plan(observed: Observed, options: SandboxOptions, now: datetime) -> ChildrenPlan | ExpiryPlan | StatusPlan:
    """The writes for the children. A StatusPlan means that this reconcile has no writes for them."""
    sandbox = observed.sandbox
    if sandbox.deleting:
        # The garbage collector deletes what it owns.
        return StatusPlan()
    if not has_expired(sandbox, now):
        return _plan_children(observed, options, now)
    if not is_marked_expired(sandbox):
        return _expire(sandbox, sandbox.status, now)
    owned = owned_pods(sandbox, observed.pods, observed.tracked_pod)
    return plan_expiry(sandbox, owned, observed.service, timestamp(now))


def compute_status(
    observed: Observed, children: ChildrenPlan, result: PerformResult, options: SandboxOptions, now: datetime
) -> StatusPlan:
    """The status after the steps. ``now`` is the time after them; the sandbox may have expired meanwhile."""
    sandbox = observed.sandbox
    written_at = timestamp(now)
    state = _children_state(children, result, _loss(observed, children, result, written_at))
    after = status(sandbox, state, written_at, options.cluster_domain)
    event = _event(sandbox, state)
    if has_expired(sandbox, now):
        return replace(
            _expire(sandbox, after, now),
            event=event,
            loss=_loss_event(sandbox, after),
            errors=state.errors,
            retry_after=result.retry_after,
            namespace_terminating=result.namespace_terminating,
        )
    body, status_waits = _status_write(observed, after, options, now)
    waits = [wait for wait in (time_to_expiry(sandbox, now), children.pod_waits, status_waits) if wait is not None]
    return StatusPlan(
        status_patch=body,
        status=after if body is not None else sandbox.status,
        event=event,
        loss=_loss_event(sandbox, after),
        errors=state.errors,
        retry_after=result.retry_after,
        namespace_terminating=result.namespace_terminating,
        requeue_after=min(waits) if waits else None,
        waiting=PendingWrites(
            pod=_pod_waiting_since(observed, children, state, now),
            status=(observed.waiting.status or now) if status_waits is not None else None,
        ),
    )


# All that a plan reads of a sandbox besides its status. The other fields of a view are its identity and its version.
_DESIRED: Final = attrgetter(
    "uid",
    "generation",
    "labels",
    "annotations",
    "owner",
    "other_owners",
    "deletion_timestamp",
    "shutdown_time",
    "shutdown_policy",
    "operating_mode",
    "service",
    "pod_template",
    "volume_claim_templates",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a reconcile: its observation, its decision and its writes."""

    observed: Observed
    children: ChildrenPlan
    pod: PodView | None  # after the writes
    status: StatusPlan

    def holds(self, now: Observed) -> bool:
        """Whether ``now`` shows what the reconcile left, and nothing else has changed. Planning again would then decide
        nothing: a plan is complete, which the tests of this module prove for it.

        False is always a safe answer. It is given for sandboxes with volumes or a Service, and for failures.
        """
        before, sandbox, status, write = self.observed, now.sandbox, self.status, self.children.pod.write
        return (
            status.status is not None
            and not status.errors
            and sandbox.status == status.status
            and _DESIRED(sandbox) == _DESIRED(before.sandbox)
            and not sandbox.volume_claim_templates
            and self.children.service is not None
            and self.children.service.write is None
            and self.children.pod.repair is None
            and now.service is before.service
            and self.pod is not None
            and now.pods == (self.pod,)
            and now.tracked_pod is self.pod
            and (write is None or shows(self.pod, write, self.children.pod.pod))
            and now.waiting == status.waiting
            and now.in_use_since == before.in_use_since
        )


def _plan_children(observed: Observed, options: SandboxOptions, now: datetime) -> ChildrenPlan:
    sandbox = observed.sandbox
    volumes = plan_volumes(sandbox, observed.volume_claims)
    pod = plan_pod(sandbox, observed.pods, observed.tracked_pod, small_requests=options.small_requests)
    # With two pods it is unknown which of them a Service would lead to.
    service = None if pod.count else plan_service(sandbox, observed.service)
    if pod.write is None or not pod.deferrable:
        return ChildrenPlan(volumes, pod, service)
    left = remaining_delay(observed.waiting.pod, write_behind_window(options.write_behind), now)
    return (
        ChildrenPlan(volumes, replace(pod, write=None), service, left) if left else ChildrenPlan(volumes, pod, service)
    )


def _children_state(children: ChildrenPlan, result: PerformResult, loss: StateLoss | None) -> ChildrenState:
    """A step ends with its first failure, and its writes come before the errors found while planning."""
    pod, service = children.pod, children.service
    volumes_error = result.volumes_error or children.volumes.error
    pod_error = result.pod_error or pod.error
    service_error = result.service_error or (service.error if service is not None else "")
    return ChildrenState(
        pod=result.pod,
        pod_error=pod_error,
        pod_count=pod.count,
        service=service.kept if service is not None and not service_error else None,
        errors=tuple([error for error in (volumes_error, pod_error, service_error) if error]),
        loss=loss,
    )


def _event(sandbox: SandboxView, state: ChildrenState) -> EventSpec | None:
    """Emit the event once, until the condition has changed."""
    if not state.pod_count or sandbox.status.reason(READY) == MULTIPLE_PODS:
        return None
    return multiple_pods(multiple_pods_message(state.pod_count))


def _loss(observed: Observed, children: ChildrenPlan, result: PerformResult, now: str) -> StateLoss | None:
    if observed.in_use_since is None or children.pod.count:
        return None
    is_created = isinstance(children.pod.write, Create)
    return state_loss.detect(observed.sandbox, result.pod, observed.in_use_since, is_created=is_created, now=now)


def _loss_event(sandbox: SandboxView, after: SandboxStatus) -> EventSpec | None:
    lost = state_loss.newly_lost(sandbox.status.conditions, after.conditions)
    return None if lost is None else state_lost(lost["reason"], lost["message"])


def _status_write(
    observed: Observed, after: SandboxStatus, options: SandboxOptions, now: datetime
) -> tuple[Object | None, timedelta | None]:
    """The patch to write now, or its remaining delay."""
    before = observed.sandbox.status
    body = status_patch(before, after)
    if body is None or is_urgent(before, after):
        return body, None
    left = remaining_delay(observed.waiting.status, options.status_delay, now)
    return (None, left) if left else (body, None)


def _pod_waiting_since(
    observed: Observed, children: ChildrenPlan, state: ChildrenState, now: datetime
) -> datetime | None:
    if children.pod_waits is not None:
        return observed.waiting.pod or now
    # A failed reconcile may not have reached the pod: its delayed write stays due.
    return observed.waiting.pod if state.errors else None


def _expire(sandbox: SandboxView, before: SandboxStatus, now: datetime) -> StatusPlan:
    after = mark_expired(sandbox, before, timestamp(now))
    return StatusPlan(status_patch=status_patch(sandbox.status, after), requeue_after=IMMEDIATELY)
