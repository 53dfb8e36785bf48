"""Conditions: their types, reasons and exact messages, and how a list of them is changed.

Clients wait for and print these texts. Which one holds when is decided by the controllers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sandpool.api.resource import SharedObject

Condition = dict[str, Any]

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

READY: Final = "Ready"
SUSPENDED: Final = "Suspended"
FINISHED: Final = "Finished"
POD_SCHEDULED: Final = "PodScheduled"
#: Of our own: the sandbox goes on, but its processes and files outside volumes are gone.
STATE_LOST: Final = "StateLost"

#: Of our own, on Pods that were frozen because they were not used (``node.sleep``): whether their processes are.
POD_FROZEN: Final = "sandpool.dev/Frozen"

# --- Sandbox: Suspended ----------------------------------------------------------------------------------------------

NOT_SUSPENDED: Final = ("NotSuspended", "Sandbox is not suspended")
POD_STATE_UNKNOWN: Final = ("PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed")
POD_TERMINATED: Final = ("PodTerminated", "Pod has been terminated. Sandbox is suspended")
POD_NOT_OWNED: Final = ("PodNotOwned", "Refused to delete pod because it is not owned by this sandbox")
POD_TERMINATING: Final = ("PodTerminating", "Pod is terminating. Sandbox is suspending")

# --- Sandbox: Finished, and Ready once the pod has ended -------------------------------------------------------------

POD_SUCCEEDED: Final = ("PodSucceeded", "Pod completed successfully")
POD_FAILED: Final = ("PodFailed", "Pod failed")

# --- Sandbox: PodScheduled -------------------------------------------------------------------------------------------

POD_SCHEDULING_UNKNOWN: Final = "PodSchedulingUnknown"
NOT_REPORTED: Final = (POD_SCHEDULING_UNKNOWN, "Pod has not reported a PodScheduled condition yet")
SCHEDULING_UNDETERMINED: Final = (
    POD_SCHEDULING_UNKNOWN,
    "Pod state is unknown. Pod scheduling cannot be determined",
)

# --- Sandbox: Ready --------------------------------------------------------------------------------------------------

MULTIPLE_PODS: Final = "MultiplePods"
RECONCILER_ERROR: Final = "ReconcilerError"
SANDBOX_SUSPENDED: Final = "SandboxSuspended"
SANDBOX_SUSPENDING_MESSAGE: Final = "Sandbox is suspending"
SANDBOX_SUSPENDED_MESSAGE: Final = "Sandbox is suspended"
SANDBOX_ASLEEP_MESSAGE: Final = "Sandbox is asleep because it was not used. The next request resumes it"
DEPENDENCIES_READY: Final = "DependenciesReady"
DEPENDENCIES_NOT_READY: Final = "DependenciesNotReady"
SANDBOX_EXPIRED: Final = ("SandboxExpired", "Sandbox has expired")

POD_MISSING: Final = "Pod does not exist"
POD_NOT_READY: Final = "Pod is Running but not Ready"
POD_WITHOUT_ADDRESS: Final = "Pod is Ready but has no podIPs yet"
POD_READY: Final = "Pod is Ready"
SERVICE_EXISTS: Final = "; Service Exists"
SERVICE_MISSING: Final = "; Service does not exist"

# --- SandboxClaim: Ready, where it does not repeat the sandbox's ------------------------------------------------------

TEMPLATE_NOT_FOUND: Final = "TemplateNotFound"
WARM_POOL_NOT_FOUND: Final = "WarmPoolNotFound"
ADOPTION_CONFLICT: Final = "AdoptionConflict"
INVALID_METADATA: Final = "InvalidMetadata"
ENV_VARS_INJECTION_REJECTED: Final = "EnvVarsInjectionRejected"
VOLUME_CLAIM_TEMPLATES_ERROR: Final = "VolumeClaimTemplatesError"
#: Of our own: as many claims of the namespace have a sandbox as may.
CLAIM_LIMIT_REACHED: Final = "ClaimLimitReached"
SANDBOX_CREATE_PENDING: Final = ("SandboxCreatePending", "Sandbox already created; waiting for cache to converge")
CLAIM_EXPIRED: Final = ("ClaimExpired", "Claim expired. Sandbox cleanup initiated.")
SANDBOX_MISSING: Final = ("SandboxMissing", "Sandbox does not exist")
CLAIMED_SANDBOX_EXPIRED: Final = (
    "SandboxExpired",
    "Underlying Sandbox resource has expired independently of the Claim.",
)
SANDBOX_NOT_READY: Final = ("SandboxNotReady", "Sandbox is not ready")

# Whether the variables of the claim were handed to a warm sandbox; absent if the template does not opt in. While a
# sandbox that the claim has used does not acknowledge them again, Ready has the reason ENVIRONMENT_NOT_BOUND.
ENVIRONMENT_BOUND: Final = "EnvironmentBound"
BINDING_ACKNOWLEDGED: Final = "Acknowledged"
BINDING_NOT_POSSIBLE: Final = "NotPossible"
BINDING_UNAVAILABLE: Final = "SandboxUnavailable"
BINDING_FORBIDDEN: Final = "Forbidden"
BINDING_REFUSED: Final = "SandboxRefused"
BINDING_TIMED_OUT: Final = "TimedOut"
ENVIRONMENT_NOT_BOUND: Final = "EnvironmentNotBound"

# --- SandboxWarmPool: Progressing, Available and ReplicaFailure ------------------------------------------------------
# Progressing is False only for problems that waiting does not solve. Available depends only on the ready members.

PROGRESSING: Final = "Progressing"
AVAILABLE: Final = "Available"

CREATION_FAILING: Final = "CreationFailing"
UNSCHEDULABLE: Final = "Unschedulable"
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
ROLLING_OUT: Final = "RollingOut"
REPLENISHING: Final = "Replenishing"
OUTDATED_IN_USE: Final = "OutdatedInUse"
COMPLETE: Final = "Complete"
#: Of our own: the namespace may not keep as many warm sandboxes as the pool asks for.
SIZE_LIMITED: Final = "SizeLimited"
#: Of our own: True while a member does not start, with the cause; absent otherwise. Progressing shows the same cause at
#: the end of its message, and becomes False only when the readiness grace period is over.
REPLICA_FAILURE: Final = "ReplicaFailure"
MEMBER_NOT_STARTING: Final = "MemberNotStarting"
ENOUGH_READY: Final = "MinimumReplicasAvailable"
TOO_FEW_READY: Final = "MinimumReplicasUnavailable"


def multiple_pods_message(count: int) -> str:
    return f"multiple Pods ({count}) are controlled by this Sandbox; refusing to choose or create a Pod"


def error_message(errors: str) -> str:
    return f"Error seen: {errors}"


def pod_phase_message(phase: str) -> str:
    return f"Pod exists with phase: {phase}"


def template_not_found_message(name: str) -> str:
    return f'SandboxTemplate "{name}" not found'


def warm_pool_not_found_message(name: str) -> str:
    return f'SandboxWarmPool "{name}" not found'


def claim_limit_message(namespace: str, limit: int) -> str:
    return (
        f'namespace "{namespace}" has as many claims with a sandbox as it may have ({limit}): this one is served when '
        "another is released or the limit is raised"
    )


def size_limit_message(namespace: str, limit: int, kept: int, wanted: int) -> str:
    return (
        f'namespace "{namespace}" limits the warm sandboxes of all its pools to {limit}: this pool keeps {kept} of '
        f"{wanted}"
    )


def adoption_conflict_message(detail: str) -> str:
    return f"{detail}; the next pass retries from a converged view"


def invalid_metadata_message(detail: str) -> str:
    return f"invalid additionalPodMetadata: {detail}"


def environment_bound_message(count: int) -> str:
    return f"{count} {'variable was' if count == 1 else 'variables were'} handed to the warm sandbox"


def env_vars_rejected_message(detail: str) -> str:
    return f"environment variable injection rejected: {detail}"


def expired_but_not_owned_message(detail: str) -> str:
    """The claim has expired, and a sandbox with its name belongs to another owner."""
    return f"Claim expired. {detail}; deletion skipped."


# --- lists of conditions ---------------------------------------------------------------------------------------------


def find_condition(conditions: Sequence[Condition], type: str) -> Condition | None:
    for condition in conditions:
        if condition["type"] == type:
            return condition
    return None


def condition_of(obj: SharedObject, type: str) -> Condition | None:
    """The condition of a type in an object's status; None if absent."""
    return find_condition((obj.get("status") or {}).get("conditions") or [], type)


