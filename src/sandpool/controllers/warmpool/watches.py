"""Enqueues a pool when its spec, its template, or a field of a member that a plan reads changes.

The same fields tell whether a decision still holds. The requests of a plan wait for the background gate. By then a
member may have been claimed, or a former template may be the current one again. A member also changes in fields that no
plan reads, whenever its status is written; a delete with the resource version of the plan would be refused for nothing.
So each delete is confirmed after it has passed the gate: ``DecisionSnapshot.confirmed`` returns the delete of the
member as it is now, or None if the plan might be another one. In that case the same change has enqueued the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandpool.api.conditions import FINISHED, RECONCILER_ERROR
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.labels import WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Key
from sandpool.api.views import PodView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.revision import TemplateRevision, TemplateRevisions
from sandpool.controllers.warmpool.member_writer import MemberWriter
from sandpool.controllers.warmpool.members import deletion
from sandpool.controllers.writer import Delete
from sandpool.engine.cache.store import reads
from sandpool.engine.controller import Controller


@reads("uid", "generation", "deletion_timestamp")
def pool_fields(pool: WarmPoolView) -> tuple[object, ...]:
    return pool.uid, pool.generation, pool.deleting


@reads("uid", "generation", exactly=True)
def template_fields(template: TemplateView) -> tuple[object, ...]:
    return template.uid, template.generation


@reads("waiting", "last_end", "scheduling")
def pod_problem(pod: PodView) -> tuple[object, ...]:
    """Fields of the pod of a member that the conditions of its pool show."""
    return pod.waiting, pod.last_end, pod.scheduling.message if pod.scheduling is not None and pod.unschedulable else ""


_NO_PROBLEM: Final = ("", None, "")


@reads("uid", "owner", "deletion_timestamp", "labels", "generation", "status")
def member_fields(sandbox: SandboxView) -> tuple[object, ...]:
    """Fields of a member that a plan reads, except the resource version, which changes with everything."""
    return (
        sandbox.uid,
        sandbox.owner,
        sandbox.deleting,
        sandbox.labels,
        sandbox.generation,
        sandbox.ready,
        sandbox.status.reason(FINISHED),
        sandbox.status.ready_reason == RECONCILER_ERROR,
    )


class WarmPoolWatches:
    """Handlers of changes. ``subscribe`` connects them to the caches."""

    def __init__(
        self, caches: Caches, controller: Controller[Key], own_writes: OwnWriteFilter, member_writer: MemberWriter
    ) -> None:
        self.caches = caches
        self.controller = controller
        self.own_writes = own_writes
        self.member_writer = member_writer
        # Members that pools have lost since a live read confirmed the pool. The garbage collector may have deleted
        # them with the pool, whose deletion the watch has not reported yet.
        self.lost_members: Counter[Key] = Counter()
        # Pools by the label of their members, to find the pool of a sandbox without an owner.
        self._pools_by_label: dict[tuple[str, str], Key] = {}

    def subscribe(self) -> None:
        self.caches.pools.subscribe(self._pool_changed, on_change_of=pool_fields)
        self.caches.pools.subscribe(self._status_changed, on_change_of=lambda pool: pool.status)
        self.caches.templates.subscribe(self._template_changed, on_change_of=template_fields)
        self.caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=member_fields)
        self.caches.pods.subscribe(self._pod_changed, on_change_of=pod_problem)

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        label = key.namespace, name_hash(key.name)
        if new is None:
            self._pools_by_label.pop(label, None)
        else:
            self._pools_by_label[label] = key
        self.controller.enqueue(key)

    def _status_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """The status is our own. Any other is unknown to this process: its answer was lost, or a predecessor wrote it
        while it stopped."""
        if old is not None and new is not None:
            self.own_writes.enqueue(key)

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            self.controller.enqueue(key_of(pool))

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        """Enqueue the pool of a member whose pod has a problem, or another one than before."""
        if (
            new is None
            or new.owner is None
            or pod_problem(new) == (pod_problem(old) if old is not None else _NO_PROBLEM)
        ):
            return
        member = self.caches.sandboxes.get(Key(key.namespace, new.owner.name))
        if member is not None and member.owner is not None and member.owner.type is SANDBOX_WARM_POOL:
            self.controller.enqueue(Key(key.namespace, member.owner.name))

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        for view in (old, new):
            if view is None:
                continue
            if view.owner is None:
                pool = self._pools_by_label.get((view.namespace, view.labels.get(WARM_POOL, "")))
            elif view.owner.type is SANDBOX_WARM_POOL:
                pool = Key(view.namespace, view.owner.name)
                if new is None:
                    self.lost_members[pool] += 1
                if new is None or new.deleting:
                    self.member_writer.observe_deletion(view.owner.uid, view.uid)
            else:
                pool = None
            if pool is not None:
                self.controller.enqueue(pool)


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """The state on which a reconcile has decided, to be compared with the state at the time of a write."""

    caches: Caches
    revisions: TemplateRevisions
    pool: WarmPoolView
    revision: TemplateRevision | None
    sandboxes: Mapping[str, SandboxView]  # by UID

    def confirmed(self, delete: Delete) -> Delete | None:
        """The delete of the sandbox as it is now; None if anything has changed that the decision may depend on."""
        pool = self.caches.pools.get(key_of(self.pool))
        if pool is None or pool_fields(pool) != pool_fields(self.pool):
            return None
        if self.revisions.of(pool.namespace, pool.template) is not self.revision:
            return None
        sandbox = self.caches.sandboxes.get(Key(pool.namespace, delete.name))
        if sandbox is None or member_fields(sandbox) != member_fields(self.sandboxes[delete.uid]):
            return None
        return deletion(sandbox)
