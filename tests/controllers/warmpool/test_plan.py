from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.conditions import find_condition
from sandpool.api.events import EventSpec
from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE, TEMPLATE_HASH
from sandpool.api.resource import Object
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.warmpool.plan import Plan, PoolState
from sandpool.controllers.warmpool.readiness import Progress
from sandpool.controllers.warmpool.scaling import CreationBreaker, CreationOutcome, RefillState
from sandpool.controllers.writer import Delete, Patch

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

NEW = "example.com/image:2"
RECREATE = "Recreate"
ON_REPLENISH = "OnReplenish"
ROLLING_UPDATE = "RollingUpdate"


def deleted(plan: Plan) -> list[str]:
    return [deletion.name for deletion in plan.delete]


def status(plan: Plan) -> Object:
    assert plan.status is not None
    body: Object = plan.status.body["status"]
    return body


def condition(plan: Plan, type: str = "Progressing") -> tuple[str, str]:
    found = find_condition(status(plan)["conditions"], type)
    assert found is not None
    return found["status"], found["reason"]


# --- creating --------------------------------------------------------------------------------------------------------


def test_empty_pool_is_filled(scene: Scene) -> None:
    plan = scene.plan(scene.pool(5))
    assert (plan.create, plan.delete, plan.patches, plan.events, plan.requeue) == (5, (), (), (), None)


def test_edge_27_pool_without_replicas_has_one_member(scene: Scene) -> None:
    assert scene.plan(scene.pool(None)).create == 1


def test_r25_claimed_member_is_replaced_at_once(scene: Scene) -> None:
    members = [*scene.members(4), scene.member("claimed", owner="claim-uid")]
    plan = scene.plan(scene.pool(5), members, state=scene.plan(scene.pool(5), scene.members(5)).state)
    assert (plan.create, plan.delete) == (1, ())


def test_r18_edge_21_reconciles_over_a_stale_list_create_nothing(scene: Scene) -> None:
    plan = scene.plan(scene.pool(5), expectations_met=False)
    assert (plan.create, plan.requeue) == (0, 30.0)


def test_r19_edge_22_terminating_members_count_towards_the_size(scene: Scene) -> None:
    members = [*scene.members(2), scene.member("going", deleting=True), scene.member("asked")]
    plan = scene.plan(scene.pool(5), members, pending_deletions={"uid-asked"})
    assert plan.create == 1
    assert status(plan)["replicas"] == 2


def test_pool_without_template_creates_nothing(scene: Scene) -> None:
    plan = scene.plan(scene.pool(5), scene.members(2), revision=None)
    assert (plan.create, plan.delete, plan.requeue) == (0, (), None)
    assert condition(plan) == ("False", "TemplateNotFound")
    assert "updatedReplicas" not in status(plan)


@pytest.mark.parametrize("strategy", ["", RECREATE, ROLLING_UPDATE])
def test_pool_without_template_has_no_stale_members_and_deletes_surplus_ones(scene: Scene, strategy: str) -> None:
    pool = scene.pool(2, strategy)
    assert len(scene.plan(pool, scene.members(5), revision=None).delete) == 3
    assert scene.plan(pool, scene.members(2, image=NEW), revision=None).delete == ()


def test_pool_being_deleted_is_left_alone(scene: Scene) -> None:
    pool = replace(scene.pool(5), deletion_timestamp=scene.now)
    state = PoolState(has_warned=True)
    assert scene.plan(pool, scene.members(9), state=state) == Plan(state)


def test_edge_29_stuck_members_are_deleted_while_the_refill_is_delayed(scene: Scene) -> None:
    settings = WarmPoolOptions(replenish_delay=20)
    pool = scene.pool(5)
    state = scene.plan(pool, scene.members(5), settings=settings).state
    members = [*scene.members(3), scene.member("stuck", ready=False, age=999)]
    plan = scene.plan(pool, members, settings=settings, state=state, now=scene.at(10))
    assert (plan.create, deleted(plan), plan.requeue) == (0, ["stuck"], 20.0)
    later = scene.plan(pool, scene.members(3), settings=settings, state=plan.state, now=scene.at(29))
    assert (later.create, later.requeue) == (0, 1.0)
    assert scene.plan(pool, scene.members(3), settings=settings, state=plan.state, now=scene.at(30)).create == 2


