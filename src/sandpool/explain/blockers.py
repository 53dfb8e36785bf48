"""What keeps a claim from being ready: the first cause that applies, in the words of whoever refuses, and what to do.

Everything is told by the objects that people who make claims can read. A pod is never needed: its scheduling is in the
conditions of its Sandbox, and what its node complains of is in events. Where its containers can be seen, they are more
precise.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandpool.api import conditions as api
from sandpool.api.conditions import FALSE, TRUE, find_condition
from sandpool.api.kinds import SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.explain.observed import Observed, Told

#: A controller that works has seen a claim long before.
UNATTENDED_SECONDS: Final = 10.0

_PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_CRASHING: Final = "CrashLoopBackOff"
_QUOTA: Final = "exceeded quota"  # kube-apiserver's words
# Of events about pods, as kubelets, schedulers and our node write them.
_FAILED, _BACK_OFF, _UNHEALTHY, _UNSCHEDULED = "Failed", "BackOff", "Unhealthy", "FailedScheduling"
_MOUNTING: Final = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_UNSUPPORTED: Final = "UnsupportedField"
_REFUSED: Final = (api.INVALID_METADATA, api.ENV_VARS_INJECTION_REJECTED, api.VOLUME_CLAIM_TEMPLATES_ERROR)


class Blocker(NamedTuple):
    cause: str
    advice: str = ""  # empty: there is nothing to do but wait


def blocker(observed: Observed) -> Blocker | None:
    """Why the claim is not ready; None if it is."""
    claim = observed.claim
    if claim.deleting:
        return Blocker("it is being deleted")
    ready = claim.condition(api.READY)
    if ready is not None and ready["reason"] == api.CLAIM_EXPIRED[0]:
        return Blocker("it has expired", "make a new claim, with a later shutdownTime or without one")
    if ready is not None and ready["status"] == TRUE:
        return None
    if ready is not None and ready["reason"] in _REFUSED:
        return Blocker(ready["message"], "change the claim: it is looked at again when it changes")
    if observed.sandbox is not None:
        return _of_sandbox(observed, observed.sandbox)
    if claim.sandbox_name and SANDBOX.plural in observed.unseen and ready is not None:
        return Blocker(f'sandbox "{claim.sandbox_name}" is not ready: {ready["message"]}')
    if claim.sandbox_name:
        return Blocker(
            f'its sandbox "{claim.sandbox_name}" does not exist any more', "make a new claim if that does not change"
        )
    return _without_sandbox(observed)


def _without_sandbox(observed: Observed) -> Blocker:
    claim, pool = observed.claim, observed.pool
    ready = claim.condition(api.READY)
    reason = "" if ready is None else ready["reason"]
    if pool is None and SANDBOX_WARM_POOL.plural not in observed.unseen:
        return Blocker(f'pool "{claim.warm_pool}" does not exist', "make the pool, or name another in a new claim")
    if pool is not None and not observed.has_template and SANDBOX_TEMPLATE.plural not in observed.unseen:
        return Blocker(
            f'pool "{pool.name}" is made from template "{pool.template}", which does not exist', "make the template"
        )
    if ready is not None and reason in (api.WARM_POOL_NOT_FOUND, api.TEMPLATE_NOT_FOUND):
        return _lacking(observed, reason, ready["message"])
    if ready is not None and _QUOTA in ready["message"]:
        return _quota(ready["message"])
    if ready is not None and reason == api.RECONCILER_ERROR:
        return Blocker(f"the controller cannot serve it: {ready['message']}", "see to what the message names")
    if ready is not None and reason in (api.ADOPTION_CONFLICT, api.SANDBOX_CREATE_PENDING[0]):
        return Blocker(f"it is being given a sandbox: {ready['message']}")
    if ready is None and _age(observed) > UNATTENDED_SECONDS:
        return Blocker(
            "no controller has looked at it", "see whether the controllers run: `sandpool up`, or their Deployment"
        )
    return _of_pool(observed, pool)


def _lacking(observed: Observed, reason: str, message: str) -> Blocker:
    """What the claim says it lacks: it is there by now, or cannot be seen from here, and then the claim is believed."""
    type = SANDBOX_WARM_POOL if reason == api.WARM_POOL_NOT_FOUND else SANDBOX_TEMPLATE
    if observed.pool is None or type.plural in observed.unseen:
        return Blocker(message, "make it, or name another pool in a new claim")
    noun = "pool" if type is SANDBOX_WARM_POOL else "template"
    return Blocker(f"until lately there was no {noun} for it; it is tried again within a minute")


def _of_pool(observed: Observed, pool: WarmPoolView | None) -> Blocker:
    if pool is None:
        return Blocker("it waits for a sandbox")
    progress = find_condition(pool.status.conditions, api.PROGRESSING)
    if progress is not None and _QUOTA in progress["message"]:
        return _quota(progress["message"])
    if progress is not None and progress["status"] == FALSE:
        advice = {
            api.CREATION_FAILING: "see to what the message names; the pool tries again by itself",
            api.UNSCHEDULABLE: "add nodes, or ask for less in the template",
            api.PROGRESS_DEADLINE_EXCEEDED: "see why sandboxes of this template do not start, and change the template",
        }.get(progress["reason"], "")
        return Blocker(f'pool "{pool.name}" makes no progress: {progress["message"]}', advice)
    if not pool.status.ready_replicas:
        told = "" if progress is None else f": {progress['message']}"
        return Blocker(f'pool "{pool.name}" has no ready sandbox and is being refilled{told}{_line(observed)}')
    return Blocker(f'it waits for a sandbox of pool "{pool.name}"{_line(observed)}')


def _line(observed: Observed) -> str:
    if not observed.ahead:
        return ""
    return f"; {observed.ahead} other claim{'s' if observed.ahead > 1 else ''} came earlier"


def _of_sandbox(observed: Observed, sandbox: SandboxView) -> Blocker:
    """A sandbox that the claim has, and that is not ready or was not when the claim was last written."""
    name = f'sandbox "{sandbox.name}"'
    status = sandbox.status
    ready = status.condition(api.READY)
    if sandbox.deleting:
        return Blocker(f"its {name} is being deleted")
    if ready is None:
        return Blocker(f"its {name} has not been looked at by a controller yet")
    if ready["status"] == TRUE:
        return Blocker(f"its {name} is ready, and the claim is about to say so")
    message, reason = ready["message"], ready["reason"]
    if _QUOTA in message:
        return _quota(message)
    if reason == api.SANDBOX_EXPIRED[0]:
        return Blocker(f"its {name} has expired", "make a new claim")
    if reason == api.SANDBOX_SUSPENDED:
        return Blocker(f"its {name} is suspended", "resume it: set operatingMode to Running")
    if reason == api.MULTIPLE_PODS:
        return Blocker(f"its {name} has several pods: {message}", "delete all of them but one")
    if reason == api.RECONCILER_ERROR:
        return Blocker(f"its {name} cannot be made: {message}", "see to what the message names")
    if reason in (api.POD_SUCCEEDED[0], api.POD_FAILED[0]):
        return _ended(observed, f"the pod of its {name} has ended: {message}")
    return _of_pod(observed, sandbox, message)


def _ended(observed: Observed, told: str) -> Blocker:
    """The message of a sandbox is the same for all pods that have failed; why is told by the pod, or by an event."""
    refused = observed.warning(_UNSUPPORTED)
    why = observed.failure or (refused and f"{refused.reason}: {refused.note}")
    if not why:
        return Blocker(told, "make a new claim; see why it ended in its logs")
    return Blocker(f"{told}: {why}", "see to what the message names, most likely in the template; make a new claim")


def _of_pod(observed: Observed, sandbox: SandboxView, message: str) -> Blocker:
    scheduled = sandbox.status.condition(api.POD_SCHEDULED)
    if scheduled is not None and scheduled["status"] == FALSE:
        why = scheduled["message"] or _note(observed.warning(_UNSCHEDULED)) or scheduled["reason"]
        return Blocker(f"no node takes its pod: {why}", "add nodes, or ask for less in the template")
    for container in observed.containers:
        told = f"{container.reason}: {container.message}" if container.message else container.reason
        if container.reason in _PULLING:
            return _image(told)
        if container.reason == _CRASHING or container.restarts:
            return _crash(f'container "{container.name}" ended {container.restarts} times: {told}')
        if container.reason not in ("", "ContainerCreating", "PodInitializing"):
            return Blocker(f'container "{container.name}" does not start: {told}', "see to what the message names")
    return _by_events(observed, message)


def _by_events(observed: Observed, message: str) -> Blocker:
    """What the events about the pod tell, where its containers tell nothing or cannot be seen."""
    if (unmounted := observed.warning(*_MOUNTING)) is not None:
        return Blocker(f"its pod cannot be set up: {unmounted.note}", "see to what the message names")
    if (failed := observed.warning(_FAILED, _BACK_OFF)) is not None:
        if "image" in failed.note.lower():
            return _image(failed.note)
        if failed.reason == _BACK_OFF:
            return _crash(failed.note)
        return Blocker(f"a container does not start: {failed.note}", "see to what the message names")
    if message.startswith(api.POD_NOT_READY) and (probe := observed.warning(_UNHEALTHY)) is not None:
        return Blocker(f"its pod runs and is not ready: {probe.note}", "see what the probe asks for, and its logs")
    if message.startswith(api.POD_MISSING):
        return Blocker("its pod has not been made yet")
    return Blocker(f"its pod is starting: {message}")


def _image(told: str) -> Blocker:
    return Blocker(f"an image cannot be had: {told}", "see whether the image of the template exists and may be pulled")


def _crash(told: str) -> Blocker:
    return Blocker(f"its pod crashes again and again: {told}", "see why in its logs, and change the template")


def _quota(told: str) -> Blocker:
    return Blocker(f"a quota of the namespace is used up: {told}", "delete what is not needed, or raise the quota")


def _note(event: Told | None) -> str:
    return "" if event is None else event.note


def _age(observed: Observed) -> float:
    made = observed.claim.creation_timestamp
    return 0.0 if made is None else (observed.now - made).total_seconds()
