"""The status of a sandbox: its conditions, and when it is written.

A launch goes through half a dozen states that last milliseconds. Writing each of them would cost more requests than the
rest of the launch and would notify all watchers of states that are over. So one status is written per launch, the one
with Ready=True. Written **at once** are changes that a client may act on:

* Ready becoming True, every change while it is, and its becoming False;
* any other reason than that of a launch under way, and its end: ReconcilerError, MultiplePods, SandboxSuspended,
  PodSucceeded, PodFailed and SandboxExpired, with every change of their messages;
* a change of Suspended and Finished;
* a pod that becomes unschedulable, and one that is no longer.

Written **if they last** for ``STATUS_DELAY`` are all others: the progress of a launch (Ready=False with reason
DependenciesNotReady, PodScheduled Unknown or True, node, addresses, Service), and a new generation that changed nothing
else. So a sandbox that is a few seconds old may have no status at all, and a launch that hangs shows where. A delayed
change is not lost: the next write, for whatever reason, contains it.

The condition StateLost is written with the next status and makes it urgent (``state_loss``).

The condition Suspended is always present. Finished is present once the pod has ended, PodScheduled while there is a pod
or may be one. Ready comes last and summarises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sandpool.api import conditions as api
from sandpool.api.conditions import Condition, remove_condition, set_condition
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.names import name_hash, service_fqdn
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxStatus, SandboxView
from sandpool.api.views.pod import RUNNING, SUCCEEDED
from sandpool.controllers.sandbox.state_loss import StateLoss, with_state_loss
from sandpool.kube.patches import merge_diff


def status(sandbox: SandboxView, state: ChildrenState, now: str, cluster_domain: str) -> SandboxStatus:
    """The status that follows from the children. While it is unknown whether there is a Service, that part stays."""
    before = sandbox.status
    pod = state.pod
    owned = pod if pod is not None and pod.controlled_by(sandbox) else None
    service, fqdn = before.service, before.service_fqdn
    if state.service is not None:
        service = sandbox.name if state.service else ""
        fqdn = service_fqdn(service, sandbox.namespace, cluster_domain) if service else ""
    return SandboxStatus(
        conditions=conditions(sandbox, state, now),
        # The status does not show where a pod of another owner runs.
        node_name=owned.node_name if owned is not None else "",
        pod_ips=owned.ips if owned is not None else (),
        # The selector remains true when the pod is gone.
        selector=f"{SANDBOX_NAME_HASH}={name_hash(sandbox.name)}" if pod is not None else before.selector,
        service=service,
        service_fqdn=fqdn,
    )


def status_patch(before: SandboxStatus, after: SandboxStatus) -> Object | None:
    """The merge patch of the status subresource, None if nothing changes. A merge patch replaces the list of conditions
    as a whole."""
    if before == after:
        return None
    change = merge_diff(before.to_object(), after.to_object())
    return {"status": change} if change is not None else None


def is_urgent(before: SandboxStatus, after: SandboxStatus) -> bool:
    """Whether a change must be written at once."""
    if _is_launching(after):
        return not _is_launching(before) or _actionable(before) != _actionable(after)
    return _without_generations(before) != _without_generations(after)


def _is_launching(status: SandboxStatus) -> bool:
    """Whether the sandbox is on its way to Ready. A sandbox without a status has just begun."""
    return status.ready_reason in ("", api.DEPENDENCIES_NOT_READY)


def _actionable(status: SandboxStatus) -> tuple[object, ...]:
    """The parts of a status that a client may act on during a launch."""
    suspended = status.condition(api.SUSPENDED)
    scheduled = status.condition(api.POD_SCHEDULED)
    stuck = scheduled is not None and scheduled["status"] == api.FALSE
    return (
        # A sandbox without a status is not suspended.
        (suspended["status"], suspended["reason"]) if suspended is not None else (api.FALSE, api.NOT_SUSPENDED[0]),
        status.reason(api.FINISHED),
        status.condition(api.STATE_LOST),
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
    """The children after the steps of a reconcile."""

    pod: PodView | None = None
    pod_error: str = ""
    pod_count: int = 0  # number of owned pods if there is more than one, else 0
    service: bool | None = False  # whether there is a Service; None if unknown
    errors: tuple[str, ...] = ()  # of all steps, including the pod
    loss: StateLoss | None = None

    @property
    def pod_unknown(self) -> bool:
        """Whether a pod may exist that the controller does not know. Errors of the volumes or the Service do not affect
        that."""
        return self.pod is None and bool(self.pod_error or self.pod_count)


class ConditionValue(NamedTuple):
    status: str
    reason: str
    message: str


_NOT_SUSPENDED: Final = ConditionValue(api.FALSE, *api.NOT_SUSPENDED)
_NOT_REPORTED: Final = ConditionValue(api.UNKNOWN, *api.NOT_REPORTED)


def conditions(sandbox: SandboxView, state: ChildrenState, now: str) -> Sequence[Condition]:
    """The conditions of the sandbox, updated; ``now`` becomes the transition time of those that change."""
    values = {
        api.SUSPENDED: suspended(sandbox, state),
        api.FINISHED: finished(sandbox, state),
        api.POD_SCHEDULED: pod_scheduled(sandbox, state),
        api.READY: ready(sandbox, state),
    }
    result = with_state_loss(sandbox.status.conditions, sandbox, state.loss, now)
    shown = {condition["type"]: condition for condition in result}
    generation = sandbox.generation
    for type, value in values.items():
        if value is None:
            if type in shown:
                result = remove_condition(result, type)
        elif type not in shown or not _shows(shown[type], value, generation):
            result = set_condition(result, type, *value, observed_generation=generation, now=now)
    return result


def _shows(condition: Condition, value: ConditionValue, generation: int) -> bool:
    """Whether a condition has this value already; most have at most reconciles."""
    return (
        "observedGeneration" in condition
        and condition["observedGeneration"] == generation
        and condition["status"] == value.status
        and condition["reason"] == value.reason
        and condition["message"] == value.message
    )


def suspended(sandbox: SandboxView, state: ChildrenState) -> ConditionValue:
    pod = state.pod
    if not sandbox.suspended:
        return _NOT_SUSPENDED
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
        return _NOT_REPORTED
    status, reason, message = pod.scheduling
    # The reason is optional in the condition of a pod and required in ours.
    default = api.POD_SCHEDULED if status == api.TRUE else api.POD_SCHEDULING_UNKNOWN
    return ConditionValue(status, reason or default, message)


def ready(sandbox: SandboxView, state: ChildrenState) -> ConditionValue:
    pod = state.pod
    if state.pod_count:
        return ConditionValue(api.FALSE, api.MULTIPLE_PODS, api.multiple_pods_message(state.pod_count))
    if state.errors:
        return ConditionValue(api.FALSE, api.RECONCILER_ERROR, api.error_message("\n".join(state.errors)))
    if sandbox.suspended:
        suspended_message = api.SANDBOX_ASLEEP_MESSAGE if sandbox.asleep else api.SANDBOX_SUSPENDED_MESSAGE
        message = suspended_message if pod is None else api.SANDBOX_SUSPENDING_MESSAGE
        return ConditionValue(api.FALSE, api.SANDBOX_SUSPENDED, message)
    if pod is not None and pod.ended:
        return ConditionValue(api.FALSE, *_end(pod))
    message = _pod_message(pod)
    is_ready = pod is not None and pod.phase == RUNNING and pod.ready and pod.ips != ()
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