def test_r27_repeated_creation_failures_pause_the_pool_and_report_the_reason(scene: Scene) -> None:
    pool = scene.pool(5)
    state = PoolState()
    for _ in range(3):
        state = state.attempted(CreationOutcome(0, "admission webhook denied"), scene.now)
    plan = scene.plan(pool, state=state)
    assert (plan.create, plan.requeue) == (0, 4.0)
    assert condition(plan) == ("False", "CreationFailing")
    assert condition(plan, "Available") == ("False", "MinimumReplicasUnavailable")
    assert scene.plan(pool, state=state, now=scene.at(4)).create == 1
    closed = plan.state.attempted(CreationOutcome(1, ""), scene.at(4))
    plan = scene.plan(pool, scene.members(1), state=closed, now=scene.at(5))
    assert plan.create == 4
    assert condition(plan) == ("True", "Replenishing")


def test_changed_template_ends_the_pause(scene: Scene) -> None:
    state = PoolState(
        refill_state=RefillState(breaker=CreationBreaker(9, scene.at(250), "invalid")), progress=Progress("another")
    )
    assert scene.plan(scene.pool(5), state=state).create == 5
    known = replace(state, progress=Progress(scene.revision().hash))
    assert scene.plan(scene.pool(5), state=known).create == 0


# --- stale members ---------------------------------------------------------------------------------------------------


def test_edge_22_recreate_deletes_all_stale_members_and_creates_none_yet(scene: Scene) -> None:
    plan = scene.plan(scene.pool(3, RECREATE), scene.members(3), revision=scene.revision(NEW))
    assert plan.delete == tuple(Delete(SANDBOX, f"m{n}", f"uid-m{n}", f"rv-m{n}") for n in range(3))
    assert plan.create == 0
    assert condition(plan) == ("True", "Replenishing")
    assert scene.plan(scene.pool(3, RECREATE), revision=scene.revision(NEW)).create == 3


def test_r8_recreate_leaves_no_stale_member_to_be_claimed(scene: Scene) -> None:
    members = [*scene.members(3), *scene.members(2, "new", image=NEW)]
    plan = scene.plan(scene.pool(5, RECREATE), members, revision=scene.revision(NEW), expectations_met=False)
    assert deleted(plan) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("strategy", ["", ON_REPLENISH, "Unheard"])
def test_edge_27_on_replenish_keeps_stale_members(scene: Scene, strategy: str) -> None:
    for revision in (scene.revision(NEW), scene.revision(name="other")):
        plan = scene.plan(scene.pool(3, strategy), scene.members(3), revision=revision)
        assert (plan.delete, plan.create) == ((), 0)
        assert condition(plan) == ("True", "OutdatedInUse")
        assert status(plan)["replicas"] == 3
        assert "updatedReplicas" not in status(plan)


def test_r57_claimed_sandboxes_are_never_touched(scene: Scene) -> None:
    claimed = scene.members(3, owner="claim-uid")
    for strategy in (RECREATE, ON_REPLENISH, ROLLING_UPDATE):
        plan = scene.plan(scene.pool(0, strategy), claimed, revision=scene.revision(NEW))
        assert (plan.delete, plan.discard, plan.patches) == ((), (), ())


def test_edge_26_foreign_orphans_are_discarded_and_the_others_adopted(scene: Scene) -> None:
    orphans = [
        scene.member("spoofed", owner=None, image=NEW, labels={TEMPLATE_HASH: scene.revision().hash}),
        scene.member("fits", owner=None),
    ]
    plan = scene.plan(scene.pool(3), orphans)
    assert plan.discard == (Delete(SANDBOX, "spoofed", "uid-spoofed", "rv-spoofed"),)
    assert [patch.name for patch in plan.patches] == ["fits"]
    assert (plan.create, plan.delete) == (2, ())
    assert status(plan)["replicas"] == 1


def test_missing_labels_are_restored(scene: Scene) -> None:
    plan = scene.plan(scene.pool(1), [scene.member("m", labels={LAUNCH_TYPE: None})])
    observed = {"uid": "uid-m", "resourceVersion": "rv-m"}
    assert plan.patches == (Patch(SANDBOX, "m", {"metadata": {**observed, "labels": {LAUNCH_TYPE: "warm"}}}),)


# --- members that do not become ready --------------------------------------------------------------------------------


def test_edge_22_stuck_member_is_replaced_after_its_deletion(scene: Scene) -> None:
    plan = scene.plan(scene.pool(2), [scene.member("m"), scene.member("stuck", ready=False, age=301)])
    assert (deleted(plan), plan.create) == (["stuck"], 0)
    assert status(plan)["replicas"] == 1
    assert condition(plan) == ("False", "ProgressDeadlineExceeded")
    going = scene.member("stuck", ready=False, age=301, deleting=True)
    assert scene.plan(scene.pool(2), [scene.member("m"), going]).create == 0
    assert scene.plan(scene.pool(2), [scene.member("m")]).create == 1


