"""Who belongs to a pool.

A pool owns its members by controller reference; the label is only how they are found. A sandbox that was claimed has
another owner from that moment on and is none of the pool's business any more, whatever its labels say. A sandbox with
the pool's label and no owner at all is an orphan, left behind by a former pool of the same name.

The Sandbox a pool creates.

What becomes of sandboxes that carry the pool's label and belong to nobody.

Those the template would make today are taken in as far as there is room, and the rest is deleted: nobody else would
ever look after them. Without a template there is nothing to compare them with, and they are left alone.

Which members are no longer what their template describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import (
    CREATED_BY,
    CREATED_BY_CONTROLLER,
    LAUNCH_TYPE,
    LAUNCH_WARM,
    POD_TEMPLATE_HASH,
    SAFE_TO_EVICT,
    TEMPLATE_HASH,
    TEMPLATE_REF_HASH,
    WARM_POOL,
)
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, WarmPoolView, adopted_by, controller_reference
from sandpool.controllers.revision import TemplateRevision, new_sandbox
from sandpool.controllers.warmpool.scaling import least_useful
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


_EVICTABLE: Final = {SAFE_TO_EVICT: "true"}


def new_member(pool: WarmPoolView, revision: TemplateRevision, name: str, *, enable_eviction: bool) -> Object:
    """A member with a name made up by the caller (``names.generate_name`` with the prefix ``<pool>-``).

    ``enable_eviction`` lets the cluster autoscaler remove the pod, which nobody uses yet, unless the template says
    anything about that itself. It is said in the metadata of the Sandbox, from where it reaches the pod as long as a
    pool owns it: what a claim has to take back is then no change of the spec.
    """
    own = {
        WARM_POOL: name_hash(pool.name),
        POD_TEMPLATE_HASH: revision.pod_template_hash,
        TEMPLATE_HASH: revision.hash,
    }
    said = (revision.spec["podTemplate"].get("metadata") or {}).get("annotations") or {}
    return new_sandbox(
        revision,
        namespace=pool.namespace,
        name=name,
        owner=controller_reference(SANDBOX_WARM_POOL, pool),
        labels={**own, LAUNCH_TYPE: LAUNCH_WARM, CREATED_BY: CREATED_BY_CONTROLLER},
        annotations=_EVICTABLE if enable_eviction and SAFE_TO_EVICT not in said else None,
        pod_labels=own,
    )


@dataclass(frozen=True, slots=True)
class Orphans:
    adopt: tuple[SandboxView, ...] = ()
    discard: tuple[SandboxView, ...] = ()


def plan_orphans(
    orphans: Iterable[SandboxView],
    comparison: RevisionComparison | None,
    *,
    missing: int,
    terminating: int,
    expectations_met: bool,
) -> Orphans:
    """``missing``: how many more members there should be. As many as are terminating have to wait for that; and all
    have to wait until it is certain how many there are (``expectations_met``)."""
    if comparison is None:
        return Orphans()
    fitting: list[SandboxView] = []
    foreign: list[SandboxView] = []
    for orphan in orphans:
        (foreign if comparison.is_foreign(orphan) else fitting).append(orphan)
    if not expectations_met:
        return Orphans(discard=tuple(foreign))
    best_last = least_useful(fitting, len(fitting))
    too_many = best_last[: max(0, len(fitting) - max(0, missing))]
    adopted = best_last[max(0, len(fitting) - max(0, missing - terminating)) :]
    return Orphans(adopt=tuple(adopted), discard=(*foreign, *too_many))


class RevisionComparison:
    """Compares sandboxes with one blueprint, each former blueprint once.

    An own member carries the hash of what it was made from, and we wrote it. Equal hashes mean the same; different ones
    mean nothing yet, because a label of the pod template changes the hash and is no reason to replace anybody. So they
    are compared by meaning, and the members that carry the same former hash need no comparison of their own.
    """

    def __init__(self, revision: TemplateRevision) -> None:
        self.revision = revision
        self._verdicts: dict[str, bool] = {revision.hash: False}  # by the hash a sandbox was made from

    def is_outdated(self, sandbox: SandboxView) -> bool:
        """Whether a member should be replaced."""
        if self._of_another_template(sandbox):
            return True
        made_from = sandbox.labels.get(TEMPLATE_HASH, "")
        if not made_from:
            return not self.revision.matches(sandbox)
        verdict = self._verdicts.get(made_from)
        if verdict is None:
            verdict = self._verdicts[made_from] = not self.revision.matches(sandbox)
        return verdict

    def is_foreign(self, orphan: SandboxView) -> bool:
        """Whether an orphan is not what the template would make. Anybody may have written its labels, so its hash is
        not believed."""
        return self._of_another_template(orphan) or not self.revision.matches(orphan)

    def _of_another_template(self, sandbox: SandboxView) -> bool:
        return sandbox.labels.get(TEMPLATE_REF_HASH) != self.revision.ref_hash
