"""Mutations: controllers broken on purpose, one way each, that the simulation must find.

Each mutation is a bug that this code or a similar project once had (see the R-rows of the tests), or one that a
careless change could introduce. A mutation patches the real classes; ``monkeypatch`` undoes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.controllers.claim import adoption
from sandpool.controllers.claim import plan as claim_plan
from sandpool.controllers.claim import watches as claim_watches
from sandpool.controllers.claim.assignment import candidates
from sandpool.controllers.claim.controller import ClaimController
from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.controllers.informers import Caches
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.controllers.sandbox import watches as sandbox_watches
from sandpool.controllers.warmpool import members, rollout
from sandpool.controllers.warmpool import plan as pool_plan
from sandpool.controllers.warmpool import watches as pool_watches
from sandpool.controllers.warmpool.member_writer import MemberWriter
from sandpool.controllers.warmpool.scaling import CreationBreaker
from sandpool.controllers.writer import OwnerLivenessCheck
from sandpool.engine.background import BackgroundGate
from sandpool.engine.cache import reflector
from sandpool.engine.cache.store import Cache, version_of
from sandpool.kube.errors import ApiError
from sandpool.kube.group_router import GroupRouter
from sandpool.server.aggregated import kinds_server
from sandpool.server.controllers.garbage_collector import GarbageCollector
from sandpool.server.store.store import Store
from sandpool.testing.simulation.profile import Profile
from sandpool.testing.simulation.simulation import Scenario
from tests.support.simulation.late_adoptions import late_adoptions
from tests.support.simulation.liveness import steady_load
from tests.support.simulation.profiles import (
    CONTENTION,
    CRASHES_AT_ADOPTION,
    CRASHES_AT_STATUS,
    DISRUPTIVE_USERS,
    FAULTY_NETWORK,
    FREQUENT_CRASHES,
    ORDINARY,
    QUOTA_EXCEEDED,
    ROLLOUTS,
    STALLED_WATCHES,
)
from tests.support.simulation.users import UserSimulation

Patch = pytest.MonkeyPatch
Worlds = Callable[[int], UserSimulation]  # by seed


def no_precondition_on_adoption(patch: Patch) -> None:
    """Two claims, or a claim and a pool, write the same sandbox; the last write wins."""
    original = adoption.adoption_patch

    def without_version(*args: Any, **options: Any) -> Any:
        body = original(*args, **options)
        del body["metadata"]["resourceVersion"]
        return body

    patch.setattr(adoption, "adoption_patch", without_version)


def ambiguous_adoptions_are_forgotten(patch: Patch) -> None:
    """After an adoption without a response the claim tries another sandbox."""
    original = ClaimController._adopt

    async def adopt_once(self: Any, state: Any, observed: Any, adoption: Any, lease: Any, **options: Any) -> Any:
        try:
            return await original(self, state, observed, adoption, lease, **options)
        except (ApiError, ConnectionError, TimeoutError):
            self.assigner.forget((adoption.sandbox.namespace, adoption.sandbox.name))
            state.unconfirmed, state.abandoned = "", adoption.sandbox.name
            raise

    patch.setattr(ClaimController, "_adopt", adopt_once)


def ambiguous_creations_count_as_failed(patch: Patch) -> None:
    """A creation without a response is treated as failed."""

    async def resolve_ambiguous(self: MemberWriter, pool: Any) -> None:
        self.forget(pool.uid)

    patch.setattr(MemberWriter, "resolve_ambiguous", resolve_ambiguous)


def caches_ignore_own_writes(patch: Patch) -> None:
    """The cache is updated by watch events only."""
    patch.setattr(Cache, "record_write", lambda self, answer: None)


def terminating_members_do_not_count(patch: Patch) -> None:
    """A member is replaced while it is still terminating."""
    original = members.sort_members
    patch.setattr(pool_plan, "sort_members", lambda *args: replace(original(*args), terminating=0))


def pools_delete_without_precondition(patch: Patch) -> None:
    """A pool deletes a member that a claim has adopted meanwhile."""
    original = members.deletion
    patch.setattr(pool_watches, "deletion", lambda member: replace(original(member), resource_version=""))


def outdated_revisions_are_candidates(patch: Patch) -> None:
    """A claim adopts a member that its pool is about to replace."""
    patch.setattr(candidates, "compatibility", lambda sandbox, revision: "any")
    patch.setattr(candidates, "current", lambda revision: "any")


def claims_ignore_sandbox_changes(patch: Patch) -> None:
    """A claim sees that a sandbox of its own is created or deleted, and none of its status changes."""
    patch.setattr(claim_watches, "sandbox_state", lambda sandbox: None)


def metrics_are_recorded_twice(patch: Patch) -> None:
    original = StatusReporter.record_sample

    def record_sample(self: StatusReporter, sample: Any) -> None:
        original(self, sample)
        original(self, sample)

    patch.setattr(StatusReporter, "record_sample", record_sample)


def changes_during_reconcile_are_dropped(patch: Patch) -> None:
    """A change during a reconcile is mistaken for the controller's own write."""
    patch.setattr(OwnWriteFilter, "enqueue", lambda self, key: None if key in self._running else self._enqueue(key))