def is_ready(obj: SharedObject) -> bool:
    """Whether the Ready condition of an object of any kind is True."""
    condition = condition_of(obj, READY)
    return condition is not None and condition["status"] == TRUE


def set_condition(
    conditions: Sequence[Condition],
    type: str,
    status: str,
    reason: str,
    message: str,
    *,
    observed_generation: int,
    now: str,
    last_transition_time: str = "",
) -> Sequence[Condition]:
    """Set one condition in a list. Returns the same list if nothing changed.

    ``lastTransitionTime`` moves only when the status changes, to ``last_transition_time`` if there is one (a condition
    copied from another object keeps its own) and else to ``now``. A known condition keeps its place, a new one is last.
    """
    before = find_condition(conditions, type)
    moved = before is None or before["status"] != status
    since = (last_transition_time or now) if moved or before is None else before["lastTransitionTime"]
    after = {
        "type": type,
        "status": status,
        "observedGeneration": observed_generation,
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
    if not observed_generation:
        del after["observedGeneration"]
    if before is None:
        return [*conditions, after]
    if before == after:
        return conditions
    return [after if condition is before else condition for condition in conditions]


def observe_generation(conditions: Sequence[Condition], types: Collection[str], generation: int) -> Sequence[Condition]:
    """Set the observed generation of these condition types. Returns the same list if nothing changed.

    For conditions that a controller keeps as they are. Without this, clients that wait until ``observedGeneration``
    has caught up (kstatus, Argo CD, Flux) would wait for ever. Conditions of other controllers are left alone.
    """
    if not generation or all(
        each.get("observedGeneration") == generation for each in conditions if each["type"] in types
    ):
        return conditions
    return [{**each, "observedGeneration": generation} if each["type"] in types else each for each in conditions]


def remove_condition(conditions: Sequence[Condition], type: str) -> Sequence[Condition]:
    """Remove a condition from a list. Returns the same list if the condition is absent."""
    if find_condition(conditions, type) is None:
        return conditions
    return [condition for condition in conditions if condition["type"] != type]
