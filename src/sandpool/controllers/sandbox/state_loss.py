"""Detects that a sandbox has lost its state: its processes, their memory, and its files outside volumes.

A sandbox keeps its name and its address while a container restarts or a new pod replaces the old one, so a client
cannot tell from a successful request that its work is gone. The condition StateLost tells it, with the cause and the
time. It stays until the sandbox is suspended, which ends a life on purpose, and shows the latest loss.

Only losses since the sandbox was handed out count: a member of a pool that restarts while it is idle has no state.

A pod that is lost goes through several states: it fails, it is deleted, another one is created. That is one loss. A pod
that is deleted fails because it is stopped, so its replacement shows the loss. Any other failure shows it at once, with
its cause, and the replacement adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sandpool.api.conditions import (
    FINISHED,
    STATE_LOST,
    TRUE,
    Condition,
    find_condition,
    remove_condition,
    set_condition,
)
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.views import ClaimView, PodView, SandboxView
from sandpool.api.views.pod import FAILED, OOM_KILLED
from sandpool.api.views.times import parse_time

_GONE: Final = "Processes and files outside volumes are gone."


class StateLoss(NamedTuple):
    reason: str
    message: str
    time: str


def in_use_since(sandbox: SandboxView, claim: ClaimView | None) -> datetime | None:
    """When a client may have begun to use the sandbox; None if none can. ``claim`` is its owner, if that is a claim: a
    warm sandbox was handed out after the claim had been created."""
    if sandbox.owner is not None and sandbox.owner.type is SANDBOX_WARM_POOL:
        return None
    if sandbox.owner is not None and sandbox.owner.type is SANDBOX_CLAIM:
        return None if claim is None else claim.creation_timestamp
    return sandbox.creation_timestamp


def detect(
    sandbox: SandboxView, pod: PodView | None, since: datetime, *, is_created: bool, now: str
) -> StateLoss | None:
    """The latest loss since ``since``. ``is_created``: this reconcile creates the pod of the sandbox."""
    if is_created:
        # The status still shows the pod that is gone.
        return _replaced(now) if sandbox.status.node_name and not _is_reported(sandbox) else None
    if pod is None or not pod.controlled_by(sandbox):
        return None
    end = pod.last_end
    if pod.phase == FAILED:
        if not sandbox.status.pod_ips or sandbox.status.condition(FINISHED) is not None:
            return None  # it never served a client, or the status shows the loss already
        if pod.deleting and not pod.reason:
            return None  # it failed because it was stopped: the pod that replaces it shows the loss
        reason = pod.reason or (OOM_KILLED if end is not None and end.reason == OOM_KILLED else "PodFailed")
        details = pod.message or ("no reason was reported." if end is None else f"{end.describe()}.")
        return StateLoss(reason, f"The pod failed: {details} {_GONE}", now)
    ended = None if end is None else parse_time(end.finished_at)
    if end is not None and (ended is None or ended >= since):
        reason = OOM_KILLED if end.reason == OOM_KILLED else "ContainerRestarted"
        return StateLoss(reason, f"C{end.describe()[1:]}. It was restarted. {_GONE}", end.finished_at or now)
    # A pod keeps its address. Times are no evidence: the clocks of the API and of this process differ.
    known = sandbox.status.pod_ips
    return _replaced(now) if known and pod.ips and known[0] != pod.ips[0] else None


def with_state_loss(
    conditions: Sequence[Condition], sandbox: SandboxView, loss: StateLoss | None, now: str
) -> Sequence[Condition]:
    """The conditions with that of the latest loss. Its transition time is the time of the loss."""
    if not conditions and loss is None:
        return conditions
    before = find_condition(conditions, STATE_LOST)
    if sandbox.suspended:
        return remove_condition(conditions, STATE_LOST)
    if loss is None:
        if before is None:
            return conditions
        reason, message, time = before["reason"], before["message"], before["lastTransitionTime"]
    else:
        reason, message, time = loss
        if before is not None and (before["reason"], before["message"]) != (reason, message):
            conditions = remove_condition(conditions, STATE_LOST)
    return set_condition(
        conditions,
        STATE_LOST,
        TRUE,
        reason,
        message,
        observed_generation=sandbox.generation,
        now=now,
        last_transition_time=time,
    )


def newly_lost(before: Sequence[Condition], after: Sequence[Condition]) -> Condition | None:
    """The condition of a loss that ``before`` does not show."""
    if after is before or (found := find_condition(after, STATE_LOST)) is None:
        return None
    known = find_condition(before, STATE_LOST)
    return None if known is not None and known["message"] == found["message"] else found


def _is_reported(sandbox: SandboxView) -> bool:
    """Whether the status shows the end of the pod as a loss already: both conditions came with one status."""
    lost, finished = sandbox.status.condition(STATE_LOST), sandbox.status.condition(FINISHED)
    return lost is not None and finished is not None and lost["lastTransitionTime"] == finished["lastTransitionTime"]


def _replaced(time: str) -> StateLoss:
    return StateLoss("PodReplaced", f"The pod is gone, and another one replaced it at {time}. {_GONE}", time)
