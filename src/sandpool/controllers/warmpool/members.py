"""Who belongs to a pool.

A pool owns its members by controller reference; the label is only how they are found. A sandbox that was claimed has
another owner from that moment on and is none of the pool's business any more, whatever its labels say. A sandbox with
the pool's label and no owner at all is an orphan, left behind by a former pool of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM, WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, WarmPoolView, adopted_by
from sandpool.controllers.writer import Delete, Patch


@dataclass(frozen=True, slots=True)
class Members:
    owned: tuple[SandboxView, ...]  # of this pool, and not on their way out
    orphans: tuple[SandboxView, ...]
    # Of this pool and on their way out. They still take up room: their pods still run.
    terminating: int


def sort_members(pool: WarmPoolView, sandboxes: Iterable[SandboxView], pending_deletions: Set[str]) -> Members:
    """``pending_deletions`` are the UIDs of those that we deleted and that the cache still shows alive."""
    label = name_hash(pool.name)
    owned: list[SandboxView] = []
    orphans: list[SandboxView] = []
    terminating = 0
    for sandbox in sandboxes:
        if sandbox.namespace != pool.namespace:
            continue
        if sandbox.controlled_by(pool):
            if sandbox.deleting or sandbox.uid in pending_deletions:
                terminating += 1
            else:
                owned.append(sandbox)
        elif sandbox.owner is None and not sandbox.deleting and sandbox.labels.get(WARM_POOL) == label:
            orphans.append(sandbox)
    return Members(tuple(owned), tuple(orphans), terminating)


def repair(sandbox: SandboxView, pool: WarmPoolView) -> Patch | None:
    """What a member's labels need, None if they are as they should be: members that were made by others may lack them,
    and without the pool's label no claim would ever find the sandbox. Not if a claim has taken it in the meantime."""
    wanted = {WARM_POOL: name_hash(pool.name), LAUNCH_TYPE: LAUNCH_WARM}
    missing = {key: value for key, value in wanted.items() if sandbox.labels.get(key) != value}
    return _patch(sandbox, {"labels": missing}) if missing else None


def adoption(sandbox: SandboxView, pool: WarmPoolView) -> Patch:
    """Make an orphan a member, unless a claim, or anybody else, was faster."""
    metadata: Object = {"ownerReferences": adopted_by(sandbox, SANDBOX_WARM_POOL, pool)}
    if sandbox.labels.get(LAUNCH_TYPE) != LAUNCH_WARM:
        metadata["labels"] = {LAUNCH_TYPE: LAUNCH_WARM}
    return _patch(sandbox, metadata)


def deletion(sandbox: SandboxView) -> Delete:
    """Take a sandbox out of the pool, if it still is as it was seen: a claim may have taken it in the meantime."""
    return Delete(SANDBOX, sandbox.name, sandbox.uid, sandbox.resource_version)


def _patch(sandbox: SandboxView, metadata: Object) -> Patch:
    """Of the sandbox as it was seen, else the API refuses."""
    precondition = {"uid": sandbox.uid, "resourceVersion": sandbox.resource_version}
    return Patch(SANDBOX, sandbox.name, {"metadata": {**precondition, **metadata}})
