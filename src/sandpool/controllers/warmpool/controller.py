"""Reconciles SandboxWarmPools: observes the members of a pool, performs the plan, writes the status.

``watches`` lists the changes that enqueue a pool. A status that is written here does not (``OwnWriteFilter``). The
cache has each answer of the API before the reconcile ends, so a reconcile sees everything that its predecessors did.

``member_writer`` creates and deletes members, and tracks requests whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Final

from sandpool.api.events import EventSpec
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.resource import Key
from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.informers import key_of
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.member_writer import MemberWriter
from sandpool.controllers.warmpool.plan import Observed, Plan, PoolState, plan
from sandpool.controllers.warmpool.status import SizeLimit
from sandpool.controllers.warmpool.watches import DecisionSnapshot, WarmPoolWatches
from sandpool.controllers.writer import Delete, OwnerLivenessCheck, Patch
from sandpool.engine.cache.store import reads
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import ObjectReference
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import Conflict

# Seconds between two reconciles of a pool. A reconcile reads every member, so the share of time it takes is the same
# for all sizes. Small pools do not pause, and the pause of large ones is short.
_PAUSE_PER_MEMBER: Final = 0.0002
_SMALL_POOL: Final = 100
_LONGEST_PAUSE: Final = 1.0


class WarmPoolController:
    """Run ``controller`` once the caches are synced. ``direct_writer`` is for requests that have passed the background
    gate already."""

    def __init__(self, dependencies: Dependencies, options: WarmPoolOptions | None = None, *, workers: int = 4) -> None:
        given = dependencies
        self.caches = given.caches
        self.revisions = given.revisions
        self.writer = given.background
        self.direct_writer = given.writer
        self.recorder = given.recorder
        self.clock = given.clock
        self.rng = given.rng
        self.limits = given.limits
        self.options = options or WarmPoolOptions()
        self.member_writer = MemberWriter(given, enable_eviction=self.options.enable_eviction)
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandboxwarmpool", given.metrics, given.clock)
        self._own_writes = OwnWriteFilter(self._enqueue, self._has_work)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            given.clock,
            given.rng,
            workers=workers,
            queue=WorkQueue(group=lambda key: key.namespace, observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, workers, given.metrics),
            middleware=(*given.middleware, self._own_writes.middleware),
        )
        self._gate = given.gate
        self._states: dict[str, PoolState] = {}  # by the UID of the pool
        self._owner_check = OwnerLivenessCheck(SANDBOX_WARM_POOL, self.writer)
        self._watches = WarmPoolWatches(given.caches, self.controller, self._own_writes, self.member_writer)
        self._watches.subscribe()
        given.caches.pools.subscribe(self._size_changed, on_change_of=_size)
        self.limits.subscribe(self._enqueue_pools)
        given.caches.pools.subscribe(self._pool_replaced, on_change_of=lambda pool: pool.uid)

    def _pool_replaced(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """Drop what is remembered of a pool that is gone."""
        if old is not None and (new is None or new.uid != old.uid):
            self.member_writer.forget(old.uid)
            self._states.pop(old.uid, None)

    def _enqueue(self, key: Key) -> None:
        self.controller.enqueue(key)

    def _size_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """A pool that has changed leaves more or less to the others, if their namespace has a limit."""
        if self.limits.warm_sandboxes(key.namespace) is not None:
            self._enqueue_pools(key.namespace)

    def _enqueue_pools(self, namespace: str) -> None:
        for pool in self.caches.namespace_pools(namespace):
            self.controller.enqueue(key_of(pool))

    def _has_work(self, key: Key) -> bool:
        """Whether the pool has another status than the last reconcile left it with."""
        pool = self.caches.pools.get(key)
        if pool is None:
            return False  # its deletion has enqueued it
        state = self._states.get(pool.uid)
        return state is None or pool.status != state.status

    # --- reconcile ---------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        # A reconcile reads every member. Changes of them that arrive before the gate opens are handled together.
        await self._gate.wait()
        pool = await self._live_pool(key)
        if pool is None:
            return DONE
        await self.member_writer.resolve_ambiguous(pool)
        revision = self.revisions.of(pool.namespace, pool.template)
        found = self._sandboxes(pool)
        sandboxes = list(found.values())
        size = self.limits.pool_size(pool)
        limit = self.limits.warm_sandboxes(pool.namespace) if size < pool.replicas else None
        observed = Observed(
            pool=pool if limit is None else replace(pool, replicas=size),
            limit=None if limit is None else SizeLimit(pool.namespace, limit, size, pool.replicas),
            sandboxes=sandboxes,
            revision=revision,
            pod_of=self.caches.pod_of,
            now=self.clock.now(),
            pending_deletions=self.member_writer.pending_deletions(pool),
            expectations_met=self.member_writer.expectations_met(pool),
            jitter=self.rng.random(),
            created_at=self.member_writer.created_at(pool, sandboxes),
        )
        todo = plan(observed, self.options, self._states.get(pool.uid) or PoolState.restored(pool))
        self._states[pool.uid] = todo.state
        await self._perform(DecisionSnapshot(self.caches, self.revisions, pool, revision, found), todo)
        return Result(todo.requeue, cooldown=_pause_between_reconciles(len(sandboxes)))

    async def _live_pool(self, key: Key) -> WarmPoolView | None:
        """The pool, if it exists. If it has lost members, it is read from the API, and again if it loses more
        meanwhile."""
        while (pool := self.caches.pools.get(key)) is not None and (losses := self._watches.lost_members[key]):
            if not await self._owner_check.exists(pool):
                return None
            if self._watches.lost_members[key] == losses:
                del self._watches.lost_members[key]
        if pool is None:
            del self._watches.lost_members[key]
        return pool

    def _sandboxes(self, pool: WarmPoolView) -> dict[str, SandboxView]:
        """The sandboxes that the pool owns and those with its label, by UID."""
        found = {sandbox.uid: sandbox for sandbox in self.caches.owned_sandboxes(pool.uid)}
        found |= {sandbox.uid: sandbox for sandbox in self.caches.pool_sandboxes(pool.namespace, pool.name)}
        return found

    async def _perform(self, snapshot: DecisionSnapshot, todo: Plan) -> None:
        """Perform the whole plan. The first failure is raised at the end, so that the reconcile is retried."""
        pool, revision = snapshot.pool, snapshot.revision
        failures: list[BaseException] = []
        failures += await _attempt(*(self._patch(pool, patch) for patch in todo.patches))
        failures += await _attempt(*(self._discard(snapshot, delete) for delete in todo.discard))
        # Before the deletions: creations are only expected while no deletion is outstanding.
        if todo.create and revision is not None:
            await self._create(pool, revision, todo.create)
        failures += await _attempt(*(self._delete(snapshot, delete) for delete in todo.delete))
        if todo.status is not None and (unsaid := await _attempt(self._write_status(pool, todo.status))):
            failures += unsaid
            self._retry_status_soon(pool)
        for event in todo.events:
            self._record_event(pool, event)
        if failures:
            raise failures[0]

    async def _patch(self, pool: WarmPoolView, patch: Patch) -> None:
        try:
            await self.writer.patch_if_there(patch, pool.namespace)
        except Conflict:
            await self._replan(pool, patch.name)

    async def _write_status(self, pool: WarmPoolView, status: Patch) -> None:
        answer = await self.writer.patch_if_there(status, pool.namespace)
        state = self._states.get(pool.uid)
        if answer is not None and state is not None:
            self._states[pool.uid] = replace(state, status=WarmPoolView.from_object(answer).status)

    def _retry_status_soon(self, pool: WarmPoolView) -> None:
        """Forget a status that could not be written. Otherwise the next reconcile would have nothing to write
        and succeed, which resets the back-off."""
        state = self._states.get(pool.uid)
        if state is not None:
            self._states[pool.uid] = replace(state, status_written=None)

    def _record_event(self, pool: WarmPoolView, event: EventSpec) -> None:
        type = SANDBOX_WARM_POOL
        reference = ObjectReference(
            type.api_version, type.kind, pool.name, pool.namespace, pool.uid, pool.resource_version
        )
        self.recorder.event(reference, event)

    # --- members -----------------------------------------------------------------------------------------------------

    async def _create(self, pool: WarmPoolView, revision: TemplateRevision, count: int) -> None:
        """Create members. A failure does not fail the reconcile; the plan decides when to retry."""
        attempt = await self.member_writer.create(pool, revision, count)
        state = self._states.get(pool.uid)
        if state is not None:  # else the pool is gone
            self._states[pool.uid] = state.attempted(attempt, self.clock.now())
        if attempt.error:
            self.controller.enqueue(key_of(pool))

    async def _delete(self, snapshot: DecisionSnapshot, delete: Delete) -> None:
        await self._delete_confirmed(snapshot, delete, self.member_writer.delete)

    async def _discard(self, snapshot: DecisionSnapshot, delete: Delete) -> None:
        """Delete an orphan. Orphans are no members, so no deletion is expected."""
        await self._delete_confirmed(
            snapshot, delete, lambda pool, confirmed: self.direct_writer.delete(confirmed, pool.namespace)
        )

    async def _delete_confirmed(
        self, snapshot: DecisionSnapshot, delete: Delete, by: Callable[[WarmPoolView, Delete], Awaitable[None]]
    ) -> None:
        """Delete a sandbox after its request has passed the gate, if the decision still holds then."""
        await self._gate.wait()
        confirmed = snapshot.confirmed(delete)
        if confirmed is None:
            return
        try:
            await by(snapshot.pool, confirmed)
        except Conflict:
            await self._replan(snapshot.pool, delete.name, delete.uid)

    async def _replan(self, pool: WarmPoolView, name: str, uid: str = "") -> None:
        """Read a sandbox again after a conflict: it was claimed, or has changed in a field that enqueues no pool."""
        await self.member_writer.refresh_member(pool, name, uid)
        self.controller.enqueue(key_of(pool))


@reads("uid", "replicas", "deletion_timestamp")
def _size(pool: WarmPoolView) -> tuple[object, ...]:
    return pool.uid, pool.replicas, pool.deleting


def _pause_between_reconciles(members: int) -> float:
    return min(_PAUSE_PER_MEMBER * max(0, members - _SMALL_POOL), _LONGEST_PAUSE)


async def _attempt(*work: Coroutine[object, object, None]) -> list[BaseException]:
    """Run all concurrently and return the failures."""
    results = await asyncio.gather(*work, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]
