from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.controllers.warmpool.shrink import surplus

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_r26_unready_members_go_first_then_the_newest(scene: Scene) -> None:
    members = [
        scene.member("ready-old", age=90),
        scene.member("unready-old", age=80, ready=False),
        scene.member("ready-new", age=10),
        scene.member("unready-new", age=20, ready=False),
    ]
    gone = [member.name for member in surplus(members, 3)]
    assert gone == ["unready-new", "unready-old", "ready-new"]


def test_outdated_members_go_before_current_ones_that_are_as_ready(scene: Scene) -> None:
    members = [
        scene.member("current", age=1),
        scene.member("outdated", age=90),
        scene.member("current-unready", age=90, ready=False),
        scene.member("outdated-unready", age=80, ready=False),
    ]
    gone = [member.name for member in surplus(members, 4, lambda member: "outdated" in member.name)]
    assert gone == ["outdated-unready", "current-unready", "outdated", "current"]


@pytest.mark.parametrize("excess", [0, -2])
def test_nobody_is_too_many(scene: Scene, excess: int) -> None:
    assert surplus(scene.members(3), excess) == []
