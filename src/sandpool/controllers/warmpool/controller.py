"""Keeps pools as they should be: looks at one when something it depends on has changed, and performs its plan.

**What wakes a pool.** Its own spec, its template, and of its members what a plan reads; a status that is written here
wakes nobody. Of what was asked of the API, each answer is in the cache before the pass ends, so a pass sees all that
its predecessors did.

What becomes of members, and what is not known about them, is kept in the ``member_writer``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Final

from sandpool.api.events import Happening
from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.labels import WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.views import SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.revision import TemplateRevision, TemplateRevisions
from sandpool.controllers.warmpool.member_writer import MemberWriter
from sandpool.controllers.warmpool.plan import Observed, Plan, PoolState, plan
from sandpool.controllers.warmpool.watches import DecisionSnapshot, member_fields, pool_fields, template_fields
from sandpool.controllers.writer import ApiWriter, Delete, OwnerLivenessCheck, Patch
from sandpool.engine.background import BackgroundGate
from sandpool.engine.cache.store import Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.metrics.controller import ControllerMetrics
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.workqueue.metrics import QueueMetrics
from sandpool.engine.workqueue.queue import WorkQueue
from sandpool.kube.errors import Conflict

# Seconds between two passes. A pass looks at every member, so the share of time it takes is the same for all sizes;
# but nobody has to wait for long until something is done, and for a few members it is not worth waiting.
_PAUSE_PER_MEMBER: Final = 0.0002
_SMALL_POOL: Final = 100
_LONGEST_PAUSE: Final = 1.0


class WarmPoolController:
    """Requests of ``writer`` wait for their turn; ``direct_writer`` is for those that have had it."""

    def __init__(
        self,
        caches: Caches,
        revisions: TemplateRevisions,
        writer: ApiWriter,
        recorder: EventRecorder,
        metrics: MetricsRegistry,
        clock: Clock,
        random: Random,
        options: WarmPoolOptions | None = None,
        *,
        workers: int = 4,
        gate: BackgroundGate | None = None,
        direct_writer: ApiWriter | None = None,
    ) -> None:
        self.caches = caches
        self.revisions = revisions
        self.writer = writer
        self.recorder = recorder
        self.clock = clock
        self.random = random
        self.options = options or WarmPoolOptions()
        self.direct_writer = direct_writer if direct_writer is not None else writer
        self.member_writer = MemberWriter(
            caches, writer, self.direct_writer, clock, random, enable_eviction=self.options.enable_eviction
        )
        queue_metrics: QueueMetrics[Key] = QueueMetrics("sandboxwarmpool", metrics, clock)
        self.controller: Controller[Key] = Controller(
            queue_metrics.name,
            self.reconcile,
            clock,
            random,
            workers=workers,
            queue=WorkQueue(group=lambda key: key.namespace, observer=queue_metrics),
            observer=ControllerMetrics(queue_metrics.name, workers, metrics),
        )
        self._gate = gate if gate is not None else BackgroundGate(clock)
        self._states: dict[str, PoolState] = {}  # by the UID of the pool
        self._owner_check = OwnerLivenessCheck(SANDBOX_WARM_POOL, writer)
        # How many members pools have lost since it was known that they are there. These may have been collected with
        # the pool, of whose end we have not heard yet.
        self._lost_members: Counter[Key] = Counter()
        # Pools by the label of their members, to find the pool of a sandbox that has no owner.
        self._pools_by_label: dict[tuple[str, str], Key] = {}
        caches.pools.subscribe(self._pool_changed, on_change_of=pool_fields)
        caches.pools.subscribe(self._status_changed, on_change_of=lambda pool: pool.status)
        caches.templates.subscribe(self._template_changed, on_change_of=template_fields)
        caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=member_fields)

    # --- what wakes a pool -------------------------------------------------------------------------------------------

    def _pool_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        label = key.namespace, name_hash(key.name)
        if new is None:
            self._pools_by_label.pop(label, None)
        else:
            self._pools_by_label[label] = key
        if old is not None and (new is None or new.uid != old.uid):
            self.member_writer.forget(old.uid)
            self._states.pop(old.uid, None)
        self.controller.enqueue(key)

    def _status_changed(self, key: Key, old: WarmPoolView | None, new: WarmPoolView | None) -> None:
        """It is ours; but one that comes between two passes is one we do not know of, because the answer was lost or a
        predecessor wrote it with its last breath."""
        if old is not None and new is not None:
            self.controller.notice(key)

    def _template_changed(self, key: Key, old: TemplateView | None, new: TemplateView | None) -> None:
        for pool in self.caches.template_pools(key.namespace, key.name):
            self.controller.enqueue(key_of(pool))

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        for view in (old, new):
            if view is None:
                continue
            if view.owner is None:
                pool = self._pools_by_label.get((view.namespace, view.labels.get(WARM_POOL, "")))
            elif view.owner.is_a(SANDBOX_WARM_POOL):
                pool = Key(view.namespace, view.owner.name)
                if new is None:
                    self._lost_members[pool] += 1
                if new is None or new.deleting:
                    self.member_writer.observe_deletion(view.owner.uid, view.uid)
            else:
                pool = None
            if pool is not None:
                self.controller.enqueue(pool)

    # --- one pass ----------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        # A pass looks at every member. What happens to them until it is the pool's turn is looked at once.
        await self._gate.wait()
        pool = await self._live_pool(key)
        if pool is None:
            return DONE
        await self.member_writer.resolve_ambiguous(pool)
        revision = self.revisions.of(pool.namespace, pool.template)
        found = self._sandboxes(pool)
        sandboxes = list(found.values())
        observed = Observed(
            pool=pool,
            sandboxes=sandboxes,
            revision=revision,
            pod_of=self.caches.pod_of,
            now=self.clock.now(),
            pending_deletions=self.member_writer.pending_deletions(pool),
            expectations_met=self.member_writer.expectations_met(pool),
            jitter=self.random.random(),
            created_at=self.member_writer.created_at(pool, sandboxes),
        )
        todo = plan(observed, self.options, self._states.get(pool.uid) or PoolState.restored(pool))
        self._states[pool.uid] = todo.state
        await self._perform(DecisionSnapshot(self.caches, self.revisions, pool, revision, found), todo)
        return Result(todo.requeue, cooldown=_pause_between_reconciles(len(sandboxes)))

    async def _live_pool(self, key: Key) -> WarmPoolView | None:
        """The pool, if it is there. If it has lost members, the API is asked, and again if it loses more meanwhile."""
        while (pool := self.caches.pools.get(key)) is not None and (losses := self._lost_members[key]):
            if not await self._owner_check.exists(pool):
                return None
            if self._lost_members[key] == losses:
                del self._lost_members[key]
        if pool is None:
            del self._lost_members[key]
        return pool

    def _sandboxes(self, pool: WarmPoolView) -> dict[str, SandboxView]:
        """Those the pool owns, and those with its label, by UID."""
        found = {sandbox.uid: sandbox for sandbox in self.caches.owned_sandboxes(pool.uid)}
        found |= {sandbox.uid: sandbox for sandbox in self.caches.pool_sandboxes(pool.namespace, pool.name)}
        return found

    async def _perform(self, snapshot: DecisionSnapshot, todo: Plan) -> None:
        """Everything is tried; the first failure is raised at the end, so that the pass is made again."""
        pool, revision = snapshot.pool, snapshot.revision
        failures: list[BaseException] = []
        failures += await _attempt(*(self._patch(pool, patch) for patch in todo.patches))
        failures += await _attempt(*(self._discard(snapshot, delete) for delete in todo.discard))
        # Before the deletions, which are outstanding from then on: creations are only expected if nothing is.
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
        await self.writer.patch_if_there(status, pool.namespace)

    def _retry_status_soon(self, pool: WarmPoolView) -> None:
        """It was not written. Else the next pass would believe that it has just been, have nothing to do and succeed,
        and the one after that would try as if nothing had ever failed."""
        state = self._states.get(pool.uid)
        if state is not None:
            self._states[pool.uid] = replace(state, status_written=None)

    def _record_event(self, pool: WarmPoolView, event: Happening) -> None:
        type = SANDBOX_WARM_POOL
        reference = ObjectReference(
            type.api_version, type.kind, pool.name, pool.namespace, pool.uid, pool.resource_version
        )
        self.recorder.event(reference, event)

    # --- members -----------------------------------------------------------------------------------------------------

    async def _create(self, pool: WarmPoolView, revision: TemplateRevision, count: int) -> None:
        """A failure is remembered, and the plan says when to try again; it does not fail the pass."""
        attempt = await self.member_writer.create(pool, revision, count)
        state = self._states.get(pool.uid)
        if state is not None:  # else the pool has gone meanwhile
            self._states[pool.uid] = state.attempted(attempt, self.clock.now())
        if attempt.error:
            self.controller.enqueue(key_of(pool))

    async def _delete(self, snapshot: DecisionSnapshot, delete: Delete) -> None:
        await self._delete_confirmed(snapshot, delete, self.member_writer.delete)

    async def _discard(self, snapshot: DecisionSnapshot, delete: Delete) -> None:
        """Delete what is not a member, so that the books do not have it."""
        await self._delete_confirmed(
            snapshot, delete, lambda pool, confirmed: self.direct_writer.delete(confirmed, pool.namespace)
        )

    async def _delete_confirmed(
        self, snapshot: DecisionSnapshot, delete: Delete, by: Callable[[WarmPoolView, Delete], Awaitable[None]]
    ) -> None:
        """Delete a sandbox when it is the request's turn, if that is still right then."""
        await self._gate.wait()
        confirmed = snapshot.confirmed(delete)
        if confirmed is None:
            return
        try:
            await by(snapshot.pool, confirmed)
        except Conflict:
            await self._replan(snapshot.pool, delete.name, delete.uid)

    async def _replan(self, pool: WarmPoolView, name: str, uid: str = "") -> None:
        """The API refused: the sandbox is not as it was seen, it is claimed or has changed so that nobody wakes."""
        await self.member_writer.refresh_member(pool, name, uid)
        self.controller.enqueue(key_of(pool))


def _pause_between_reconciles(members: int) -> float:
    return min(_PAUSE_PER_MEMBER * max(0, members - _SMALL_POOL), _LONGEST_PAUSE)


async def _attempt(*work: Coroutine[object, object, None]) -> list[BaseException]:
    """Do it all at once; what failed."""
    results = await asyncio.gather(*work, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]
