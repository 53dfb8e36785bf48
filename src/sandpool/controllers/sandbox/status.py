"""The status of a sandbox: what it is, and when it is written.

A launch goes through half a dozen states that last milliseconds. Writing each of them would cost more requests than
the rest of the launch together, and each would wake whoever watches, for news that is old when it arrives. So one
status is written per launch, the one that says Ready. **Visible at once** is what somebody may act on:

* Ready becoming True, everything that changes while it is, and its becoming False;
* any other reason than the one of a launch under way, and its end: ReconcilerError, MultiplePods, SandboxSuspended,
  PodSucceeded, PodFailed and SandboxExpired, with every change of their messages;
* a change of Suspended and Finished;
* a pod that cannot be scheduled, and that it can be after all.

**Visible when it lasts** (``PATIENCE``) is the rest: where a launch that is not done yet stands (Ready=False with
reason DependenciesNotReady, PodScheduled Unknown or True, node, addresses, Service), and that a new generation was
observed which changed nothing else. So a sandbox that is a few seconds old may have no status at all, and one that
hangs tells where. What is held back is not lost: the next write, for whatever reason, contains it.

The conditions of a sandbox: what each of them says about what was found.

Suspended is always there. Finished is there once the pod has ended, PodScheduled while there is a pod or one may be.
Ready comes last and sums up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sandpool.api import conditions as api
from sandpool.api.conditions import Condition, remove_condition, set_condition
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.names import name_hash, service_fqdn
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxStatus, SandboxView
from sandpool.api.views.pod import RUNNING, SUCCEEDED
from sandpool.kube.patches import merge_diff


def status(sandbox: SandboxView, state: ChildrenState, now: str, cluster_domain: str) -> SandboxStatus:
    """What is true. Where it is not known if there is a Service, the status keeps what it says."""
    before = sandbox.status
    pod = state.pod
    owned = pod if pod is not None and pod.controlled_by(sandbox) else None
    service, fqdn = before.service, before.service_fqdn
    if state.service is not None:
        service = sandbox.name if state.service else ""
        fqdn = service_fqdn(service, sandbox.namespace, cluster_domain) if service else ""
    return SandboxStatus(
        conditions=conditions(sandbox, state, now),
        # Where a pod of somebody else runs is nobody's business here.
        node_name=owned.node_name if owned is not None else "",
        pod_ips=owned.ips if owned is not None else (),
        # How to look for the pod remains true when it has gone.
        selector=f"{SANDBOX_NAME_HASH}={name_hash(sandbox.name)}" if pod is not None else before.selector,
        service=service,
        service_fqdn=fqdn,
    )


def status_patch(before: SandboxStatus, after: SandboxStatus) -> Object | None:
    """The merge patch of the status subresource, None if there is nothing to write. Conditions are replaced as a whole:
    that is what a merge patch does to a list."""
    change = merge_diff(before.to_object(), after.to_object())
    return {"status": change} if change is not None else None


def is_urgent(before: SandboxStatus, after: SandboxStatus) -> bool:
    """Whether a change must be visible at once."""
    if _is_launching(after):
        return not _is_launching(before) or _actionable(before) != _actionable(after)
    return _without_generations(before) != _without_generations(after)


def _is_launching(status: SandboxStatus) -> bool:
    """Whether the sandbox is on its way to Ready. A sandbox without a status has just set out."""
    return status.reason(api.READY) in ("", api.DEPENDENCIES_NOT_READY)


def _actionable(status: SandboxStatus) -> tuple[object, ...]:
    """What somebody may act on during a launch."""
    suspended = status.condition(api.SUSPENDED)
    scheduled = status.condition(api.POD_SCHEDULED)
    stuck = scheduled is not None and scheduled["status"] == api.FALSE
    return (
        # A sandbox of which nothing is known is not suspended.
        (suspended["status"], suspended["reason"]) if suspended is not None else (api.FALSE, api.NOT_SUSPENDED[0]),
        status.reason(api.FINISHED),
        scheduled["reason"] if scheduled is not None and stuck else None,
    )


def _without_generations(status: SandboxStatus) -> tuple[object, ...]:
    kept: list[Condition] = [
        {key: value for key, value in condition.items() if key != "observedGeneration"}
        for condition in status.conditions
    ]
    return kept, status.node_name, status.pod_ips, status.selector, status.service, status.service_fqdn


@dataclass(frozen=True, slots=True)
class ChildrenState:
    """What the steps have come to."""

    pod: PodView | None = None
    pod_error: str = ""
    pod_count: int = 0  # the number of owned pods if that is too many, else 0
    service: bool | None = False  # whether there is a Service; None if that is not known
    errors: tuple[str, ...] = ()  # of all steps, that of the pod included

    @property
    def pod_unknown(self) -> bool:
        """Whether there may be a pod that we do not know of. What keeps us from looking after volumes or the Service
        says nothing about the pod."""
        return self.pod is None and bool(self.pod_error or self.pod_count)


class ConditionValue(NamedTuple):
    status: str
    reason: str
    message: str


def conditions(sandbox: SandboxView, state: ChildrenState, now: str) -> list[Condition]:
    """The list that the sandbox has now, brought up to date; ``now`` becomes the time of what has changed."""
    values = {
        api.SUSPENDED: suspended(sandbox, state),
        api.FINISHED: finished(sandbox, state),
        api.POD_SCHEDULED: pod_scheduled(sandbox, state),
        api.READY: ready(sandbox, state),
    }
    result = sandbox.status.conditions
    for type, value in values.items():
        if value is None:
            result = remove_condition(result, type)
        else:
            result = set_condition(result, type, *value, observed_generation=sandbox.generation, now=now)
    return result


def suspended(sandbox: SandboxView, state: ChildrenState) -> ConditionValue:
    pod = state.pod
    if not sandbox.suspended:
        return ConditionValue(api.FALSE, *api.NOT_SUSPENDED)
    if state.pod_unknown:
        return ConditionValue(api.UNKNOWN, *api.POD_STATE_UNKNOWN)
    if pod is None:
        return ConditionValue(api.TRUE, *api.POD_TERMINATED)
    if not pod.controlled_by(sandbox):
        return ConditionValue(api.FALSE, *api.POD_NOT_OWNED)
    return ConditionValue(api.FALSE, *api.POD_TERMINATING)


def finished(sandbox: SandboxView, state: ChildrenState) -> ConditionValue | None:
    pod = state.pod
    if pod is None or not pod.ended or not pod.controlled_by(sandbox):
        return None
    return ConditionValue(api.TRUE, *_end(pod))


def pod_scheduled(sandbox: SandboxView, state: ChildrenState) -> ConditionValue | None:
    pod = state.pod
    if state.pod_unknown:
        return ConditionValue(api.UNKNOWN, *api.SCHEDULING_UNDETERMINED)
    if pod is None or not pod.controlled_by(sandbox):
        return None
    if pod.scheduling is None:
        return ConditionValue(api.UNKNOWN, *api.NOT_REPORTED)
    status, reason, message = pod.scheduling
    # A reason is optional in a pod's condition and required in ours.
    default = api.POD_SCHEDULED if status == api.TRUE else api.POD_SCHEDULING_UNKNOWN
    return ConditionValue(status, reason or default, message)


def ready(sandbox: SandboxView, state: ChildrenState) -> ConditionValue:
    pod = state.pod
    if state.pod_count:
        return ConditionValue(api.FALSE, api.MULTIPLE_PODS, api.multiple_pods_message(state.pod_count))
    if state.errors:
        return ConditionValue(api.FALSE, api.RECONCILER_ERROR, api.error_message("\n".join(state.errors)))
    if sandbox.suspended:
        message = api.SANDBOX_SUSPENDED_MESSAGE if pod is None else api.SANDBOX_SUSPENDING_MESSAGE
        return ConditionValue(api.FALSE, api.SANDBOX_SUSPENDED, message)
    if pod is not None and pod.ended:
        return ConditionValue(api.FALSE, *_end(pod))
    message = _pod_message(pod)
    is_ready = message == api.POD_READY
    if sandbox.service or (sandbox.service is None and state.service):
        message += api.SERVICE_EXISTS if state.service else api.SERVICE_MISSING
        is_ready = is_ready and bool(state.service)
    if is_ready:
        return ConditionValue(api.TRUE, api.DEPENDENCIES_READY, message)
    return ConditionValue(api.FALSE, api.DEPENDENCIES_NOT_READY, message)


def _end(pod: PodView) -> tuple[str, str]:
    return api.POD_SUCCEEDED if pod.phase == SUCCEEDED else api.POD_FAILED


def _pod_message(pod: PodView | None) -> str:
    if pod is None:
        return api.POD_MISSING
    if pod.phase != RUNNING:
        return api.pod_phase_message(pod.phase)
    if not pod.ready:
        return api.POD_NOT_READY
    return api.POD_READY if pod.ips else api.POD_WITHOUT_ADDRESS
