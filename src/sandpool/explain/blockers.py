"""Find the cause that keeps a claim from being ready, and advice for it.

The first matching cause is reported with the original message of the component that refuses. Objects that claim users
can read are sufficient. Reading the pod is optional: its scheduling is in the conditions of the Sandbox, and the node's
errors are in events. Container statuses are more precise where they can be read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import FALSE, TRUE, find_condition
from sandpool.api.kinds import SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.explain.observed import CRASHING, FAILED, PULL_FAILURES, REFUSED, EventView, Observed

#: A running controller observes a claim much sooner.
UNATTENDED_SECONDS: Final = 10.0

PULLING: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
IMAGE_ADVICE: Final = "check that the template's image exists and may be pulled"
# Reasons of warnings about pods, as written by kubelets, schedulers and our node.
_BACK_OFF, _UNHEALTHY, _UNSCHEDULED = "BackOff", "Unhealthy", "FailedScheduling"
_MOUNTING: Final = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_UNSUPPORTED: Final = "UnsupportedField"


_RAISE_LIMIT: Final = "release claims, or ask an administrator for a higher {annotation} on the namespace"


class Blocker(NamedTuple):
    cause: str
    advice: str = ""  # empty: wait


def blocker(observed: Observed) -> Blocker | None:
    """Return why the claim is not ready; None if it is ready."""
    claim = observed.claim
    if claim.deleting:
        return Blocker("it is being deleted")
    ready = claim.condition(api.READY)
    if ready is not None and ready["reason"] == api.CLAIM_EXPIRED[0]:
        return Blocker("it has expired", "create a new claim, with a later shutdownTime or without one")
    if ready is not None and ready["status"] == TRUE:
        return None
    if ready is not None and ready["reason"] in REFUSED:
        return Blocker(ready["message"], _permission(observed, ready["reason"]))
    if ready is not None and ready["reason"] == api.CLAIM_LIMIT_REACHED:
        return Blocker(ready["message"], _RAISE_LIMIT.format(annotation=labels.MAX_CLAIMS))
    if ready is not None and ready["reason"] == api.ENVIRONMENT_NOT_BOUND:
        return Blocker(ready["message"], "wait; if this persists, restart the sandbox or create a new claim")
    if observed.sandbox is not None:
        return _of_sandbox(observed, observed.sandbox)
    if claim.sandbox_name and SANDBOX.plural in observed.unseen and ready is not None:
        return Blocker(f'sandbox "{claim.sandbox_name}" is not ready: {ready["message"]}')
    if claim.sandbox_name:
        return Blocker(f'its sandbox "{claim.sandbox_name}" no longer exists', "create a new claim if this persists")
    return _without_sandbox(observed)


def _permission(observed: Observed, reason: str) -> str:
    """The change with which a refused claim is served."""
    if observed.policy_advice:
        return f"{observed.policy_advice}, or change the claim"
    field = {
        api.ENV_VARS_INJECTION_REJECTED: "envVarsInjectionPolicy",
        api.VOLUME_CLAIM_TEMPLATES_ERROR: "volumeClaimTemplatesPolicy",
    }.get(reason)
    if field is None or SANDBOX_TEMPLATE.plural not in observed.unseen:
        return "change the claim; it is reconciled again when it changes"
    template = f'template "{observed.pool.template}"' if observed.pool is not None else "its template"
    return f"set {field} to Allowed or Overrides in {template}, or change the claim"


def _without_sandbox(observed: Observed) -> Blocker:
    claim, pool = observed.claim, observed.pool
    ready = claim.condition(api.READY)
    reason = "" if ready is None else ready["reason"]
    if pool is None and SANDBOX_WARM_POOL.plural not in observed.unseen:
        return Blocker(
            f'pool "{claim.warm_pool}" does not exist', "create the pool, or create a claim that names another pool"
        )
    if pool is not None and not observed.has_template and SANDBOX_TEMPLATE.plural not in observed.unseen:
        return Blocker(
            f'pool "{pool.name}" refers to template "{pool.template}", which does not exist', "create the template"
        )
    if ready is not None and reason in (api.WARM_POOL_NOT_FOUND, api.TEMPLATE_NOT_FOUND):
        return _lacking(observed, reason, ready["message"])
    if ready is not None and reason == api.RECONCILER_ERROR:
        if _is_quota(ready["message"]):
            return _quota(ready["message"])
        advice = _permission(observed, reason) if observed.policy_advice else "fix the cause that the message names"
        return Blocker(f"the controller cannot serve it: {ready['message']}", advice)
    if ready is not None and reason in (api.ADOPTION_CONFLICT, api.SANDBOX_CREATE_PENDING[0]):
        return Blocker(f"a sandbox is being assigned to it: {ready['message']}")
    if ready is None and _age(observed) > UNATTENDED_SECONDS:
        return Blocker(
            "no controller has reconciled it", "check that the controllers run: `sandpool up`, or their Deployment"
        )
    return _of_pool(observed, pool)


def _lacking(observed: Observed, reason: str, message: str) -> Blocker:
    """The claim reports a missing object. The object exists by now, or cannot be read; then trust the claim."""
    type = SANDBOX_WARM_POOL if reason == api.WARM_POOL_NOT_FOUND else SANDBOX_TEMPLATE
    if observed.pool is None or type.plural in observed.unseen:
        return Blocker(message, "create it, or create a claim that names another pool")
    noun = "pool" if type is SANDBOX_WARM_POOL else "template"
    return Blocker(f"its {noun} was missing until recently; the controller retries within a minute")


def _of_pool(observed: Observed, pool: WarmPoolView | None) -> Blocker:
    if pool is None:
        return Blocker("it is waiting for a sandbox")
    progress = find_condition(pool.status.conditions, api.PROGRESSING)
    if progress is not None and progress["status"] == FALSE:
        if progress["reason"] == api.CREATION_FAILING and _is_quota(progress["message"]):
            return _quota(progress["message"])
        advice = {
            api.CREATION_FAILING: "fix the cause that the message names; the pool retries by itself",
            api.SIZE_LIMITED: f"ask an administrator for a higher {labels.MAX_WARM_SANDBOXES} on the namespace",
            api.UNSCHEDULABLE: "add nodes, or request less in the template",
            api.PROGRESS_DEADLINE_EXCEEDED: "find out why sandboxes do not start, and fix the template",
        }.get(progress["reason"], "")
        return Blocker(f'pool "{pool.name}" makes no progress: {progress["message"]}', advice)
    if not pool.status.ready_replicas:
        cause = "" if progress is None else f": {progress['message']}"
        return Blocker(f'pool "{pool.name}" has no ready sandbox and is being refilled{cause}{_line(observed)}')
    return Blocker(f'it is waiting for a sandbox of pool "{pool.name}"{_line(observed)}')


def _line(observed: Observed) -> str:
    if not observed.ahead:
        return ""
    return f"; {observed.ahead} other claim{'s' if observed.ahead > 1 else ''} ahead of it"


#: What to do about a sandbox that sleeps.
WAKE_ADVICE: Final = "use it: the next command, forwarded port or request through the router resumes it"


def asleep_since(sandbox: SandboxView) -> str:
    """The cause of a sandbox that sleeps."""
    after = ((sandbox.pod_template.get("metadata") or {}).get("annotations") or {}).get(labels.IDLE_SUSPEND_AFTER)
    unused = f"it was not used for {after}" if after else "it was not used"
    return f"it is asleep since {sandbox.annotations[labels.ASLEEP_SINCE]}, because {unused}"


def _of_sandbox(observed: Observed, sandbox: SandboxView) -> Blocker:
    """The cause in the claim's sandbox, which is not ready or was not when the claim was last written."""
    name = f'sandbox "{sandbox.name}"'
    status = sandbox.status
    ready = status.condition(api.READY)
    if sandbox.deleting:
        return Blocker(f"its {name} is being deleted")
    if ready is None:
        return Blocker(f"no controller has reconciled its {name} yet")
    if ready["status"] == TRUE:
        return Blocker(f"its {name} is ready; the claim's status is about to be updated")
    message, reason = ready["message"], ready["reason"]
    if reason == api.SANDBOX_EXPIRED[0]:
        return Blocker(f"its {name} has expired", "create a new claim")
    if sandbox.asleep:
        return Blocker(f"its {name} is {asleep_since(sandbox).removeprefix('it is ')}", WAKE_ADVICE)
    if reason == api.SANDBOX_SUSPENDED:
        return Blocker(f"its {name} is suspended", "resume it: set operatingMode to Running")
    if reason == api.MULTIPLE_PODS:
        return Blocker(f"its {name} has several pods: {message}", "delete all of them but one")
    if reason == api.RECONCILER_ERROR and _is_quota(message):
        return _quota(message)
    if reason == api.RECONCILER_ERROR:
        return Blocker(f"its {name} cannot be created: {message}", "fix the cause that the message names")
    if reason in (api.POD_SUCCEEDED[0], api.POD_FAILED[0]):
        return _ended(observed, f"the pod of its {name} has ended: {message}")
    return pod_blocker(observed, sandbox, message)


