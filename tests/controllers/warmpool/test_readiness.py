from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.views import PodView, SandboxView
from sandpool.controllers.warmpool.readiness import Readiness, assess

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

GRACE = 300.0


def assessed(scene: Scene, *members: SandboxView, pods: dict[str, PodView] | None = None) -> Readiness:
    return assess(members, lambda member: (pods or {}).get(member.pod_name), scene.now, GRACE)


def test_ready_members_are_kept_whatever_their_age(scene: Scene) -> None:
    member = scene.member("m", age=10**6)
    assert assessed(scene, member) == Readiness((member,), (), 0, None)


@pytest.mark.parametrize(("age", "wake"), [(0, 302.0), (100, 202.0), (300, 2.0)])
def test_within_grace(scene: Scene, age: float, wake: float) -> None:
    member = scene.member("m", ready=False, age=age)
    assert assessed(scene, member) == Readiness((member,), (), 0, wake)


def test_past_grace(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=301)
    assert assessed(scene, member) == Readiness((), (member,), 0, None)


def test_the_next_to_run_out_of_grace_wakes_the_pool(scene: Scene) -> None:
    young, old = scene.member("young", ready=False, age=10), scene.member("old", ready=False, age=200)
    assert assessed(scene, young, old).wake == 102.0
    assert assessed(scene, old, young).wake == 102.0


def test_r21_an_unschedulable_member_is_kept(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=3600)
    assert assessed(scene, member, pods={"m": scene.pod("m")}) == Readiness((member,), (), 1, None)


@pytest.mark.parametrize("pod", [{"unschedulable": False}, {"deleting": True}])
def test_other_pods_do_not_keep_a_member(scene: Scene, pod: dict[str, Any]) -> None:
    member = scene.member("m", ready=False, age=3600)
    assert assessed(scene, member, pods={"m": scene.pod("m", **pod)}).stuck == (member,)


def test_r56_a_pool_that_was_ready_a_moment_ago_is_left_alone(scene: Scene) -> None:
    members = scene.members(5, ready=False, age=10**5, since=1)
    assert assessed(scene, *members) == Readiness(tuple(members), (), 0, 301.0)


def test_a_member_that_does_not_recover_is_replaced(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=10**5, since=301)
    assert assessed(scene, member).stuck == (member,)


def test_a_member_that_found_a_node_after_hours_gets_its_grace(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=7200, since=7100, scheduled=("True", 20))
    pods = {"m": scene.pod("m", unschedulable=False)}
    assert assessed(scene, member, pods=pods) == Readiness((member,), (), 0, 282.0)
    late = scene.member("m", ready=False, age=7200, since=7100, scheduled=("True", 301))
    assert assessed(scene, late, pods=pods).stuck == (late,)


def test_a_member_that_has_yet_to_say_that_it_found_a_node_is_kept(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=7200, since=7100, scheduled=("False", 7100))
    found = {"m": scene.pod("m", unschedulable=False)}
    assert assessed(scene, member, pods=found) == Readiness((member,), (), 0, 2.0)
    assert assessed(scene, member).stuck == (member,), "its pod is gone"


def test_a_pod_that_has_ended_is_not_waited_for(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=10**5, since=1, finished=True)
    assert assessed(scene, member).stuck == (member,)


def test_a_member_made_here_is_not_older_than_we_remember(scene: Scene) -> None:
    """The API's clock is an hour behind ours."""
    member = scene.member("m", ready=False, age=3600)
    made = {member.uid: scene.now - timedelta(seconds=100)}
    assert assess([member], lambda _: None, scene.now, GRACE, made) == Readiness((member,), (), 0, 202.0)
    made = {member.uid: scene.now - timedelta(seconds=301)}
    assert assess([member], lambda _: None, scene.now, GRACE, made).stuck == (member,)


def test_a_member_made_here_whose_clock_is_ahead_gets_its_grace(scene: Scene) -> None:
    member = scene.member("m", ready=False, age=0)
    made = {member.uid: scene.now - timedelta(seconds=100)}
    assert assess([member], lambda _: None, scene.now, GRACE, made) == Readiness((member,), (), 0, 302.0)