def no_breaker(patch: Patch) -> None:
    """A pool keeps creating members although every creation fails."""
    patch.setattr(CreationBreaker, "remaining", lambda self, now: 0.0)
    patch.setattr(CreationBreaker, "is_open", False)


def owned_sandboxes_are_not_listed(patch: Patch) -> None:
    """Only the claim's status says whether it has a sandbox."""
    original = Caches.owned_sandboxes

    def owned_sandboxes(self: Caches, owner_uid: str) -> Any:
        return tuple(each for each in original(self, owner_uid) if each.owner and each.owner.type is SANDBOX_WARM_POOL)

    patch.setattr(Caches, "owned_sandboxes", owned_sandboxes)


def foreign_status_writes_are_ignored(patch: Patch) -> None:
    """A status write without a response left a wrong status that is never corrected."""
    original = sandbox_watches.sandbox_fields
    patch.setattr(sandbox_watches, "sandbox_fields", lambda sandbox: original(sandbox)[:-1])
    patch.setattr(claim_watches, "claim_status", lambda claim: None)
    patch.setattr(pool_watches.WarmPoolWatches, "_status_changed", lambda self, key, old, new: None)


def deleted_claims_are_served(patch: Patch) -> None:
    """The garbage collector deletes a claim's sandbox, and the deleted claim gets another."""

    async def exists(self: OwnerLivenessCheck, owner: Any) -> bool:
        return True

    patch.setattr(OwnerLivenessCheck, "exists", exists)


def duplicate_sandboxes_stay(patch: Patch) -> None:
    """The adoption of a crashed process is committed late, and the claim keeps both sandboxes."""
    patch.setattr(claim_plan, "duplicates", lambda claim, owned, stays: ())


def rollouts_ignore_max_unavailable(patch: Patch) -> None:
    """Outdated members are deleted before their replacements are ready."""
    original = rollout.RolloutBounds.of
    bounds = classmethod(lambda cls, pool: cls(original(pool).surge, pool.replicas))
    patch.setattr(rollout.RolloutBounds, "of", bounds)


def watch_gaps_are_ignored(patch: Patch) -> None:
    """After 410 the watch continues from now; changes in between are never seen."""
    original = reflector.Reflector._recover

    async def recover(self: Any, error: Exception) -> None:
        version = self._version
        await original(self, error)
        if version is not None and self._version is None:
            with suppress(ApiError, ConnectionError, TimeoutError):
                self._version = version_of(await self.client.list(self.type, self.namespace))

    patch.setattr(reflector.Reflector, "_recover", recover)


def sandboxes_ignore_pod_status(patch: Patch) -> None:
    """A sandbox sees that a pod exists, and none of its status changes."""
    patch.setattr(sandbox_watches, "urgent_pod_fields", lambda pod: pod.uid)
    patch.setattr(sandbox_watches, "deferred_pod_fields", lambda pod: None)


def refill_yields_without_bound(patch: Patch) -> None:
    """Refill waits until claims pause, however long that takes."""
    original = BackgroundGate.__init__

    def unbounded(self: BackgroundGate, clock: Any, **options: Any) -> None:
        original(self, clock, max_delay=1e9)

    patch.setattr(BackgroundGate, "__init__", unbounded)


def own_collector_finishes_deletions(patch: Patch) -> None:
    """The collector of our API, which cannot see pods, finishes foreground deletions."""

    def complete(*arguments: Any, partial: bool) -> GarbageCollector:
        return GarbageCollector(*arguments)

    patch.setattr(kinds_server, "GarbageCollector", complete)


