"""Which sandbox belongs to a claim.

The controller owner of a Sandbox is the only record of ownership. Everything else that names a sandbox (the claim's
status, an annotation, a legacy label, the claim's own name) is a reference: it says where to look and, if a controller
stopped during an adoption, which sandbox to finish with. A claim that owns a sandbox is never given another.

**Duplicates.** A claim can own two sandboxes. One process never causes that, because it retries an adoption of unknown
outcome with the same sandbox. But the API may carry out a request long after its sender has died. By then the successor
has found the claim without a sandbox and has adopted another one for it. One of the two stays: the one that the claim's
status names, because clients use that one; else the one that the claim's metadata name, or that has the claim's name;
else the oldest, so that every process makes the same choice. The others are deleted. They do not go back to the pool,
because they may have been used. The cached status may be old, so the claim is read from the API before anything is
deleted, and nothing is deleted unless that status names the sandbox that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.assignment.candidates import is_pooled, refusal
from sandpool.controllers.claim.errors import failure
from sandpool.controllers.writer import Delete

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class Source(Enum):
    """The origin of the sandbox of a claim."""

    BOUND = auto()  # the claim owns it
    RESUME = auto()  # it was assigned to the claim and is still to be adopted: this one and no other
    WARM = auto()  # any suitable one of the pool
    COLD = auto()  # created for the claim, which asks for more than a pooled sandbox has


@dataclass(frozen=True, slots=True)
class Resolution:
    source: Source
    sandbox: SandboxView | None = None  # set if BOUND or RESUME
    # The claim's metadata name a sandbox that the claim will never get.
    is_reference_stale: bool = False


def resolve(
    claim: ClaimView,
    owned: Sequence[SandboxView],
    named: Mapping[str, SandboxView],
    abandoned: str = "",
    *,
    binds_late: bool = False,
) -> Resolution:
    """Decide where the claim's sandbox comes from.

    ``owned`` are the sandboxes whose controller is the claim, ``named`` those of ``referenced_names`` that exist.
    ``abandoned`` is a sandbox that this process has referenced and then failed to adopt. ``binds_late``: the claim's
    variables can be handed to a warm sandbox.
    """
    if owned:
        return Resolution(Source.BOUND, primary_sandbox(claim, owned))
    assigned = assigned_name(claim)
    is_stale = False
    if assigned:
        sandbox = named.get(assigned)
        if sandbox is None or assigned == abandoned:
            is_stale = True
        elif is_pooled(sandbox):
            if not refusal(sandbox, claim):
                return Resolution(Source.RESUME, sandbox)
            is_stale = True
        elif sandbox.owner is not None and sandbox.owner.type is SANDBOX_CLAIM:
            is_stale = True
    if claim.name in named:
        raise failure(
            f'sandbox "{claim.name}" is not controlled by claim "{claim.name}". Please use a different claim name or '
            "delete the sandbox manually"
        )
    needs_own = bool(claim.volume_claim_templates) or (bool(claim.env) and not binds_late)
    return Resolution(Source.COLD if needs_own else Source.WARM, is_reference_stale=is_stale)


def assigned_name(claim: ClaimView) -> str:
    """The sandbox that the claim's metadata name. Earlier controllers used a label for it."""
    return claim.annotations.get(labels.SANDBOX_NAME) or claim.labels.get(labels.SANDBOX_NAME) or ""


def referenced_names(claim: ClaimView) -> tuple[str, ...]:
    """Names of the sandboxes to look up besides those that the claim owns, best first."""
    names = (claim.sandbox_name, assigned_name(claim), claim.name)
    return tuple(dict.fromkeys(name for name in names if name))


def identity_labels(claim: ClaimView) -> dict[str, str]:
    """Labels of a sandbox that name its claim and the tool that created the claim."""
    creator = claim.labels.get(labels.CREATED_BY)
    return {labels.CLAIM_UID: claim.uid, **({labels.CREATED_BY: creator} if creator else {})}


def launch_type(claim: ClaimView, sandbox: SandboxView) -> str:
    """Whether the sandbox was adopted or created. Without a label its name tells: a created one has the claim's."""
    written = sandbox.labels.get(labels.LAUNCH_TYPE)
    if written:
        return written
    is_warm = sandbox.name == assigned_name(claim) or sandbox.name != claim.name
    return labels.LAUNCH_WARM if is_warm else labels.LAUNCH_COLD


def primary_sandbox(claim: ClaimView, owned: Sequence[SandboxView]) -> SandboxView:
    """The one of the owned sandboxes that stays. ``owned`` must not be empty."""
    by_name = {sandbox.name: sandbox for sandbox in owned}
    for name in referenced_names(claim):
        if name in by_name:
            return by_name[name]
    return min(owned, key=lambda sandbox: (sandbox.creation_timestamp or _LONG_AGO, sandbox.name))


def duplicates(claim: ClaimView, owned: Sequence[SandboxView], stays: SandboxView) -> tuple[SandboxView, ...]:
    """The owned sandboxes that should go.

    None while ``stays`` is being deleted, because one of the others replaces it. A sandbox without the claim's UID
    label was neither adopted nor created by this controller; its owner reference is the decision of another writer.
    """
    if stays.deleting:
        return ()
    return tuple(
        sandbox
        for sandbox in owned
        if sandbox.uid != stays.uid and not sandbox.deleting and sandbox.labels.get(labels.CLAIM_UID) == claim.uid
    )


def duplicate_deletions(
    claim: ClaimView, latest: ClaimView, stays: SandboxView, duplicates: Sequence[SandboxView]
) -> tuple[Delete, ...]:
    """Deletes of the duplicates. Empty if ``latest``, the claim as the API has it, contradicts the decision."""
    if latest.uid != claim.uid or latest.deleting or latest.sandbox_name != stays.name:
        return ()
    return tuple(Delete(SANDBOX, sandbox.name, sandbox.uid, sandbox.resource_version) for sandbox in duplicates)
