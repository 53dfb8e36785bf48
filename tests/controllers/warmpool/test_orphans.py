from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.api.views import SandboxView
from sandpool.controllers.warmpool.orphans import Orphans, vet
from sandpool.controllers.warmpool.staleness import Staleness

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def names(sandboxes: tuple[SandboxView, ...]) -> list[str]:
    return sorted(sandbox.name for sandbox in sandboxes)


def vetted(scene: Scene, *orphans: SandboxView, missing: int, terminating: int = 0, settled: bool = True) -> Orphans:
    staleness = Staleness(scene.revision())
    return vet(orphans, staleness, missing=missing, terminating=terminating, settled=settled)


def test_orphans_fill_the_pool(scene: Scene) -> None:
    orphans = scene.members(2, owner=None)
    assert names(vetted(scene, *orphans, missing=3).adopt) == ["m0", "m1"]
    assert vetted(scene, *orphans, missing=3).discard == ()


def test_the_best_are_adopted_and_the_rest_goes(scene: Scene) -> None:
    orphans = [
        scene.member("unready", owner=None, ready=False, age=50),
        scene.member("young", owner=None, age=1),
        scene.member("old", owner=None, age=9),
    ]
    result = vetted(scene, *orphans, missing=1)
    assert (names(result.adopt), names(result.discard)) == (["old"], ["unready", "young"])


def test_r19_orphans_wait_for_members_on_their_way_out(scene: Scene) -> None:
    result = vetted(scene, *scene.members(3, owner=None), missing=2, terminating=1)
    assert len(result.adopt) == 1
    assert len(result.discard) == 1


def test_r18_orphans_wait_until_it_is_certain_how_many_there_are(scene: Scene) -> None:
    foreign = scene.member("foreign", owner=None, image="example.com/evil")
    result = vetted(scene, foreign, *scene.members(3, owner=None), missing=0, settled=False)
    assert (names(result.adopt), names(result.discard)) == ([], ["foreign"])


def test_edge_26_foreign_ones_are_deleted(scene: Scene) -> None:
    foreign = scene.member("foreign", owner=None, image="example.com/evil")
    assert vetted(scene, foreign, missing=5) == Orphans(discard=(foreign,))


def test_r10_without_a_template_orphans_are_left_alone(scene: Scene) -> None:
    assert vet(scene.members(2, owner=None), None, missing=5, terminating=0, settled=True) == Orphans()