def test_r21_unschedulable_members_are_kept_and_not_multiplied(scene: Scene) -> None:
    members = scene.members(2, ready=False, age=3600)
    plan = scene.plan(scene.pool(2), members, pods=[scene.pod("m0"), scene.pod("m1")])
    assert (plan.create, plan.delete, plan.requeue) == (0, (), 60.0)
    assert condition(plan) == ("False", "Unschedulable")


def test_r22_edge_28_quiet_pool_requeues_itself(scene: Scene) -> None:
    pool = scene.pool(1)
    assert scene.plan(pool, scene.members(1, ready=False)).requeue == 302.0
    custom = WarmPoolOptions(readiness_grace_period=10, unschedulable_recheck_interval=7)
    assert scene.plan(pool, scene.members(1, ready=False), settings=custom).requeue == 12.0
    pods = [scene.pod("m0")]
    assert scene.plan(pool, scene.members(1, ready=False, age=11), pods=pods, settings=custom).requeue == 7


def test_r22_edge_28_unschedulable_members_are_reported_once(scene: Scene) -> None:
    pool, members, pods = scene.pool(3), scene.members(2, ready=False, age=301), [scene.pod("m0"), scene.pod("m1")]
    note = (
        "2/3 sandboxes are unschedulable past the 5m0s readiness grace period; "
        "holding them instead of replacing (replacements would be equally unschedulable)"
    )
    warning = EventSpec("sandboxwarmpool-controller", "Warning", "WarmPoolNotProgressing", "Reconciling", note)
    relief = EventSpec(
        "sandboxwarmpool-controller", "Normal", "WarmPoolProgressing", "Reconciling", "Warm pool is progressing again"
    )
    first = scene.plan(pool, members, pods=pods)
    assert first.events == (warning,)
    second = scene.plan(pool, members, pods=pods, state=first.state)
    assert second.events == ()
    third = scene.plan(pool, scene.members(2), state=second.state)
    assert third.events == (relief,)
    assert scene.plan(pool, scene.members(2), state=third.state).events == ()
    restarted = scene.with_status(pool, first)
    assert scene.plan(restarted, members, pods=pods, state=PoolState.restored(restarted)).events == ()
    assert scene.plan(restarted, scene.members(2), state=PoolState.restored(restarted)).events == (relief,)


def test_first_reconcile_never_reports_recovery(scene: Scene) -> None:
    assert scene.plan(scene.pool(2), scene.members(2)).events == ()


def test_r23_pools_warmed_together_requeue_at_different_times(scene: Scene) -> None:
    rng = Random(1)
    member = scene.members(1, ready=False)
    delays = [scene.plan(scene.pool(1), member, jitter=rng.random()).requeue or 0 for _ in range(500)]
    assert 302 <= min(delays) < 310
    assert 445 < max(delays) <= 453
    assert len({round(delay) for delay in delays}) > 100


# --- too many members ------------------------------------------------------------------------------------------------


def test_r26_scaling_down_deletes_unready_members_first(scene: Scene) -> None:
    members = [scene.member("old", age=9), scene.member("new", age=1), scene.member("unready", ready=False)]
    assert deleted(scene.plan(scene.pool(1), members)) == ["unready", "new"]


def test_pool_of_size_zero_is_emptied(scene: Scene) -> None:
    assert len(scene.plan(scene.pool(0), scene.members(4)).delete) == 4


def test_surplus_members_are_deleted_in_batches(scene: Scene) -> None:
    assert len(scene.plan(scene.pool(0), scene.members(4), settings=WarmPoolOptions(max_batch_size=3)).delete) == 3


def test_r20_edge_23_surplus_deletions_wait_for_expectations(scene: Scene) -> None:
    plan = scene.plan(scene.pool(1), scene.members(4), expectations_met=False)
    assert (plan.delete, plan.requeue) == ((), 30.0)


# --- rolling out -----------------------------------------------------------------------------------------------------


def test_rollout_creates_current_members_before_deleting_outdated_ones(scene: Scene) -> None:
    pool = scene.pool(4, ROLLING_UPDATE, maxSurge=2, maxUnavailable=0)
    plan = scene.plan(pool, scene.members(4), revision=scene.revision(NEW))
    assert (plan.create, plan.delete) == (2, ())
    assert condition(plan) == ("True", "RollingOut")
    members = [*scene.members(4), *scene.members(2, "new", image=NEW)]
    plan = scene.plan(pool, members, revision=scene.revision(NEW))
    assert (plan.create, len(plan.delete)) == (0, 2)
    assert status(plan)["updatedReplicas"] == status(plan)["updatedReadyReplicas"] == 2


