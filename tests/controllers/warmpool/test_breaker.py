from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.controllers.warmpool.breaker import Breaker

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def failed(scene: Scene, times: int) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker = breaker.attempted(0, "no", scene.now)
    return breaker


def test_r27_it_opens_after_repeated_failures(scene: Scene) -> None:
    assert [failed(scene, times).is_open for times in range(5)] == [False, False, False, True, True]


def test_r27_pauses_grow_to_five_minutes(scene: Scene) -> None:
    pauses = [failed(scene, times).remaining(scene.now) for times in range(12)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert failed(scene, 5000).pause == 300


def test_r27_a_success_closes_it(scene: Scene) -> None:
    assert failed(scene, 7).attempted(1, "", scene.now) == Breaker()


def test_some_success_starts_the_count_anew(scene: Scene) -> None:
    assert failed(scene, 7).attempted(3, "quota", scene.now) == Breaker(1, scene.at(1), "quota")


def test_no_attempt_changes_nothing(scene: Scene) -> None:
    assert failed(scene, 7).attempted(0, "", scene.at(3)) == failed(scene, 7)


def test_the_pause_passes(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(1.5)) == 2.5
    assert failed(scene, 3).remaining(scene.at(4)) == 0


def test_a_clock_set_back_does_not_stretch_the_pause(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(-3600)) == 4