def _ended(observed: Observed, cause: str) -> Blocker:
    """A pod that ended. The sandbox's message is generic; the pod or an event has the cause."""
    refused = observed.warning(_UNSUPPORTED)
    why = observed.failure or (refused and f"{refused.reason}: {refused.note}")
    if not why:
        return Blocker(cause, "create a new claim; the logs may show why it ended")
    return Blocker(f"{cause}: {why}", "fix the cause, most likely in the template, and create a new claim")


def pod_blocker(observed: Observed, sandbox: SandboxView, message: str) -> Blocker:
    """Return why the pod of a sandbox is not ready. ``message`` is that of the sandbox's condition Ready."""
    scheduled = sandbox.status.condition(api.POD_SCHEDULED)
    if scheduled is not None and scheduled["status"] == FALSE:
        why = scheduled["message"] or _note(observed.warning(_UNSCHEDULED)) or scheduled["reason"]
        return Blocker(f"its pod cannot be scheduled: {why}", "add nodes, or request less in the template")
    for container in observed.containers:
        cause = f"{container.reason}: {container.message}" if container.message else container.reason
        if container.reason in PULLING:
            return _image(cause)
        if container.reason == CRASHING or container.restarts:
            return _crash(f'container "{container.name}" {_ends(container.restarts)}: {cause}')
        if container.reason not in ("", "ContainerCreating", "PodInitializing"):
            return Blocker(
                f'container "{container.name}" does not start: {cause}', "fix the cause that the message names"
            )
    return _by_events(observed, sandbox, message)


