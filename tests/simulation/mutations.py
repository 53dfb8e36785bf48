"""Controllers that are broken on purpose, one way each: what the simulation must find.

Each is a mistake that was made somewhere, in this code or in that of others (see the R-rows of the tests), or that one
careless change away. A mutation is applied to the real classes and undone by ``monkeypatch``.
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
from sandpool.controllers.claim.assignment import candidates
from sandpool.controllers.claim.controller import ClaimController
from sandpool.controllers.claim.reporter import StatusReporter
from sandpool.controllers.claim.watches import ClaimWatches
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
from sandpool.testing.simulation.liveness import steady_load
from sandpool.testing.simulation.profile import (
    HARD_TIMES,
    LAST_GIFTS,
    LAST_WORDS,
    ORDINARY,
    ROLLOUTS,
    SILENCE,
    STORM,
    SUDDEN_DEATHS,
    TUG_OF_WAR,
    VANDALS,
    Theme,
)
from sandpool.testing.simulation.simulation import Scenario

Patch = pytest.MonkeyPatch
Worlds = Callable[[int], Scenario]  # by seed


def no_precondition_on_adoption(patch: Patch) -> None:
    """Two claims, or a claim and a pool, write the same sandbox, and the last one wins."""
    original = adoption.adoption_patch

    def without_version(*args: Any, **options: Any) -> Any:
        body = original(*args, **options)
        del body["metadata"]["resourceVersion"]
        return body

    patch.setattr(adoption, "adoption_patch", without_version)


def unanswered_adoptions_are_forgotten(patch: Patch) -> None:
    """An adoption was not answered, and the claim moves on to another sandbox."""
    original = ClaimController._adopt

    async def adopt_once(self: Any, state: Any, observed: Any, adoption: Any, lease: Any, **options: Any) -> Any:
        try:
            return await original(self, state, observed, adoption, lease, **options)
        except (ApiError, ConnectionError, TimeoutError):
            self.assigner.forget((adoption.sandbox.namespace, adoption.sandbox.name))
            state.unconfirmed, state.abandoned = "", adoption.sandbox.name
            raise

    patch.setattr(ClaimController, "_adopt", adopt_once)


def doubts_are_not_resolved(patch: Patch) -> None:
    """A creation that was not answered is taken for one that failed."""

    async def resolve_ambiguous(self: MemberWriter, pool: Any) -> None:
        self.forget(pool.uid)

    patch.setattr(MemberWriter, "resolve_ambiguous", resolve_ambiguous)


def own_writes_are_not_read(patch: Patch) -> None:
    """The cache knows only what the watch brings."""
    patch.setattr(Cache, "record_write", lambda self, answer: None)


def terminating_members_do_not_count(patch: Patch) -> None:
    """A member is replaced before it is gone."""
    original = members.sort_members
    patch.setattr(pool_plan, "sort_members", lambda *args: replace(original(*args), terminating=0))


def pools_delete_what_has_changed(patch: Patch) -> None:
    """A member is deleted although a claim has taken it meanwhile."""
    original = members.deletion
    patch.setattr(pool_watches, "deletion", lambda member: replace(original(member), resource_version=""))


def former_templates_are_as_good(patch: Patch) -> None:
    """A claim is given what its pool is about to replace."""
    patch.setattr(candidates, "compatibility", lambda sandbox, revision: "any")
    patch.setattr(candidates, "current", lambda revision: "any")


def claims_do_not_hear_of_their_sandbox(patch: Patch) -> None:
    patch.setattr(ClaimWatches, "_sandbox_changed", lambda self, key, old, new: None)


def metrics_are_told_twice(patch: Patch) -> None:
    original = StatusReporter.record_sample

    def record_sample(self: StatusReporter, sample: Any) -> None:
        original(self, sample)
        original(self, sample)

    patch.setattr(StatusReporter, "record_sample", record_sample)


def what_happens_during_a_pass_is_an_echo(patch: Patch) -> None:
    """Whatever changes while a sandbox is looked at is taken for one's own doing."""
    patch.setattr(OwnWriteFilter, "enqueue", lambda self, key: None if key in self._running else self._enqueue(key))


def no_breaker(patch: Patch) -> None:
    """Creating goes on although it fails every time."""
    patch.setattr(CreationBreaker, "remaining", lambda self, now: 0.0)
    patch.setattr(CreationBreaker, "is_open", False)


