from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.controllers.warmpool.hold import Hold

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_edge_29_the_first_filling_is_not_delayed(scene: Scene) -> None:
    assert Hold().observe(0, 5, scene.now, 30).remaining(scene.now) == 0


def test_edge_29_a_drop_holds_for_the_delay(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, 30)
    assert hold.remaining(scene.at(0)) == 30
    assert hold.remaining(scene.at(12)) == 18
    assert hold.remaining(scene.at(31)) == 0


def test_edge_29_every_drop_starts_anew(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, 30).observe(3, 5, scene.at(20), 30)
    assert hold.remaining(scene.at(20)) == 30


def test_looking_again_does_not_start_anew(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, 30).observe(4, 5, scene.at(20), 30)
    assert hold.remaining(scene.at(20)) == 10


def test_a_full_pool_ends_it(scene: Scene) -> None:
    assert Hold(members=5).observe(4, 5, scene.now, 30).observe(4, 4, scene.at(1), 30).remaining(scene.at(1)) == 0


def test_without_a_delay_nothing_is_kept(scene: Scene) -> None:
    assert Hold(members=5, until=scene.at(9)).observe(1, 5, scene.now, 0) == Hold()


def test_what_the_pool_does_itself_is_no_drop(scene: Scene) -> None:
    hold = Hold().observe(5, 5, scene.now, 30).changed(-2).observe(3, 5, scene.at(1), 30)
    assert hold.remaining(scene.at(1)) == 0


def test_created_members_may_drop_again(scene: Scene) -> None:
    hold = Hold().observe(0, 5, scene.now, 30).changed(+5).observe(4, 5, scene.at(1), 30)
    assert hold.remaining(scene.at(1)) == 30
    assert Hold().changed(3) == Hold()