def test_rollout_counts_terminating_members(scene: Scene) -> None:
    pool = scene.pool(4, ROLLING_UPDATE, maxSurge=1, maxUnavailable=1)
    members = [*scene.members(3), scene.member("going", deleting=True)]
    assert scene.plan(pool, members, revision=scene.revision(NEW)).create == 1


def test_rollout_waits_for_expectations(scene: Scene) -> None:
    pool = scene.pool(4, ROLLING_UPDATE, maxUnavailable=4)
    plan = scene.plan(pool, scene.members(4), revision=scene.revision(NEW), expectations_met=False)
    assert (plan.create, plan.delete, plan.requeue) == (0, (), 30.0)


def test_template_that_never_becomes_ready_stops_the_rollout(scene: Scene) -> None:
    pool = scene.pool(4, ROLLING_UPDATE, maxSurge=1, maxUnavailable=1)
    revision = scene.revision(NEW)
    broken = scene.members(2, "new", image=NEW, ready=False, age=301)
    plan = scene.plan(pool, [*scene.members(3), *broken], revision=revision)
    assert deleted(plan) == ["new0", "new1"]
    assert condition(plan) == ("False", "ProgressDeadlineExceeded")
    assert condition(plan, "Available") == ("True", "MinimumReplicasAvailable")
    # It goes on trying, with as many as before, and does not pretend to make progress.
    pool = scene.with_status(pool, plan)
    stopped = pool.status.conditions
    later: dict[str, Any] = {"revision": revision, "state": plan.state, "now": scene.at(5)}
    plan = scene.plan(pool, scene.members(3), **later)
    assert (plan.create, plan.delete) == (2, ())
    young = scene.members(2, "new", image=NEW, ready=False)
    plan = scene.plan(pool, [*scene.members(3), *young], **later)
    assert (plan.create, plan.delete) == (0, ())
    assert scene.with_status(pool, plan).status.conditions == stopped
    # A repaired template replaces the broken members first.
    fixed = scene.revision("example.com/image:3")
    plan = scene.plan(pool, [*scene.members(3), *young], **{**later, "revision": fixed})
    assert condition(plan) == ("True", "RollingOut")
    assert sorted(deleted(plan)) == ["new0", "new1"]


def test_members_deleted_by_a_rollout_do_not_delay_the_refill(scene: Scene) -> None:
    settings = WarmPoolOptions(replenish_delay=60)
    pool = scene.pool(4, ROLLING_UPDATE, maxSurge=0, maxUnavailable=1)
    plan = scene.plan(pool, scene.members(4), revision=scene.revision(NEW), settings=settings)
    assert len(plan.delete) == 1
    plan = scene.plan(
        pool, scene.members(3), revision=scene.revision(NEW), settings=settings, state=plan.state, now=scene.at(1)
    )
    assert plan.create == 1


# --- the status ------------------------------------------------------------------------------------------------------


def test_unchanged_status_is_written_once(scene: Scene) -> None:
    pool = scene.pool(2)
    plan = scene.plan(pool, scene.members(2))
    assert plan.status is not None
    assert (plan.status.type, plan.status.name, plan.status.subresource) == (SANDBOX_WARM_POOL, "test-pool", "status")
    assert plan.state.status_written == scene.now
    assert scene.plan(scene.with_status(pool, plan), scene.members(2), state=plan.state).status is None


def test_burst_writes_the_status_at_most_twice_a_second(scene: Scene) -> None:
    pool = scene.pool(100)
    state = PoolState()
    written = 0
    for count in range(100):
        plan = scene.plan(pool, scene.members(100 - count), state=state, now=scene.at(count / 50))
        written += plan.status is not None
        assert plan.status is not None or 0 < (plan.requeue or 0) <= 0.5
        pool, state = scene.with_status(pool, plan), plan.state
    assert written == 4


@pytest.mark.parametrize("written", [{"seconds": -0.5}, {"seconds": 3600}])
def test_status_is_delayed_by_half_a_second_at_most(scene: Scene, written: dict[str, Any]) -> None:
    state = PoolState(status_written=scene.at(**written))  # an hour ahead: the clock was set back
    assert scene.plan(scene.pool(2), state=state).status is not None
