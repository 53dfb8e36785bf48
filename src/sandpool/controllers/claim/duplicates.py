"""What to do about a claim that owns more than one sandbox.

It should not happen, and a process on its own never lets it: who does not know what became of an adoption tries the
same sandbox again. But a request may be carried out long after its sender is gone. Its successor has looked, found the
claim without a sandbox and given it another one, and then the first one becomes the claim's, too.

One of them stays: the one the claim's status names, since that is where people are; else the one its metadata name, or
that has its own name; else the oldest, so that everybody who looks comes to the same result. The others are deleted.
None is given to another claim: nobody knows whether it was used.

The status that counts is the API's. Ours may be old, and say nothing of a sandbox people work in already. So the claim
is read once more before anything is deleted, and nothing is unless it names the sandbox that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.references import referenced_names
from sandpool.controllers.writer import Delete

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def primary_sandbox(claim: ClaimView, owned: Sequence[SandboxView]) -> SandboxView:
    """Of the sandboxes a claim owns, the one that is its sandbox. There must be one."""
    by_name = {sandbox.name: sandbox for sandbox in owned}
    for name in referenced_names(claim):
        if name in by_name:
            return by_name[name]
    return min(owned, key=lambda sandbox: (sandbox.creation_timestamp or _LONG_AGO, sandbox.name))


def duplicates(claim: ClaimView, owned: Sequence[SandboxView], stays: SandboxView) -> tuple[SandboxView, ...]:
    """Those that are to go. None while the one that stays is being deleted: one of the others is next then. Nor what
    was neither adopted nor made for the claim: who put the claim's name on that as its owner knows why."""
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
    """What to delete now that the claim was read again, as ``latest``. Nothing means that things are not as they were
    when ``claim`` was looked at."""
    if latest.uid != claim.uid or latest.deleting or latest.sandbox_name != stays.name:
        return ()
    return tuple(Delete(SANDBOX, sandbox.name, sandbox.uid, sandbox.resource_version) for sandbox in duplicates)
