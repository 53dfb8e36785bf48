"""Which sandbox a claim has, or how it is to get one.

The owner of a Sandbox is the only record of whom it belongs to. Whatever else names one (the claim's status, an
annotation, a label of former times, the claim's own name) says where to look and, while adoption was under way when a
controller stopped, which sandbox to finish with. A claim that owns a sandbox is never given another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.assignment.candidates import is_pooled, refusal
from sandpool.controllers.claim.duplicates import primary_sandbox
from sandpool.controllers.claim.errors import failure
from sandpool.controllers.claim.references import assigned_name


class Source(Enum):
    BOUND = auto()  # the sandbox is the claim's
    RESUME = auto()  # the sandbox was assigned to the claim and is still to be adopted: this one and no other
    WARM = auto()  # one from the pool will do
    COLD = auto()  # it brings what a sandbox of the pool cannot have


@dataclass(frozen=True, slots=True)
class Resolution:
    source: Source
    sandbox: SandboxView | None = None  # there if BOUND or RESUME
    # The claim's metadata names a sandbox it will never get.
    is_reference_stale: bool = False


def resolve(claim: ClaimView, owned: Sequence[SandboxView], named: Mapping[str, SandboxView]) -> Resolution:
    """``owned`` are the sandboxes whose controller is the claim, ``named`` those of
    ``references.names_to_find`` that exist."""
    if owned:
        return Resolution(Source.BOUND, primary_sandbox(claim, owned))
    assigned = assigned_name(claim)
    is_stale = False
    if assigned:
        sandbox = named.get(assigned)
        if sandbox is None:
            is_stale = True
        elif is_pooled(sandbox):
            if not refusal(sandbox, claim):
                return Resolution(Source.RESUME, sandbox)
            is_stale = True
        elif sandbox.owner is not None and sandbox.owner.is_a(SANDBOX_CLAIM):
            is_stale = True
    if claim.name in named:
        raise failure(
            f'sandbox "{claim.name}" is not controlled by claim "{claim.name}". Please use a different claim name or '
            "delete the sandbox manually"
        )
    needs_own = bool(claim.env or claim.volume_claim_templates)
    return Resolution(Source.COLD if needs_own else Source.WARM, is_reference_stale=is_stale)


def launch_type(claim: ClaimView, sandbox: SandboxView) -> str:
    """How the claim came by its sandbox, also where nobody wrote it down: what was made for it has its name."""
    written = sandbox.labels.get(labels.LAUNCH_TYPE)
    if written:
        return written
    is_warm = sandbox.name == assigned_name(claim) or sandbox.name != claim.name
    return labels.LAUNCH_WARM if is_warm else labels.LAUNCH_COLD
