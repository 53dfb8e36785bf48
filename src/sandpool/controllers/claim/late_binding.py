"""Late binding: a claim with variables gets a warm sandbox, and its variables are handed over before it is Ready.

The template opts in with an annotation, because only its author knows that its main process does not read the
variables when it starts. ``obstacle`` says what else keeps a claim from being bound late; the claim then gets a sandbox
of its own that has the variables in its pod, as the API says.

**Order.** The adoption marks the sandbox (``LATE_BOUND``) in the write that makes it the claim's. A marked sandbox must
have acknowledged the variables before the claim is Ready. So whichever process goes on after a crash finds from the
objects alone that it has to ask, and asking again is harmless: sandboxd acknowledges the same claim every time.

**Once per incarnation.** A sandbox that lost its processes has lost the variables, too. ``due`` therefore compares the
incarnation that was bound with the present one: its pod, the time of its last transition to Ready, and that of its last
loss of state. The times have whole seconds, in which a sandbox can be suspended and resumed. A claim whose status is
Ready for the same incarnation has been bound, so a successor does not ask for every claim. Every incarnation is given
only what the template allows then: the claim or the template may have changed since (``plan.handover_refusal``).

**Failure.** If the claim was never Ready, the sandbox is deleted, because variables may have reached it, and the claim
gets a sandbox of its own. The condition EnvironmentBound says why, and keeps later reconciles from trying again. If the
claim was Ready before, its sandbox is never deleted: the claim is not Ready until the sandbox acknowledges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sandpool.api import labels
from sandpool.api.conditions import (
    BINDING_ACKNOWLEDGED,
    BINDING_NOT_POSSIBLE,
    ENVIRONMENT_BOUND,
    FALSE,
    READY,
    STATE_LOST,
    TRUE,
    environment_bound_message,
)
from sandpool.api.resource import Key
from sandpool.api.views import ClaimView, PodView, SandboxView, TemplateView
from sandpool.engine.clock import Clock

#: Longest variable and longest sum of all, in bytes. The kernel refuses longer ones at every command.
MAX_VARIABLE_BYTES: Final = 1 << 16
MAX_BYTES: Final = 1 << 18
#: How long a revision whose sandboxes could not be bound gets no further ones.
AVOIDED_SECONDS: Final = 60.0


class SandboxIncarnation(NamedTuple):
    """One set of processes of a sandbox, from one transition to Ready or loss of state to the next."""

    sandbox: str  # UID
    pod: str  # UID; empty if the cache does not have the pod
    ready_since: str
    lost_at: str

    def is_after(self, bound: SandboxIncarnation) -> bool:
        """Whether this one has processes that the bound one, of the same sandbox, did not have."""
        is_another_pod = self.pod not in ("", bound.pod)
        return is_another_pod or (self.ready_since, self.lost_at) != (bound.ready_since, bound.lost_at)


@dataclass(frozen=True, slots=True)
class BindingOutcome:
    """The content of the condition EnvironmentBound."""

    is_bound: bool
    reason: str
    message: str

    @property
    def status(self) -> str:
        return TRUE if self.is_bound else FALSE


def opted_in(template: TemplateView) -> bool:
    return template.annotations.get(labels.LATE_BINDING) == "true"


def obstacle(claim: ClaimView, template: TemplateView) -> str:
    """The reason why the variables of a claim cannot be handed to a warm sandbox; empty if they can."""
    if not opted_in(template):
        return f'template "{template.name}" does not have the annotation {labels.LATE_BINDING}: "true"'
    if claim.volume_claim_templates:
        return "the claim sets volumeClaimTemplates, which a warm sandbox cannot get any more"
    pod_spec = template.pod_template.get("spec") or {}
    if pod_spec.get("hostNetwork"):
        return "the pods of the template use the network of the node"
    containers = pod_spec.get("containers") or [{}]
    total = 0
    for variable in claim.env:
        name, value = variable["name"], variable["value"]
        if variable.get("containerName") not in (None, "", containers[0].get("name")):
            return f'the variable "{name}" is for another container than the first'
        if not name or "=" in name or "\0" in name + value:
            return f'no environment can have the variable "{name}"'
        if "$(" in value or "$$" in value:
            return f'the variable "{name}" refers to others, which are resolved only when a pod starts'
        size = len(name.encode()) + len(value.encode())
        total += size
        if size > MAX_VARIABLE_BYTES or total > MAX_BYTES:
            return f'the variables are too long, up to "{name}"'
    return ""


def values(claim: ClaimView) -> Mapping[str, str]:
    """The variables to hand over. Of two with the same name the later one counts, as in a pod."""
    return {variable["name"]: variable["value"] for variable in claim.env}


def due(
    claim: ClaimView, sandbox: SandboxView, pod: PodView | None, bound: SandboxIncarnation | None
) -> SandboxIncarnation | None:
    """The incarnation of the claim's sandbox, and of its ``pod``, that has yet to be bound.

    None if it is bound, or not late-bound, or not ready. ``bound`` is the incarnation that this process has bound last.
    """
    if sandbox.annotations.get(labels.LATE_BOUND) != "true" or not sandbox.ready:
        return None
    incarnation = incarnation_of(sandbox, pod)
    if bound is not None and bound.sandbox == sandbox.uid:
        return incarnation if incarnation.is_after(bound) else None
    times = (incarnation.ready_since, incarnation.lost_at)
    is_reported = claim.ready and claim.sandbox_name == sandbox.name and _times(claim) == times
    return None if is_reported else incarnation


def incarnation_of(sandbox: SandboxView, pod: PodView | None) -> SandboxIncarnation:
    ready, lost = sandbox.status.condition(READY), sandbox.status.condition(STATE_LOST)
    return SandboxIncarnation(sandbox.uid, "" if pod is None else pod.uid, _since(ready), _since(lost))


def _times(claim: ClaimView) -> tuple[str, str]:
    """The claim's conditions are copies of the sandbox's, with their times."""
    return _since(claim.condition(READY)), _since(claim.condition(STATE_LOST))


def _since(condition: Mapping[str, object] | None) -> str:
    return "" if condition is None else str(condition.get("lastTransitionTime") or "")


def acknowledged(claim: ClaimView) -> BindingOutcome:
    return BindingOutcome(True, BINDING_ACKNOWLEDGED, environment_bound_message(len(values(claim))))


def not_possible(why: str) -> BindingOutcome:
    return BindingOutcome(False, BINDING_NOT_POSSIBLE, why)


def why_cold(claim: ClaimView, obstacle: str) -> str:
    """The reason why variables are in the pod of a new sandbox; empty if no warm sandbox was to have them."""
    condition = claim.condition(ENVIRONMENT_BOUND)
    was_bound = condition is not None and condition["status"] == TRUE
    return obstacle or ("the sandbox that had taken the variables is gone" if was_bound else "")


def failure_of(claim: ClaimView) -> str:
    """The reason why an earlier attempt for this claim has failed, by its status; empty if none has."""
    condition = claim.condition(ENVIRONMENT_BOUND)
    return "" if condition is None or condition["status"] != FALSE else condition["message"]


class AvoidedRevisions:
    """Revisions whose sandboxes could not be bound. Each attempt costs a warm sandbox, so the next one has to wait."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._avoided: dict[tuple[Key, str], tuple[float, str]] = {}  # by template and hash: until when, and why

    def add(self, template: Key, revision: str, message: str) -> None:
        now = self.clock.monotonic()
        self._avoided = {key: known for key, known in self._avoided.items() if known[0] > now}
        self._avoided[template, revision] = (now + AVOIDED_SECONDS, message)

    def why(self, template: Key, revision: str) -> str:
        """The reason why the revision is avoided now; empty if it is not."""
        known = self._avoided.get((template, revision))
        return known[1] if known is not None and known[0] > self.clock.monotonic() else ""
