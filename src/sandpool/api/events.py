"""Events of the controllers: reporter, type, reason, action and note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
#: The action of our node's events about images.
PULLING: Final = "Pulling"

SANDBOX_CONTROLLER: Final = "sandbox-controller"
CLAIM_CONTROLLER: Final = "sandboxclaim-controller"
WARM_POOL_CONTROLLER: Final = "sandboxwarmpool-controller"


@dataclass(frozen=True, slots=True)
class EventSpec:
    """The content of an event without its object and time."""

    reporter: str
    type: str
    reason: str
    action: str
    note: str


def multiple_pods(message: str) -> EventSpec:
    return EventSpec(SANDBOX_CONTROLLER, WARNING, "MultiplePods", "Reconciling", message)


def state_lost(cause: str, message: str) -> EventSpec:
    """A sandbox goes on without its state. The reference has no such event."""
    return EventSpec(SANDBOX_CONTROLLER, WARNING, "StateLost", "Restarting", f"{cause}: {message}")


def sandbox_adopted(sandbox: str) -> EventSpec:
    return EventSpec(CLAIM_CONTROLLER, NORMAL, "SandboxAdopted", "Adoption", f'Adopted warm pool Sandbox "{sandbox}"')


def late_binding_failed(sandbox: str, why: str) -> EventSpec:
    """A claim gets a sandbox of its own after all. The reference has no such event: it never binds late."""
    note = f'Deleted warm Sandbox "{sandbox}", because the variables of the claim could not be handed to it: {why}'
    return EventSpec(CLAIM_CONTROLLER, WARNING, "LateBindingFailed", "Binding", note)


def sandbox_provisioned(sandbox: str) -> EventSpec:
    return EventSpec(CLAIM_CONTROLLER, NORMAL, "SandboxProvisioned", "Provisioning", f'Created Sandbox "{sandbox}"')


def duplicates_deleted(sandbox: str, kept: str) -> EventSpec:
    """A claim owned two sandboxes. The reference has no such event: it keeps both sandboxes."""
    note = f'Deleted duplicate Sandbox "{sandbox}": the claim already has Sandbox "{kept}"'
    return EventSpec(CLAIM_CONTROLLER, WARNING, "SurplusSandboxDeleted", "Deleting", note)


def claim_limit_reached(message: str) -> EventSpec:
    """A claim waits because of the limit of its namespace. The reference has no such event."""
    return EventSpec(CLAIM_CONTROLLER, WARNING, "ClaimLimitReached", "Waiting", message)


def claim_refused(reason: str, message: str, advice: str) -> EventSpec:
    """A policy of the template refuses the claim. The reference has no such event, and its conditions name no field."""
    return EventSpec(CLAIM_CONTROLLER, WARNING, reason, "Provisioning", f"{message}: {advice}, or change the claim")


def warm_pool_limited(message: str) -> EventSpec:
    """A pool is kept smaller than it asks for. The reference has no such event."""
    return EventSpec(WARM_POOL_CONTROLLER, WARNING, "SizeLimited", "Scaling", message)


def claim_expired() -> EventSpec:
    return EventSpec(CLAIM_CONTROLLER, NORMAL, "ClaimExpired", "Claim Expired", "Claim expired")


def deleting_claim(shutdown_policy: str) -> EventSpec:
    note = f"Deleting Claim (ShutdownPolicy={shutdown_policy})"
    return EventSpec(CLAIM_CONTROLLER, NORMAL, "ClaimExpired", "Deleting", note)


def warm_pool_not_progressing(unschedulable: int, desired: int, grace_seconds: float) -> EventSpec:
    note = (
        f"{unschedulable}/{desired} sandboxes are unschedulable past the {go_duration(grace_seconds)} readiness grace "
        "period; holding them instead of replacing (replacements would be equally unschedulable)"
    )
    return EventSpec(WARM_POOL_CONTROLLER, WARNING, "WarmPoolNotProgressing", "Reconciling", note)


def warm_pool_progressing() -> EventSpec:
    note = "Warm pool is progressing again"
    return EventSpec(WARM_POOL_CONTROLLER, NORMAL, "WarmPoolProgressing", "Reconciling", note)


def go_duration(seconds: float) -> str:
    """Format a duration like Go: 5m0s, 1h0m0s, 1.5s, 500ms."""
    nanoseconds = round(seconds * 10**9)
    sign, nanoseconds = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        unit, size = next(each for each in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if nanoseconds >= each[1])
        return f"{sign}{_decimal(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else sign + text


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")
