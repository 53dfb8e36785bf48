from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.views import SandboxView
from sandpool.controllers.warmpool.rollout import Rollout, RolloutBounds, amount, step

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


@pytest.mark.parametrize(
    ("value", "round_up", "expected"),
    [
        (3, True, 3),
        (0, True, 0),
        ("25%", True, 3),
        ("25%", False, 2),
        ("0%", True, 0),
        ("100%", False, 10),
        ("1%", True, 1),
    ],
)
def test_amounts_are_numbers_or_rounded_percentages(value: int | str, round_up: bool, expected: int) -> None:
    assert amount(value, 10, round_up=round_up) == expected


@pytest.mark.parametrize(
    ("replicas", "rolling", "surge", "unavailable"),
    [
        (10, {}, 3, 2),
        (1, {}, 1, 0),
        (0, {}, 0, 0),
        (3, {"maxSurge": 0, "maxUnavailable": 0}, 0, 1),
        (3, {"maxSurge": 0}, 0, 1),
        (3, {"maxSurge": "0%", "maxUnavailable": "200%"}, 0, 3),
        (3, {"maxSurge": 7, "maxUnavailable": 9}, 7, 3),
        (4, {"maxSurge": "50%", "maxUnavailable": 0}, 2, 0),
    ],
)
def test_bounds_follow_max_surge_and_max_unavailable(
    scene: Scene, replicas: int, rolling: dict[str, int | str], surge: int, unavailable: int
) -> None:
    assert RolloutBounds.of(scene.pool(replicas, "RollingUpdate", **rolling)) == RolloutBounds(surge, unavailable)


def stepped(
    scene: Scene,
    desired: int,
    bounds: RolloutBounds,
    *,
    outdated: tuple[int, int],
    current: tuple[int, int],
    limit: int = 300,
) -> Rollout:
    """``outdated`` and ``current``: how many are ready and how many are not."""
    old = [*scene.members(outdated[0], "old-ready"), *scene.members(outdated[1], "old-unready", ready=False)]
    new = [*scene.members(current[0], "new-ready"), *scene.members(current[1], "new-unready", ready=False)]
    return step(desired, bounds, old, new, limit=limit)


def kinds(members: tuple[SandboxView, ...]) -> dict[str, int]:
    names = [member.name.rstrip("0123456789") for member in members]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize(
    ("bounds", "outdated", "current", "deleted", "ceiling"),
    [
        # Nothing may be missing: a current one has to be ready before an outdated one goes.
        (RolloutBounds(1, 0), (4, 0), (0, 0), {}, 5),
        (RolloutBounds(1, 0), (4, 0), (0, 1), {}, 5),
        (RolloutBounds(1, 0), (4, 0), (1, 0), {"old-ready": 1}, 5),
        (RolloutBounds(1, 0), (1, 0), (4, 0), {"old-ready": 1}, 4),
        # No room for more: one has to go first.
        (RolloutBounds(0, 1), (4, 0), (0, 0), {"old-ready": 1}, 4),
        (RolloutBounds(0, 1), (3, 0), (0, 1), {}, 4),
        (RolloutBounds(0, 1), (3, 0), (1, 0), {"old-ready": 1}, 4),
        # Unready ones go first, but as many as are needed might still become ready.
        (RolloutBounds(0, 1), (3, 1), (0, 0), {"old-unready": 1}, 4),
        (RolloutBounds(0, 1), (2, 2), (0, 0), {"old-unready": 1}, 4),
        (RolloutBounds(0, 1), (0, 4), (0, 0), {"old-unready": 1}, 4),
        (RolloutBounds(0, 3), (2, 2), (0, 0), {"old-ready": 1, "old-unready": 2}, 4),
        (RolloutBounds(1, 0), (3, 2), (0, 0), {"old-unready": 1}, 5),
        # All at once, if that is what was asked for.
        (RolloutBounds(0, 4), (4, 0), (0, 0), {"old-ready": 4}, 4),
        # Claims have taken some: nothing goes until that is made up for.
        (RolloutBounds(1, 0), (2, 0), (1, 1), {}, 5),
    ],
)
def test_rollout_of_four_members_step_by_step(
    scene: Scene,
    bounds: RolloutBounds,
    outdated: tuple[int, int],
    current: tuple[int, int],
    deleted: dict[str, int],
    ceiling: int,
) -> None:
    rollout = stepped(scene, 4, bounds, outdated=outdated, current=current)
    assert kinds(rollout.delete) == deleted
    assert rollout.ceiling == ceiling


def test_step_is_limited_by_the_batch_size(scene: Scene) -> None:
    assert len(stepped(scene, 9, RolloutBounds(0, 9), outdated=(9, 0), current=(0, 0), limit=4).delete) == 4


def test_scaling_down_during_a_rollout_deletes_outdated_members_first(scene: Scene) -> None:
    assert kinds(stepped(scene, 2, RolloutBounds(1, 0), outdated=(4, 0), current=(2, 0)).delete) == {"old-ready": 4}
    assert kinds(stepped(scene, 0, RolloutBounds(0, 0), outdated=(2, 1), current=(1, 1)).delete) == {
        "new-ready": 1,
        "new-unready": 1,
        "old-ready": 2,
        "old-unready": 1,
    }


def test_scaling_down_during_a_rollout_deletes_unready_members_before_ready_outdated_ones(scene: Scene) -> None:
    rollout = stepped(scene, 2, RolloutBounds(0, 1), outdated=(2, 0), current=(0, 2))
    assert kinds(rollout.delete) == {"new-unready": 1, "old-ready": 1}


few = st.integers(0, 6)


@given(
    desired=few,
    surge=few,
    unavailable=few,
    outdated=st.tuples(few, few),
    current=st.tuples(few, few),
    limit=st.integers(1, 20),
)
def test_rollout_bounds_hold_at_every_step(
    scene: Scene,
    desired: int,
    surge: int,
    unavailable: int,
    outdated: tuple[int, int],
    current: tuple[int, int],
    limit: int,
) -> None:
    bounds = RolloutBounds(surge, min(unavailable, desired))
    rollout = stepped(scene, desired, bounds, outdated=outdated, current=current, limit=limit)
    gone = kinds(rollout.delete)
    ready_before = outdated[0] + current[0]
    ready_after = ready_before - gone.get("old-ready", 0) - gone.get("new-ready", 0)
    assert ready_after >= min(ready_before, desired - bounds.unavailable)
    assert len(rollout.delete) <= limit
    assert len({member.uid for member in rollout.delete}) == len(rollout.delete)
    left = sum(outdated) + sum(current) - len(rollout.delete)
    assert left <= rollout.ceiling or len(rollout.delete) == limit
    assert left >= min(sum(outdated) + sum(current), desired - bounds.unavailable)
    assert desired <= rollout.ceiling <= desired + bounds.surge