def _ends(restarts: int) -> str:
    """What happened to a container that ended and was restarted so many times."""
    if not restarts:
        return "ended"
    return "was restarted once" if restarts == 1 else f"was restarted {restarts} times"


def _by_events(observed: Observed, sandbox: SandboxView, message: str) -> Blocker:
    """The cause by the pod's events, if container statuses are empty or cannot be read."""
    if (unmounted := observed.warning(*_MOUNTING)) is not None:
        return Blocker(f"its pod cannot be set up: {unmounted.note}", "fix the cause that the message names")
    if (failed := observed.warning(FAILED, _BACK_OFF, *PULL_FAILURES)) is not None:
        if observed.is_pull_failure(failed):
            return _image(failed.note)
        if failed.reason == _BACK_OFF:
            return _crash(failed.note)
        return Blocker(f"a container does not start: {failed.note}", "fix the cause that the message names")
    status = sandbox.status
    if status.pod_ips and (probe := observed.warning(_UNHEALTHY)) is not None:
        return Blocker(f"its pod runs and is not ready: {probe.note}", "check the readiness probe and the logs")
    if status.condition(api.READY) is not None and status.condition(api.POD_SCHEDULED) is None and not status.node_name:
        return Blocker("its pod has not been created yet")
    return Blocker(f"its pod is starting: {message}")


def _image(cause: str) -> Blocker:
    return Blocker(f"an image cannot be pulled: {cause}", IMAGE_ADVICE)


def _crash(cause: str) -> Blocker:
    return Blocker(f"its pod keeps crashing: {cause}", "find the cause in its logs, and fix the template")


def _is_quota(message: str) -> bool:
    """Whether kube-apiserver refused an object because of a quota. Its error has no cause but the text."""
    return "exceeded quota" in message


def _quota(cause: str) -> Blocker:
    return Blocker(f"a quota of the namespace is exceeded: {cause}", "delete unused objects, or raise the quota")


def _note(event: EventView | None) -> str:
    return "" if event is None else event.note


def _age(observed: Observed) -> float:
    made = observed.claim.creation_timestamp
    return 0.0 if made is None else (observed.now - made).total_seconds()
