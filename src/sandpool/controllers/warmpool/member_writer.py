"""Creates and deletes members of pools, and tracks requests whose outcome is unknown.

**Unknown outcomes are not repeated.** If the answer to a create or delete is lost, the expectation stays, and the next
reconcile begins by reading exactly these objects, whose names were chosen here. Until that is answered, nothing is
created or deleted for the pool. If there is no such member, the request may still be under way. So the next member that
is created gets that name, and whichever request comes second is refused.

**A claimed member is not deleted.** Every delete carries the UID and the resource version of the member as it was seen
unclaimed. A claim that was faster has changed it, so the API refuses the delete and the claim keeps the member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from sandpool.api.kinds import SANDBOX
from sandpool.api.names import generate_name
from sandpool.api.resource import Key
from sandpool.api.views import SandboxView, WarmPoolView
from sandpool.controllers.dependencies import Dependencies
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.members import new_member
from sandpool.controllers.warmpool.scaling import CreationOutcome, slow_start
from sandpool.controllers.writer import Create, Delete, is_ambiguous
from sandpool.engine.expectations import Expectations
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound, is_namespace_terminating


class MemberWriter:
    """All state is kept by the UID of the pool. Requests of ``writer`` wait for the background gate. A delete has
    passed the gate already and uses ``direct_writer``."""

    def __init__(self, dependencies: Dependencies, *, enable_eviction: bool) -> None:
        self.caches = dependencies.caches
        self.writer = dependencies.background
        self.direct_writer = dependencies.writer
        self.clock = dependencies.clock
        self.rng = dependencies.rng
        self.enable_eviction = enable_eviction
        self.expectations: Expectations[str] = Expectations(dependencies.clock)
        # Names and UIDs of members whose creation (without UID) or deletion was not answered. While there are any, the
        # expectations of the pool are not met.
        self._ambiguous: dict[str, dict[str, str]] = {}
        # Names of members whose creation was not answered and that did not exist when the API was read.
        self._unused_names: dict[str, list[str]] = {}
        # Creation times of members that have not been seen ready since, by UID.
        self._created_at: dict[str, dict[str, datetime]] = {}

    def expectations_met(self, pool: WarmPoolView) -> bool:
        """Whether all expected creations and deletions have been observed."""
        return self.expectations.satisfied(pool.uid)

    def pending_deletions(self, pool: WarmPoolView) -> Set[str]:
        return self.expectations.pending_deletions(pool.uid)

    def observe_deletion(self, pool_uid: str, member_uid: str) -> None:
        self.expectations.settle_deletion(pool_uid, member_uid)

    def forget(self, pool_uid: str) -> None:
        """Drop the state of a pool that is gone."""
        self.expectations.forget(pool_uid)
        for kept in (self._ambiguous, self._unused_names, self._created_at):
            kept.pop(pool_uid, None)

    def created_at(self, pool: WarmPoolView, sandboxes: Iterable[SandboxView]) -> Mapping[str, datetime]:
        """Creation times, by our clock, of those sandboxes that this process created and that are not ready yet."""
        known = self._created_at.get(pool.uid)
        if not known:
            return {}
        waiting = {box.uid: known[box.uid] for box in sandboxes if box.uid in known and not box.ready}
        self._created_at[pool.uid] = waiting
        return waiting

    # --- creating ----------------------------------------------------------------------------------------------------

    async def create(self, pool: WarmPoolView, revision: TemplateRevision, count: int) -> CreationOutcome:
        """Create members in batches, none after a batch with a failure. Creates nothing while expectations are
        outstanding."""
        if not self.expectations.try_expect(pool.uid, count):
            return CreationOutcome(0)
        succeeded = attempted = 0
        failure: Exception | None = None
        for size in slow_start(count):
            results = await asyncio.gather(*(self._create_one(pool, revision) for _ in range(size)))
            attempted += size
            succeeded += sum(result is None for result in results)
            failure = next((result for result in results if result is not None), None)
            if failure is not None:
                break
        self.expectations.settle_creations(pool.uid, count - attempted)
        if failure is None:
            return CreationOutcome(succeeded)
        asked = failure.retry_after if isinstance(failure, ApiError) else None
        return CreationOutcome(
            succeeded,
            str(failure) or type(failure).__name__,
            asked or 0.0,
            self.rng.random(),
            is_namespace_terminating(failure),
        )

    async def _create_one(self, pool: WarmPoolView, revision: TemplateRevision) -> Exception | None:
        """Create one member. Returns the failure, if any."""
        unused = self._unused_names.get(pool.uid)
        earlier = unused.pop() if unused else ""
        name = earlier or self._new_name(pool)
        member = new_member(pool, revision, name, enable_eviction=self.enable_eviction)
        try:
            answer = await self.writer.create(Create(SANDBOX, member), pool.namespace)
        except AlreadyExists as error:
            # The cache shows the owner. A member of an earlier request is as good as one of this.
            self.expectations.settle_creations(pool.uid)
            found = self.caches.sandboxes.get(Key(pool.namespace, name))
            return None if earlier and found is not None and found.controlled_by(pool) else error
        except (ApiError, ConnectionError, TimeoutError) as error:
            if is_ambiguous(error):
                self._mark_ambiguous(pool, name, "")
            else:
                self.expectations.settle_creations(pool.uid)
            return error
        # Not left to the watch event, which may show the member claimed already.
        self.expectations.settle_creations(pool.uid)
        self._created_at.setdefault(pool.uid, {})[answer["metadata"]["uid"]] = self.clock.now()
        return None

    def _new_name(self, pool: WarmPoolView) -> str:
        """A name that no known sandbox has. In a pool of 100,000 one random name in 150 is taken, and a refusal would
        count as a failure."""
        while True:
            name = generate_name(f"{pool.name}-", self.rng)
            if Key(pool.namespace, name) not in self.caches.sandboxes:
                return name

    # --- deleting ----------------------------------------------------------------------------------------------------

    async def delete(self, pool: WarmPoolView, delete: Delete) -> None:
        self.expectations.expect_deletion(pool.uid, delete.uid)
        try:
            await self.direct_writer.delete(delete, pool.namespace)
        except (ApiError, ConnectionError, TimeoutError) as error:
            if is_ambiguous(error):
                self._mark_ambiguous(pool, delete.name, delete.uid)
            else:
                self.expectations.settle_deletion(pool.uid, delete.uid)
            raise
        self.expectations.settle_deletion(pool.uid, delete.uid)

    # --- unknown outcomes ---------------------------------------------------------------------------------------------

    def _mark_ambiguous(self, pool: WarmPoolView, name: str, uid: str) -> None:
        self._ambiguous.setdefault(pool.uid, {})[name] = uid

    async def resolve_ambiguous(self, pool: WarmPoolView) -> None:
        """Read the objects of requests without an answer from the API. Raises if it still does not answer."""
        ambiguous = self._ambiguous.get(pool.uid)
        while ambiguous:
            name, uid = next(iter(ambiguous.items()))
            is_there = await self.refresh_member(pool, name, uid)
            ambiguous.pop(name, None)
            if uid:
                self.expectations.settle_deletion(pool.uid, uid)
                continue
            self.expectations.settle_creations(pool.uid)
            if not is_there:
                self._unused_names.setdefault(pool.uid, []).append(name)
        self._ambiguous.pop(pool.uid, None)

    async def refresh_member(self, pool: WarmPoolView, name: str, uid: str = "") -> bool:
        """Read a sandbox from the API into the cache. Returns whether it exists."""
        try:
            self.caches.sandboxes.record_write(await self.writer.client.get(SANDBOX, name, pool.namespace))
        except NotFound:
            if uid:
                self.caches.sandboxes.record_deletion(Key(pool.namespace, name), uid)
            return False
        return True
