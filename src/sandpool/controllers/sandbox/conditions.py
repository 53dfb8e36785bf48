"""The conditions of a sandbox: what each of them says about what was found.

Suspended is always there. Finished is there once the pod has ended, PodScheduled while there is a pod or one may be.
Ready comes last and sums up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sandpool.api import conditions as api
from sandpool.api.conditions import Condition, remove_condition, set_condition
from sandpool.api.views import PodView, SandboxView
from sandpool.api.views.pod import RUNNING, SUCCEEDED


@dataclass(frozen=True, slots=True)
class Findings:
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


class Verdict(NamedTuple):
    status: str
    reason: str
    message: str


def conditions(sandbox: SandboxView, findings: Findings, now: str) -> list[Condition]:
    """The list that the sandbox has now, brought up to date; ``now`` becomes the time of what has changed."""
    verdicts = {
        api.SUSPENDED: suspended(sandbox, findings),
        api.FINISHED: finished(sandbox, findings),
        api.POD_SCHEDULED: pod_scheduled(sandbox, findings),
        api.READY: ready(sandbox, findings),
    }
    result = sandbox.status.conditions
    for type, verdict in verdicts.items():
        if verdict is None:
            result = remove_condition(result, type)
        else:
            result = set_condition(result, type, *verdict, observed_generation=sandbox.generation, now=now)
    return result


def suspended(sandbox: SandboxView, findings: Findings) -> Verdict:
    pod = findings.pod
    if not sandbox.suspended:
        return Verdict(api.FALSE, *api.NOT_SUSPENDED)
    if findings.pod_unknown:
        return Verdict(api.UNKNOWN, *api.POD_STATE_UNKNOWN)
    if pod is None:
        return Verdict(api.TRUE, *api.POD_TERMINATED)
    if not pod.controlled_by(sandbox):
        return Verdict(api.FALSE, *api.POD_NOT_OWNED)
    return Verdict(api.FALSE, *api.POD_TERMINATING)


def finished(sandbox: SandboxView, findings: Findings) -> Verdict | None:
    pod = findings.pod
    if pod is None or not pod.ended or not pod.controlled_by(sandbox):
        return None
    return Verdict(api.TRUE, *_end(pod))


def pod_scheduled(sandbox: SandboxView, findings: Findings) -> Verdict | None:
    pod = findings.pod
    if findings.pod_unknown:
        return Verdict(api.UNKNOWN, *api.SCHEDULING_UNDETERMINED)
    if pod is None or not pod.controlled_by(sandbox):
        return None
    if pod.scheduling is None:
        return Verdict(api.UNKNOWN, *api.NOT_REPORTED)
    status, reason, message = pod.scheduling
    # A reason is optional in a pod's condition and required in ours.
    default = api.POD_SCHEDULED if status == api.TRUE else api.POD_SCHEDULING_UNKNOWN
    return Verdict(status, reason or default, message)


def ready(sandbox: SandboxView, findings: Findings) -> Verdict:
    pod = findings.pod
    if findings.pod_count:
        return Verdict(api.FALSE, api.MULTIPLE_PODS, api.multiple_pods_message(findings.pod_count))
    if findings.errors:
        return Verdict(api.FALSE, api.RECONCILER_ERROR, api.error_message("\n".join(findings.errors)))
    if sandbox.suspended:
        message = api.SANDBOX_SUSPENDED_MESSAGE if pod is None else api.SANDBOX_SUSPENDING_MESSAGE
        return Verdict(api.FALSE, api.SANDBOX_SUSPENDED, message)
    if pod is not None and pod.ended:
        return Verdict(api.FALSE, *_end(pod))
    message = _pod_message(pod)
    is_ready = message == api.POD_READY
    if sandbox.service or (sandbox.service is None and findings.service):
        message += api.SERVICE_EXISTS if findings.service else api.SERVICE_MISSING
        is_ready = is_ready and bool(findings.service)
    if is_ready:
        return Verdict(api.TRUE, api.DEPENDENCIES_READY, message)
    return Verdict(api.FALSE, api.DEPENDENCIES_NOT_READY, message)


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
