"""Members of a pool: ownership, adoption of orphans, comparison with the template, and new members.

A pool owns its members by controller reference; the label only serves to find them. A sandbox that was claimed has
another owner from that moment on, and the pool ignores it whatever its labels are. A sandbox with the label of the pool
and no owner is an orphan, left behind by a former pool of the same name. Orphans that match the template are adopted as
far as there is room, and the others are deleted, since no other controller looks after them. Without a template there
is nothing to compare them with, and they are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
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
    """The sandboxes of a pool, sorted by what they are."""

    owned: tuple[SandboxView, ...]  # owned by the pool and not terminating
    orphans: tuple[SandboxView, ...]
    # Owned by the pool and terminating. They still take up room, since their pods still run.
    terminating: int


def sort_members(pool: WarmPoolView, sandboxes: Iterable[SandboxView], pending_deletions: Set[str]) -> Members:
    """``pending_deletions`` are UIDs of members that we deleted and that the cache still shows."""
    label, namespace, uid = name_hash(pool.name), pool.namespace, pool.uid
    owned: list[SandboxView] = []
    orphans: list[SandboxView] = []
    terminating = 0
    for sandbox in sandboxes:
        owner = sandbox.owner  # read directly, because this loop runs over every member with every reconcile
        if sandbox.namespace != namespace:
            continue
        if owner is not None and owner.uid == uid:
            if sandbox.deletion_timestamp is not None or sandbox.uid in pending_deletions:
                terminating += 1
            else:
                owned.append(sandbox)
        elif owner is None and not sandbox.deleting and sandbox.labels.get(WARM_POOL) == label:
            orphans.append(sandbox)
    return Members(tuple(owned), tuple(orphans), terminating)


def repairs(members: Iterable[SandboxView], pool: WarmPoolView) -> list[Patch]:
    """The patches for missing labels of members. Members of other implementations may lack them, and without the label
    of the pool no claim would find the sandbox. A patch fails if a claim has adopted the sandbox meanwhile."""
    wanted = {WARM_POOL: name_hash(pool.name), LAUNCH_TYPE: LAUNCH_WARM}
    found: list[Patch] = []
    complete: Mapping[str, str] | None = None  # the labels of a member that has all; views share equal labels
    for member in members:
        if member.labels is complete:
            continue
        lacking = {key: value for key, value in wanted.items() if member.labels.get(key) != value}
        if lacking:
            found.append(_patch(member, {"labels": lacking}))
        else:
            complete = member.labels
    return found


def adoption(sandbox: SandboxView, pool: WarmPoolView) -> Patch:
    """The patch that makes an orphan a member. It fails if a claim, or another client, was faster."""
    metadata: Object = {"ownerReferences": adopted_by(sandbox, SANDBOX_WARM_POOL, pool)}
    if sandbox.labels.get(LAUNCH_TYPE) != LAUNCH_WARM:
        metadata["labels"] = {LAUNCH_TYPE: LAUNCH_WARM}
    return _patch(sandbox, metadata)


def deletion(sandbox: SandboxView) -> Delete:
    """Delete a member, if it is unchanged: a claim may have adopted it meanwhile."""
    return Delete(SANDBOX, sandbox.name, sandbox.uid, sandbox.resource_version)


def _patch(sandbox: SandboxView, metadata: Object) -> Patch:
    """A patch with the version of the sandbox as precondition."""
    precondition = {"uid": sandbox.uid, "resourceVersion": sandbox.resource_version}
    return Patch(SANDBOX, sandbox.name, {"metadata": {**precondition, **metadata}})


_EVICTABLE: Final = {SAFE_TO_EVICT: "true"}


def new_member(pool: WarmPoolView, revision: TemplateRevision, name: str, *, enable_eviction: bool) -> Object:
    """A new member with a name chosen by the caller (``names.generate_name`` with the prefix ``<pool>-``).

    ``enable_eviction`` lets the cluster autoscaler remove the pod, which is unused, unless the template sets that
    annotation itself. It is set in the metadata of the Sandbox, which passes it on to the pod while a pool owns the
    sandbox. So the claim that removes it does not change the spec.
    """
    own = {
        WARM_POOL: name_hash(pool.name),
        POD_TEMPLATE_HASH: revision.pod_template_hash,
        TEMPLATE_HASH: revision.hash,
    }
    annotated = (revision.spec["podTemplate"].get("metadata") or {}).get("annotations") or {}
    return new_sandbox(
        revision,
        namespace=pool.namespace,
        name=name,
        owner=controller_reference(SANDBOX_WARM_POOL, pool),
        labels={**own, LAUNCH_TYPE: LAUNCH_WARM, CREATED_BY: CREATED_BY_CONTROLLER},
        annotations=_EVICTABLE if enable_eviction and SAFE_TO_EVICT not in annotated else None,
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
    """``missing`` is the number of members that are to be added. As many of them as are terminating must wait for that;
    and all must wait until the number of members is certain (``expectations_met``)."""
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
    """Compares sandboxes with one revision of the template, once per former revision.

    A member carries the hash of the revision it was created from. Equal hashes mean equal specs. Different hashes
    decide nothing, because a label of the pod template changes the hash and is no reason to replace a member. So they
    are compared by meaning, and members with the same former hash share one comparison.
    """

    def __init__(self, revision: TemplateRevision) -> None:
        self.revision = revision
        self._verdicts: dict[str, bool] = {
            revision.hash: False
        }  # by the hash of the revision a sandbox was created from

    def outdated(self, members: Iterable[SandboxView]) -> set[str]:
        """The UIDs of the members that should be replaced.

        Views share equal labels, and the verdict depends on nothing else where they have the hash of a revision. So
        most members are judged by the one before.
        """
        found: set[str] = set()
        labels: Mapping[str, str] | None = None
        verdict = False
        for member in members:
            if member.labels is not labels:
                verdict = self.is_outdated(member)
                labels = member.labels if member.labels.get(TEMPLATE_HASH) else None
            if verdict:
                found.add(member.uid)
        return found

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
        """Whether an orphan differs from the template. Any client may have written its labels, so its hash is not
        trusted."""
        return self._of_another_template(orphan) or not self.revision.matches(orphan)

    def _of_another_template(self, sandbox: SandboxView) -> bool:
        return sandbox.labels.get(TEMPLATE_REF_HASH) != self.revision.ref_hash
