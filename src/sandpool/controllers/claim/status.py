"""What a claim says about its sandbox: its name and addresses, and the conditions Ready and Finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sandpool.api import conditions as texts
from sandpool.api.conditions import (
    FALSE,
    FINISHED,
    READY,
    TRUE,
    Condition,
    find_condition,
    observe_generation,
    remove_condition,
    set_condition,
)
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.errors import ClaimError, Status
from sandpool.kube.patches import merge_diff


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    conditions: list[Condition]  # in the order of their types
    sandbox_name: str = ""
    pod_ips: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: ClaimView) -> ClaimStatus:
        return cls(_in_order(claim.conditions), claim.sandbox_name, claim.pod_ips)

    @property
    def ready(self) -> bool:
        condition = find_condition(self.conditions, READY)
        return condition is not None and condition["status"] == TRUE

    def to_object(self) -> Object:
        """What the API stores: nothing for what is empty."""
        sandbox: Object = {"name": self.sandbox_name} if self.sandbox_name else {}
        if self.pod_ips:
            sandbox["podIPs"] = list(self.pod_ips)
        status: Object = {"conditions": self.conditions} if self.conditions else {}
        return {**status, "sandbox": sandbox} if sandbox else status


def next_status(
    claim: ClaimView, sandbox: SandboxView | None, error: ClaimError | None, now: datetime, *, expired: bool = False
) -> ClaimStatus:
    """The status of a claim that has ``sandbox``, or none, and that ran into ``error``, or none."""
    before = ClaimStatus.of(claim)
    if error is not None and error.status is Status.UNTOUCHED and before.sandbox_name:
        return before
    conditions = _with_finished(before.conditions, claim, sandbox, timestamp(now), expired=expired)
    conditions = _with_ready(conditions, claim, sandbox, error, timestamp(now), expired=expired)
    if sandbox is not None:
        name, pod_ips = sandbox.name, sandbox.status.pod_ips
    elif error is None or error.status is Status.CLEAR:
        name, pod_ips = "", ()
    else:
        name, pod_ips = before.sandbox_name, before.pod_ips
    return ClaimStatus(_in_order(conditions), name, pod_ips)


def marked_expired(claim: ClaimView, status: ClaimStatus, now: datetime) -> ClaimStatus:
    """The status, saying that the claim has expired."""
    reason, message = texts.CLAIM_EXPIRED
    conditions = observe_generation(status.conditions, (FINISHED,), claim.generation)
    conditions = _ready(conditions, claim, reason, message, timestamp(now))
    return ClaimStatus(_in_order(conditions), status.sandbox_name, status.pod_ips)


def status_patch(claim: ClaimView, status: ClaimStatus) -> Object | None:
    """The body of the patch of the claim's status; None if it says so already, in whichever order.

    It is for the version of the claim that was looked at. If there is another one by now, that will be looked at, too,
    so a conflict needs no answer.
    """
    change = merge_diff(ClaimStatus.of(claim).to_object(), status.to_object())
    return None if not change else {"metadata": {"resourceVersion": claim.resource_version}, "status": change}


def _with_finished(
    conditions: list[Condition], claim: ClaimView, sandbox: SandboxView | None, now: str, *, expired: bool
) -> list[Condition]:
    """Copy the Finished condition of the sandbox, at the generation of the claim. It outlives the sandbox of a claim
    that has expired, as the reason why."""
    if sandbox is None:
        kept = observe_generation(conditions, (FINISHED,), claim.generation)
        return kept if expired else remove_condition(conditions, FINISHED)
    finished = sandbox.status.condition(FINISHED)
    if finished is None:
        return remove_condition(conditions, FINISHED)
    return _copied(conditions, finished, claim.generation, now)


def _with_ready(
    conditions: list[Condition],
    claim: ClaimView,
    sandbox: SandboxView | None,
    error: ClaimError | None,
    now: str,
    *,
    expired: bool,
) -> list[Condition]:
    if error is not None:
        return _ready(conditions, claim, error.reason, error.message, now)
    if expired:
        return _ready(conditions, claim, *texts.CLAIM_EXPIRED, now)
    if sandbox is None:
        return _ready(conditions, claim, *texts.SANDBOX_MISSING, now)
    ready = sandbox.status.condition(READY)
    if ready is None:
        return _ready(conditions, claim, *texts.SANDBOX_NOT_READY, now)
    if ready["reason"] == texts.SANDBOX_EXPIRED[0]:
        return _ready(conditions, claim, *texts.CLAIMED_SANDBOX_EXPIRED, now)
    return _copied(conditions, ready, claim.generation, now)


def _ready(conditions: list[Condition], claim: ClaimView, reason: str, message: str, now: str) -> list[Condition]:
    return set_condition(conditions, READY, FALSE, reason, message, observed_generation=claim.generation, now=now)


def _copied(conditions: list[Condition], condition: Condition, generation: int, now: str) -> list[Condition]:
    """With a condition as the sandbox has it, and since when the sandbox has it."""
    return set_condition(
        conditions,
        condition["type"],
        condition["status"],
        condition["reason"],
        condition["message"],
        observed_generation=generation,
        now=now,
        last_transition_time=condition.get("lastTransitionTime") or "",
    )


def _in_order(conditions: Sequence[Condition]) -> list[Condition]:
    return sorted(conditions, key=lambda condition: str(condition["type"]))
