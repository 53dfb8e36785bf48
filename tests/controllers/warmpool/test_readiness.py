from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.views import PodView, SandboxView, WarmPoolStatus
from sandpool.controllers.warmpool.readiness import Progress, Readiness, assess_readiness

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

GRACE = 300.0


def assessed(scene: Scene, *members: SandboxView, pods: dict[str, PodView] | None = None) -> Readiness:
    return assess_readiness(members, lambda member: (pods or {}).get(member.pod_name), scene.now, GRACE)


def test_ready_members_are_kept_whatever_their_age(scene: Scene) -> None:
    member = scene.member("m", age=10**6)
    assert assessed(scene, member) == Readiness((member,), (), 0, None)


@pytest.mark.parametrize(("age", "recheck_after"), [(0, 302.0), (100, 202.0), (300, 2.0)])
def test_unready_member_within_its_grace_period_is_kept(scene: Scene, age: float, recheck_after: float) -> None:
    member = scene.member("m", ready=False, age=age)
    assert assessed(scene, member) == Readiness((member,), (), 0, recheck_after)


def test_unready_member_past_its_grace_period_is_stuck(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=301)
    assert assessed(scene, member) == Readiness((), (member,), 0, None)


def test_earliest_end_of_a_grace_period_requeues_the_pool(scene: Scene) -> None:
    young, old = scene.member("young", ready=False, age=10), scene.member("old", ready=False, age=200)
    assert assessed(scene, young, old).recheck_after == 102.0
    assert assessed(scene, old, young).recheck_after == 102.0


def test_r21_unschedulable_member_is_kept(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=3600)
    assert assessed(scene, member, pods={"m": scene.pod("m")}) == Readiness((member,), (), 1, None)


@pytest.mark.parametrize("pod", [{"unschedulable": False}, {"deleting": True}])
def test_pods_of_other_members_do_not_keep_a_stuck_member(scene: Scene, pod: dict[str, Any]) -> None:
    member = scene.member("m", ready=False, age=3600)
    assert assessed(scene, member, pods={"m": scene.pod("m", **pod)}).stuck == (member,)


def test_r56_member_that_was_ready_recently_is_kept(scene: Scene) -> None:
    members = scene.members(5, ready=False, age=10**5, since=1)
    assert assessed(scene, *members) == Readiness(tuple(members), (), 0, 301.0)


def test_member_that_does_not_recover_is_stuck(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=10**5, since=301)
    assert assessed(scene, member).stuck == (member,)


def test_member_scheduled_after_hours_gets_a_full_grace_period(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=7200, since=7100, scheduled=("True", 20))
    pods = {"m": scene.pod("m", unschedulable=False)}
    assert assessed(scene, member, pods=pods) == Readiness((member,), (), 0, 282.0)
    late = scene.member("m", ready=False, age=7200, since=7100, scheduled=("True", 301))
    assert assessed(scene, late, pods=pods).stuck == (late,)


def test_member_whose_scheduling_is_not_reported_yet_is_kept(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=7200, since=7100, scheduled=("False", 7100))
    found = {"m": scene.pod("m", unschedulable=False)}
    assert assessed(scene, member, pods=found) == Readiness((member,), (), 0, 2.0)
    assert assessed(scene, member).stuck == (member,), "its pod is gone"


def test_member_with_a_finished_pod_is_stuck(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=10**5, since=1, finished=True)
    assert assessed(scene, member).stuck == (member,)


def test_creation_time_of_this_process_limits_the_age_of_a_member(scene: Scene) -> None:
    """The API's clock is an hour behind ours."""
    member = scene.member("m", ready=False, age=3600)
    created_at = {member.uid: scene.now - timedelta(seconds=100)}
    assert assess_readiness([member], lambda _: None, scene.now, GRACE, created_at) == Readiness(
        (member,), (), 0, 202.0
    )
    created_at = {member.uid: scene.now - timedelta(seconds=301)}
    assert assess_readiness([member], lambda _: None, scene.now, GRACE, created_at).stuck == (member,)


def test_member_with_a_creation_time_in_the_future_gets_its_grace_period(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=0)
    created_at = {member.uid: scene.now - timedelta(seconds=100)}
    assert assess_readiness([member], lambda _: None, scene.now, GRACE, created_at) == Readiness(
        (member,), (), 0, 302.0
    )


def test_waiting_members_do_not_stall_the_pool() -> None:
    assert not Progress().observe("t", good=0, desired=3, stuck=0).has_stalled


def test_member_that_never_became_ready_stalls_the_pool() -> None:
    assert Progress("t", 2).observe("t", good=2, desired=3, stuck=1) == Progress("t", 2, True)


def test_pool_stays_stalled_while_the_replacement_is_young() -> None:
    assert Progress("t", 2, True).observe("t", good=2, desired=3, stuck=0).has_stalled


def test_claims_do_not_count_as_progress() -> None:
    assert Progress("t", 2, True).observe("t", good=1, desired=3, stuck=0) == Progress("t", 1, True)


def test_another_ready_member_is_progress() -> None:
    assert not Progress("t", 1, True).observe("t", good=2, desired=3, stuck=0).has_stalled
    assert not Progress("t", 1, True).observe("t", good=2, desired=3, stuck=1).has_stalled


def test_full_pool_has_not_stalled() -> None:
    assert not Progress("t", 3, True).observe("t", good=3, desired=3, stuck=1).has_stalled
    assert not Progress("t", 1, True).observe("t", good=1, desired=1, stuck=0).has_stalled


def test_changed_template_resets_progress() -> None:
    assert Progress("t", 2, True).observe("u", good=0, desired=3, stuck=0) == Progress("u", 0, False)
    assert Progress("t", 0).observe("u", good=1, desired=3, stuck=1) == Progress("u", 1, True)


def test_restart_restores_progress_from_the_status() -> None:
    condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    restored = Progress.restored(WarmPoolStatus(conditions=[condition]))
    first = restored.observe("t", good=1, desired=3, stuck=0)
    assert first.has_stalled
    assert not first.observe("t", good=2, desired=3, stuck=0).has_stalled
    assert not restored.observe("t", good=3, desired=3, stuck=0).has_stalled
    assert Progress.restored(WarmPoolStatus()) == Progress()


def test_members_ready_before_the_first_reconcile_are_no_progress() -> None:
    assert Progress().observe("t", good=2, desired=3, stuck=1) == Progress("t", 2, True)