def writes_are_visible_before_they_are_durable(patch: Patch) -> None:
    """The store publishes and acknowledges writes that a crash takes back."""
    original = Store._sync

    def sync(self: Store) -> None:
        if self._syncing or not self._filling:
            return
        original(self)
        self._synced(None)

    patch.setattr(Store, "_sync", sync)


def some_of_our_kinds_go_to_kube_apiserver(patch: Patch) -> None:
    """The controllers ask the wrong API for the kinds of one of our groups."""
    original = GroupRouter.__init__

    def without_one(self: GroupRouter, groups: Any, *sides: Any) -> None:
        original(self, groups[:1], *sides)

    patch.setattr(GroupRouter, "__init__", without_one)


def with_profile(profile: Profile, *, actions: int | None = None, aggregated: bool = False) -> Worlds:
    """Worlds of a profile. A mutation that needs a rare coincidence is found sooner in worlds with many actions."""
    return lambda seed: UserSimulation(seed, Scenario(profile=profile, aggregated=aggregated), actions=actions)


def with_scenario(scenario: Callable[[int], Scenario]) -> Worlds:
    return lambda seed: UserSimulation(seed, scenario(seed))


# Each mutation with worlds that expose it soon, and the first seed to try.
MUTATIONS: Final[tuple[tuple[Callable[[Patch], None], Worlds, int], ...]] = (
    (no_precondition_on_adoption, with_profile(CRASHES_AT_ADOPTION), 0),
    (ambiguous_adoptions_are_forgotten, with_profile(FAULTY_NETWORK), 0),
    (ambiguous_creations_count_as_failed, with_profile(FAULTY_NETWORK), 0),
    (caches_ignore_own_writes, with_profile(ORDINARY), 0),
    (terminating_members_do_not_count, with_profile(DISRUPTIVE_USERS), 0),
    (pools_delete_without_precondition, with_profile(CRASHES_AT_ADOPTION), 30),
    (outdated_revisions_are_candidates, with_profile(CONTENTION), 0),
    (claims_ignore_sandbox_changes, with_profile(ORDINARY), 0),
    (metrics_are_recorded_twice, with_profile(ORDINARY), 0),
    (changes_during_reconcile_are_dropped, with_profile(CONTENTION, actions=30), 0),
    (no_breaker, with_profile(QUOTA_EXCEEDED), 0),
    (owned_sandboxes_are_not_listed, with_profile(FREQUENT_CRASHES), 0),
    (foreign_status_writes_are_ignored, with_profile(CRASHES_AT_STATUS), 0),
    (deleted_claims_are_served, with_profile(STALLED_WATCHES, actions=30), 0),
    (duplicate_sandboxes_stay, with_scenario(late_adoptions), 0),
    (rollouts_ignore_max_unavailable, with_profile(ROLLOUTS), 0),
    (watch_gaps_are_ignored, with_profile(FAULTY_NETWORK), 0),
    (sandboxes_ignore_pod_status, with_profile(ORDINARY), 0),
    (refill_yields_without_bound, with_scenario(steady_load), 0),
)

# Mutations that worlds with an aggregated API expose. Those that need a network between the controllers and our kinds,
# or a cache of them that lags, cannot show there.
AGGREGATED: Final[tuple[tuple[Callable[[Patch], None], Worlds, int], ...]] = (
    (terminating_members_do_not_count, with_profile(DISRUPTIVE_USERS, aggregated=True), 0),
    (claims_ignore_sandbox_changes, with_profile(ORDINARY, aggregated=True), 0),
    (metrics_are_recorded_twice, with_profile(ORDINARY, aggregated=True), 0),
    (owned_sandboxes_are_not_listed, with_profile(FREQUENT_CRASHES, aggregated=True), 0),
    (rollouts_ignore_max_unavailable, with_profile(ROLLOUTS, aggregated=True), 0),
    (sandboxes_ignore_pod_status, with_profile(ORDINARY, aggregated=True), 0),
    (own_collector_finishes_deletions, with_profile(DISRUPTIVE_USERS, actions=30, aggregated=True), 15),
    (writes_are_visible_before_they_are_durable, with_profile(FREQUENT_CRASHES, aggregated=True), 0),
    (some_of_our_kinds_go_to_kube_apiserver, with_profile(ORDINARY, aggregated=True), 0),
)
