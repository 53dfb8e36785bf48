from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.controllers.warmpool.hold import Hold, Patience

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

HALF_A_MINUTE = Patience(30)


def test_edge_29_the_first_filling_is_not_delayed(scene: Scene) -> None:
    assert Hold().observe(0, 5, scene.now, HALF_A_MINUTE).remaining(scene.now) == 0


def test_edge_29_a_drop_holds_for_the_delay(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, HALF_A_MINUTE)
    assert hold.remaining(scene.at(0)) == 30
    assert hold.remaining(scene.at(12)) == 18
    assert hold.remaining(scene.at(31)) == 0


def test_edge_29_every_drop_starts_anew(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, HALF_A_MINUTE).observe(3, 5, scene.at(20), HALF_A_MINUTE)
    assert hold.remaining(scene.at(20)) == 30


def test_looking_again_does_not_start_anew(scene: Scene) -> None:
    hold = Hold(members=5).observe(4, 5, scene.now, HALF_A_MINUTE).observe(4, 5, scene.at(20), HALF_A_MINUTE)
    assert hold.remaining(scene.at(20)) == 10


def test_a_full_pool_ends_it(scene: Scene) -> None:
    assert (
        Hold(members=5)
        .observe(4, 5, scene.now, HALF_A_MINUTE)
        .observe(4, 4, scene.at(1), HALF_A_MINUTE)
        .remaining(scene.at(1))
        == 0
    )


def test_without_a_delay_nothing_is_kept(scene: Scene) -> None:
    assert Hold(members=5, until=scene.at(9)).observe(1, 5, scene.now, Patience(0)) == Hold()


def test_what_the_pool_does_itself_is_no_drop(scene: Scene) -> None:
    hold = Hold().observe(5, 5, scene.now, HALF_A_MINUTE).changed(-2).observe(3, 5, scene.at(1), HALF_A_MINUTE)
    assert hold.remaining(scene.at(1)) == 0


def test_created_members_may_drop_again(scene: Scene) -> None:
    hold = Hold().observe(0, 5, scene.now, HALF_A_MINUTE).changed(+5).observe(4, 5, scene.at(1), HALF_A_MINUTE)
    assert hold.remaining(scene.at(1)) == 30
    assert Hold().changed(3) == Hold()


def test_when_little_is_left_the_delay_counts_from_the_first_drop(scene: Scene) -> None:
    patience = Patience(2, reserve=3)
    hold = Hold(members=10).observe(9, 10, scene.now, patience).observe(3, 10, scene.at(1), patience)
    assert hold.remaining(scene.at(1)) == 2, "there is enough for the next"
    hold = hold.observe(2, 10, scene.at(1.5), patience)
    assert hold.remaining(scene.at(1.5)) == 0.5
    hold = hold.observe(1, 10, scene.at(2), patience)
    assert hold.remaining(scene.at(2)) == 0, "claims that keep coming do not keep the pool empty"


def test_after_a_refill_the_next_burst_is_let_pass_again(scene: Scene) -> None:
    patience = Patience(2, reserve=3)
    hold = Hold(members=10).observe(2, 10, scene.now, patience).observe(1, 10, scene.at(2), patience).changed(+9)
    assert hold.observe(2, 10, scene.at(3), patience).remaining(scene.at(3)) == 2


def test_a_refill_that_failed_is_not_put_off(scene: Scene) -> None:
    patience = Patience(2, reserve=3)
    hold = Hold(members=10).observe(2, 10, scene.now, patience).observe(1, 10, scene.at(2), patience).changed(0)
    assert hold.observe(0, 10, scene.at(3), patience).remaining(scene.at(3)) == 0


def test_by_size_small_pools_do_not_wait_and_large_ones_not_long() -> None:
    assert [Patience.of(None, replicas).delay for replicas in (0, 1, 5, 10, 105, 100_000)] == [0, 0, 0, 0.1, 2, 2]
    assert Patience.of(None, 100).reserve == 25
    assert Patience.of(7, 100) == Patience(7), "a delay that is given is kept as it is"
