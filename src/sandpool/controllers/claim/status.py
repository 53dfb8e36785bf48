"""The status of a claim: name and addresses of its sandbox, and the conditions that the claim controller writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandpool.api import conditions as texts
from sandpool.api.conditions import (
    ENVIRONMENT_BOUND,
    FALSE,
    FINISHED,
    READY,
    STATE_LOST,
    TRUE,
    Condition,
    find_condition,
    observe_generation,
    remove_condition,
    set_condition,
)
from sandpool.api.events import EventSpec, claim_expired
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.api.times import timestamp
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import expiry
from sandpool.controllers.claim.errors import ClaimError, Retry, Status
from sandpool.controllers.claim.late_binding import BindingOutcome
from sandpool.controllers.writer import Patch
from sandpool.kube.patches import merge_diff

#: The types of the conditions that the claim controller writes. Each write of the status brings all of them that are
#: there to the claim's generation. Conditions of other controllers are left alone.
_WRITTEN: Final = frozenset({ENVIRONMENT_BOUND, FINISHED, READY, STATE_LOST})


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    conditions: Sequence[Condition]  # in the order of their types
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
        """The status as the API stores it, without empty fields."""
        sandbox: Object = {"name": self.sandbox_name} if self.sandbox_name else {}
        if self.pod_ips:
            sandbox["podIPs"] = list(self.pod_ips)
        status: Object = {"conditions": self.conditions} if self.conditions else {}
        return {**status, "sandbox": sandbox} if sandbox else status


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """The end of a reconcile: what to write, and when to reconcile again."""

    status: ClaimStatus
    patch: Patch | None  # None if the API has this status
    requeue_after: float | None  # seconds; None: when an object changes
    is_failure: bool = False  # retry with back-off
    event: EventSpec | None = None


def compute_status(
    claim: ClaimView,
    now: datetime,
    sandbox: SandboxView | None,
    error: ClaimError | None = None,
    *,
    expired: bool = False,
    binding: BindingOutcome | None = None,
) -> StatusUpdate:
    """Compute the status update of a claim.

    ``sandbox`` is the claim's sandbox as the API has it, ``error`` what was refused or went wrong. ``expired`` is set
    for the decisions about an expired claim. ``binding`` is what came of handing over its variables, if that was tried.
    """
    if expired and not expiry.is_marked(claim.conditions):
        return _expire(claim, ClaimStatus.of(claim), now)
    status = next_status(claim, sandbox, error, now, expired=expired, binding=binding)
    if not expired and expiry.has_expired(claim.lifecycle, status.conditions, now):
        # The pod has ended, and its time to live is over.
        return _expire(claim, status, now)
    is_failure = error is not None and error.retry is Retry.BACKOFF
    return StatusUpdate(status, _status_write(claim, status), _requeue(claim, status, error, now, expired), is_failure)


def _expire(claim: ClaimView, status: ClaimStatus, now: datetime) -> StatusUpdate:
    marked = marked_expired(claim, status, now)
    return StatusUpdate(marked, _status_write(claim, marked), expiry.SECOND_RECONCILE_SECONDS, event=claim_expired())


def _status_write(claim: ClaimView, status: ClaimStatus) -> Patch | None:
    body = status_patch(claim, status)
    return None if body is None else Patch(SANDBOX_CLAIM, claim.name, body, subresource="status")


def _requeue(
    claim: ClaimView, status: ClaimStatus, error: ClaimError | None, now: datetime, expired: bool
) -> float | None:
    times = []
    deadline = expiry.deadline(claim.lifecycle, status.conditions)
    if deadline is not None and not expired:
        times.append((deadline - now).total_seconds())
    if error is not None and error.retry is Retry.AFTER:
        times.append(error.seconds)
    return min(times, default=None)


def next_status(
    claim: ClaimView,
    sandbox: SandboxView | None,
    error: ClaimError | None,
    now: datetime,
    *,
    expired: bool = False,
    binding: BindingOutcome | None = None,
) -> ClaimStatus:
    """The status of a claim with ``sandbox`` and ``error``, each of which may be None."""
    before = ClaimStatus.of(claim)
    if error is not None and error.status is Status.UNTOUCHED and before.sandbox_name:
        return before
    conditions = observe_generation(before.conditions, _WRITTEN, claim.generation)
    conditions = _with_finished(conditions, claim, sandbox, timestamp(now), expired=expired)
    conditions = _with_state_loss(conditions, claim, sandbox, timestamp(now))
    conditions = _with_binding(conditions, claim, binding, timestamp(now))
    conditions = _with_ready(conditions, claim, sandbox, error, timestamp(now), expired=expired)
    if sandbox is not None:
        name, pod_ips = sandbox.name, sandbox.status.pod_ips
    elif error is None or error.status is Status.CLEAR:
        name, pod_ips = "", ()
    else:
        name, pod_ips = before.sandbox_name, before.pod_ips
    return ClaimStatus(_in_order(conditions), name, pod_ips)


def marked_expired(claim: ClaimView, status: ClaimStatus, now: datetime) -> ClaimStatus:
    """The status with Ready=False for expiry."""
    reason, message = texts.CLAIM_EXPIRED
    conditions = observe_generation(status.conditions, _WRITTEN, claim.generation)
    conditions = _ready(conditions, claim, reason, message, timestamp(now))
    return ClaimStatus(_in_order(conditions), status.sandbox_name, status.pod_ips)


def status_patch(claim: ClaimView, status: ClaimStatus) -> Object | None:
    """Body of the patch of the claim's status; None if it is up to date. The order of conditions does not matter.

    The resourceVersion is a precondition. If the claim has changed, the next reconcile computes the status from the
    newer version, so a conflict needs no resolution.
    """
    change = merge_diff(ClaimStatus.of(claim).to_object(), status.to_object())
    return None if not change else {"metadata": {"resourceVersion": claim.resource_version}, "status": change}


def _with_finished(
    conditions: Sequence[Condition], claim: ClaimView, sandbox: SandboxView | None, now: str, *, expired: bool
) -> Sequence[Condition]:
    """Copy the sandbox's Finished condition. An expired claim keeps it after its sandbox is gone, as the reason."""
    if sandbox is None:
        return conditions if expired else remove_condition(conditions, FINISHED)
    finished = sandbox.status.condition(FINISHED)
    if finished is None:
        return remove_condition(conditions, FINISHED)
    return _copied(conditions, finished, claim.generation, now)


