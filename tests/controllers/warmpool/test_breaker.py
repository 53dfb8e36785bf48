from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.controllers.warmpool.breaker import Attempt, Breaker

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def failed(scene: Scene, times: int) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker = breaker.attempted(Attempt(0, "no"), scene.now)
    return breaker


def test_r27_it_opens_after_repeated_failures(scene: Scene) -> None:
    assert [failed(scene, times).is_open for times in range(5)] == [False, False, False, True, True]


def test_r27_pauses_grow_to_five_minutes(scene: Scene) -> None:
    pauses = [failed(scene, times).remaining(scene.now) for times in range(12)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert failed(scene, 5000).pause == 300


def test_r27_a_success_closes_it(scene: Scene) -> None:
    assert failed(scene, 7).attempted(Attempt(1, ""), scene.now) == Breaker()


def test_some_success_starts_the_count_anew(scene: Scene) -> None:
    assert failed(scene, 7).attempted(Attempt(3, "quota"), scene.now) == Breaker(1, scene.at(1), "quota")


def test_no_attempt_changes_nothing(scene: Scene) -> None:
    assert failed(scene, 7).attempted(Attempt(0, ""), scene.at(3)) == failed(scene, 7)


def test_the_pause_passes(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(1.5)) == 2.5
    assert failed(scene, 3).remaining(scene.at(4)) == 0


def test_a_clock_set_back_does_not_stretch_the_pause(scene: Scene) -> None:
    assert failed(scene, 3).remaining(scene.at(-3600)) == 4


def test_r23_pools_that_failed_together_come_back_apart(scene: Scene) -> None:
    waits = [
        failed(scene, 2).attempted(Attempt(0, "no", chance=chance), scene.now).remaining(scene.now)
        for chance in (0.0, 0.25, 0.5, 1.0)
    ]
    assert waits == [4, 3.5, 3, 2]


def test_what_the_api_asks_for_is_kept_in_full(scene: Scene) -> None:
    breaker = Breaker().attempted(Attempt(0, "too many requests", retry_after=30, chance=0.9), scene.now)
    assert breaker.pause == breaker.remaining(scene.now) == 30
    assert breaker.attempted(Attempt(0, "no"), scene.at(30)).remaining(scene.at(30)) == 2


def test_a_namespace_that_is_being_deleted_opens_it_at_once_and_for_long(scene: Scene) -> None:
    error = "unable to create new content in namespace team because it is being terminated"
    breaker = Breaker().attempted(Attempt(2, error), scene.now)
    assert breaker.is_open
    assert breaker.pause == breaker.remaining(scene.now) == 300
    assert breaker.attempted(Attempt(1, ""), scene.at(300)) == Breaker()