def owners_are_not_looked_up(patch: Patch) -> None:
    """Whether a claim has a sandbox is only known from what the claim says."""
    original = Caches.owned_sandboxes

    def owned_sandboxes(self: Caches, owner_uid: str) -> Any:
        return tuple(each for each in original(self, owner_uid) if each.owner and each.owner.is_a(SANDBOX_WARM_POOL))

    patch.setattr(Caches, "owned_sandboxes", owned_sandboxes)


def a_status_of_unknown_origin_is_ignored(patch: Patch) -> None:
    """Its answer was lost, it is wrong, and nobody looks."""
    original = sandbox_watches.sandbox_fields
    patch.setattr(sandbox_watches, "sandbox_fields", lambda sandbox: original(sandbox)[:-1])
    for controller in (ClaimWatches, pool_watches.WarmPoolWatches):
        patch.setattr(controller, "_status_changed", lambda self, key, old, new: None)


def claims_that_are_gone_are_served(patch: Patch) -> None:
    """Their sandbox is collected with them, and they are given another."""

    async def exists(self: OwnerLivenessCheck, owner: Any) -> bool:
        return True

    patch.setattr(OwnerLivenessCheck, "exists", exists)


def a_second_sandbox_stays(patch: Patch) -> None:
    """A dead predecessor's adoption arrives late, and the claim keeps both."""
    patch.setattr(claim_plan, "duplicates", lambda claim, owned, stays: ())


def rollouts_take_all_they_can(patch: Patch) -> None:
    """Outdated members go before there are others."""
    original = rollout.RolloutBounds.of
    bounds = classmethod(lambda cls, pool: cls(original(pool).surge, pool.replicas))
    patch.setattr(rollout.RolloutBounds, "of", bounds)


def a_gap_in_the_history_is_ignored(patch: Patch) -> None:
    """After 410 the watch goes on from now, and what happened meanwhile is never known."""
    original = reflector.Reflector._recover

    async def recover(self: Any, error: Exception) -> None:
        version = self._version
        await original(self, error)
        if version is not None and self._version is None:
            with suppress(ApiError, ConnectionError, TimeoutError):
                self._version = version_of(await self.client.list(self.type, self.namespace))

    patch.setattr(reflector.Reflector, "_recover", recover)


def sandboxes_do_not_hear_of_pods(patch: Patch) -> None:
    """Only that there is a pod is noticed, not what becomes of it."""
    patch.setattr(sandbox_watches, "urgent_pod_fields", lambda pod: pod.uid)
    patch.setattr(sandbox_watches, "deferred_pod_fields", lambda pod: None)


def refilling_waits_for_a_pause(patch: Patch) -> None:
    """However long claims come without one."""
    original = BackgroundGate.__init__

    def patient(self: BackgroundGate, clock: Any, **options: Any) -> None:
        original(self, clock, patience=1e9)

    patch.setattr(BackgroundGate, "__init__", patient)


def of(theme: Theme) -> Worlds:
    return lambda seed: Scenario(theme=theme)


# With the worlds in which each of them does harm soon, and the first seed of them.
MUTATIONS: Final[tuple[tuple[Callable[[Patch], None], Worlds, int], ...]] = (
    (no_precondition_on_adoption, of(LAST_GIFTS), 0),
    (unanswered_adoptions_are_forgotten, of(STORM), 0),
    (doubts_are_not_resolved, of(STORM), 0),
    (own_writes_are_not_read, of(ORDINARY), 0),
    (terminating_members_do_not_count, of(VANDALS), 0),
    (pools_delete_what_has_changed, of(LAST_GIFTS), 0),
    (former_templates_are_as_good, of(TUG_OF_WAR), 0),
    (claims_do_not_hear_of_their_sandbox, of(ORDINARY), 0),
    (metrics_are_told_twice, of(ORDINARY), 0),
    (what_happens_during_a_pass_is_an_echo, of(LAST_WORDS), 0),
    (no_breaker, of(HARD_TIMES), 0),
    (owners_are_not_looked_up, of(SUDDEN_DEATHS), 0),
    (a_status_of_unknown_origin_is_ignored, of(LAST_WORDS), 30),
    (claims_that_are_gone_are_served, of(SILENCE), 0),
    (a_second_sandbox_stays, of(LAST_GIFTS), 0),
    (rollouts_take_all_they_can, of(ROLLOUTS), 0),
    (a_gap_in_the_history_is_ignored, of(STORM), 0),
    (sandboxes_do_not_hear_of_pods, of(ORDINARY), 0),
    (refilling_waits_for_a_pause, steady_load, 0),
)
