"""What a sandbox needs now: the steps in their order, and what is concluded from them.

A pass decides twice. ``plan`` says what to write for the children; whoever performs it reports in ``Performed`` what
came of it; ``conclude`` says what the status becomes, since that depends on both. Steps are independent: trouble with
the volumes keeps nobody from looking after the pod, and all errors are shown together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sandpool.api.conditions import MULTIPLE_PODS, READY, multiple_pods_message
from sandpool.api.events import Happening, multiple_pods
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import PodView, SandboxStatus, SandboxView, ServiceView, VolumeClaimView
from sandpool.controllers.options import SandboxOptions
from sandpool.controllers.sandbox.conditions import Findings
from sandpool.controllers.sandbox.deferral import Waiting, time_left, write_behind_window
from sandpool.controllers.sandbox.expiry import AT_ONCE, ExpiryPlan, expired, mark, marked, plan_expiry, time_to_expiry
from sandpool.controllers.sandbox.pod import PodPlan, owned_pods, plan_pod
from sandpool.controllers.sandbox.service import ServicePlan, plan_service
from sandpool.controllers.sandbox.status import status, status_patch, urgent
from sandpool.controllers.sandbox.volumes import VolumesPlan, plan_volumes
from sandpool.controllers.writer import Create


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is. Anything but the sandbox may be missing or somebody else's; telling is the plan's business."""

    sandbox: SandboxView
    pods: tuple[PodView, ...] = ()  # whose owner has the sandbox's UID
    tracked_pod: PodView | None = None  # of the name sandbox.pod_name
    service: ServiceView | None = None  # of the sandbox's name
    volume_claims: Mapping[str, VolumeClaimView] = field(default_factory=dict)  # by name
    waiting: Waiting = field(default_factory=Waiting)  # as the last pass concluded


@dataclass(frozen=True, slots=True)
class Children:
    """The steps for a sandbox that is to live, in their order: volumes, pod, Service."""

    volumes: VolumesPlan
    pod: PodPlan
    service: ServicePlan | None  # None: leave it as it is
    pod_waits: timedelta | None = None  # how long the write of the pod, left out here, may wait

    @property
    def creates(self) -> bool:
        """Whether anything is to be created."""
        service = None if self.service is None else self.service.write
        return any(isinstance(write, Create) for write in (*self.volumes.writes, self.pod.write, service))


@dataclass(frozen=True, slots=True)
class Performed:
    """What came of the steps: the pod as the API answered, or else as it was planned, and what went wrong."""

    pod: PodView | None = None
    volumes_error: str = ""
    pod_error: str = ""
    service_error: str = ""
    retry_after: float = 0.0  # seconds the API asked us to wait


@dataclass(frozen=True, slots=True)
class Conclusion:
    status_patch: Object | None = None  # of the status subresource
    event: Happening | None = None
    errors: tuple[str, ...] = ()  # to be tried again with back-off
    retry_after: float = 0.0  # seconds the API asked us to wait before that
    requeue_after: timedelta | None = None
    waiting: Waiting = field(default_factory=Waiting)  # to be observed by the next pass


def plan(observed: Observed, settings: SandboxOptions, now: datetime) -> Children | ExpiryPlan | Conclusion:
    """What to write for the children. A Conclusion means that there is nothing to do for them in this pass."""
    sandbox = observed.sandbox
    if sandbox.deleting:
        # What it owns goes with it; that is the garbage collector's work.
        return Conclusion()
    if not expired(sandbox, now):
        return _plan_children(observed, settings, now)
    if not marked(sandbox):
        return _expire(sandbox, sandbox.status, now)
    owned = owned_pods(sandbox, observed.pods, observed.tracked_pod)
    return plan_expiry(sandbox, owned, observed.service, timestamp(now))


def conclude(
    observed: Observed, children: Children, performed: Performed, settings: SandboxOptions, now: datetime
) -> Conclusion:
    """What follows from the steps. ``now`` is when they were done; the sandbox may have expired meanwhile."""
    sandbox = observed.sandbox
    findings = _findings(children, performed)
    after = status(sandbox, findings, timestamp(now), settings.cluster_domain)
    event = _event(sandbox, findings)
    if expired(sandbox, now):
        return replace(
            _expire(sandbox, after, now), event=event, errors=findings.errors, retry_after=performed.retry_after
        )
    body, status_waits = _status_write(observed, after, settings, now)
    waits = (time_to_expiry(sandbox, now), children.pod_waits, status_waits)
    return Conclusion(
        status_patch=body,
        event=event,
        errors=findings.errors,
        retry_after=performed.retry_after,
        requeue_after=min((wait for wait in waits if wait is not None), default=None),
        waiting=Waiting(
            pod=_pod_waiting_since(observed, children, findings, now),
            status=(observed.waiting.status or now) if status_waits is not None else None,
        ),
    )


def _plan_children(observed: Observed, settings: SandboxOptions, now: datetime) -> Children:
    sandbox = observed.sandbox
    volumes = plan_volumes(sandbox, observed.volume_claims)
    pod = plan_pod(sandbox, observed.pods, observed.tracked_pod)
    # With two pods it is not known which of them a Service would lead to.
    service = None if pod.count else plan_service(sandbox, observed.service)
    if pod.write is None or not pod.deferrable:
        return Children(volumes, pod, service)
    left = time_left(observed.waiting.pod, write_behind_window(settings.write_behind), now)
    return Children(volumes, replace(pod, write=None), service, left) if left else Children(volumes, pod, service)


def _findings(children: Children, performed: Performed) -> Findings:
    """A step ends with its first failure, and its writes come before what was found to be wrong."""
    pod, service = children.pod, children.service
    volumes_error = performed.volumes_error or children.volumes.error
    pod_error = performed.pod_error or pod.error
    service_error = performed.service_error or (service.error if service is not None else "")
    return Findings(
        pod=performed.pod,
        pod_error=pod_error,
        pod_count=pod.count,
        service=service.kept if service is not None and not service_error else None,
        errors=tuple(error for error in (volumes_error, pod_error, service_error) if error),
    )


def _event(sandbox: SandboxView, findings: Findings) -> Happening | None:
    """Told once, until the condition has said something else."""
    if not findings.pod_count or sandbox.status.reason(READY) == MULTIPLE_PODS:
        return None
    return multiple_pods(multiple_pods_message(findings.pod_count))


def _status_write(
    observed: Observed, after: SandboxStatus, settings: SandboxOptions, now: datetime
) -> tuple[Object | None, timedelta | None]:
    """The patch to be done now, or how long it may still wait."""
    before = observed.sandbox.status
    body = status_patch(before, after)
    if body is None or urgent(before, after):
        return body, None
    left = time_left(observed.waiting.status, settings.status_delay, now)
    return (None, left) if left else (body, None)


def _pod_waiting_since(observed: Observed, children: Children, findings: Findings, now: datetime) -> datetime | None:
    if children.pod_waits is not None:
        return observed.waiting.pod or now
    # A pass that failed may not have come to the pod: what waited goes on waiting.
    return observed.waiting.pod if findings.errors else None


def _expire(sandbox: SandboxView, before: SandboxStatus, now: datetime) -> Conclusion:
    after = mark(sandbox, before, timestamp(now))
    return Conclusion(status_patch=status_patch(sandbox.status, after), requeue_after=AT_ONCE)