def _with_state_loss(
    conditions: Sequence[Condition], claim: ClaimView, sandbox: SandboxView | None, now: str
) -> Sequence[Condition]:
    """Copy the StateLost condition of the sandbox. A claim keeps it after its sandbox is gone, as the reason."""
    if sandbox is None:
        return conditions
    lost = sandbox.status.condition(STATE_LOST)
    if lost is None:
        return remove_condition(conditions, STATE_LOST)
    known = find_condition(conditions, STATE_LOST)
    if known is not None and known["lastTransitionTime"] != lost["lastTransitionTime"]:
        conditions = remove_condition(conditions, STATE_LOST)  # another loss
    return _copied(conditions, lost, claim.generation, now)


def _with_binding(
    conditions: Sequence[Condition], claim: ClaimView, binding: BindingOutcome | None, now: str
) -> Sequence[Condition]:
    """EnvironmentBound as this process knows it, or else as it was."""
    if binding is None:
        return conditions
    return set_condition(
        conditions,
        ENVIRONMENT_BOUND,
        binding.status,
        binding.reason,
        binding.message,
        observed_generation=claim.generation,
        now=now,
    )


def _with_ready(
    conditions: Sequence[Condition],
    claim: ClaimView,
    sandbox: SandboxView | None,
    error: ClaimError | None,
    now: str,
    *,
    expired: bool,
) -> Sequence[Condition]:
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


def _ready(
    conditions: Sequence[Condition], claim: ClaimView, reason: str, message: str, now: str
) -> Sequence[Condition]:
    return set_condition(conditions, READY, FALSE, reason, message, observed_generation=claim.generation, now=now)


def _copied(conditions: Sequence[Condition], condition: Condition, generation: int, now: str) -> Sequence[Condition]:
    """Copy a condition of the sandbox, including its transition time."""
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
