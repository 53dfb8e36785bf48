from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.warmpool.breaker import Attempt, Breaker
from sandpool.controllers.warmpool.bucket import Bucket
from sandpool.controllers.warmpool.hold import Hold
from sandpool.controllers.warmpool.scaling import Refill, Supply, refill, slow_start

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def refilled(
    scene: Scene, missing: int, supply: Supply | None = None, settled: bool = True, **settings: float
) -> Refill:
    given = WarmPoolOptions(**settings)  # type: ignore[arg-type]
    return refill(missing, settled=settled, supply=supply or Supply(), now=scene.now, settings=given)


@pytest.mark.parametrize("missing", [0, -3])
def test_nothing_is_missing(scene: Scene, missing: int) -> None:
    assert refilled(scene, missing) == Refill(0, Supply())


def test_all_at_once_up_to_the_batch_size(scene: Scene) -> None:
    assert refilled(scene, 7).create == 7
    assert refilled(scene, 7000).create == 300
    assert refilled(scene, 7000, max_batch_size=50).create == 50


def test_r18_nothing_while_something_is_outstanding(scene: Scene) -> None:
    supply = Supply(bucket=Bucket(5, scene.now))
    # Edge case 30: what is refused here takes no tokens, so there is none to give back.
    assert refilled(scene, 3, supply, settled=False, max_refill_rate=10) == Refill(0, supply, 30.0)


def test_r24_nothing_while_claims_are_served(scene: Scene) -> None:
    supply = Supply(hold=Hold(4, scene.at(12)))
    assert refilled(scene, 3, supply) == Refill(0, supply, 12.0)


def test_r27_nothing_during_a_pause(scene: Scene) -> None:
    supply = Supply(breaker=Breaker(3, scene.at(4), "no"))
    assert refilled(scene, 3, supply) == Refill(0, supply, 4.0)


def test_r27_one_to_find_out_whether_it_works_again(scene: Scene) -> None:
    assert refilled(scene, 300, Supply(breaker=Breaker(3, scene.at(-1), "no"))).create == 1
    assert refilled(scene, 300, Supply(breaker=Breaker(2, scene.at(-1), "no"))).create == 300


def test_as_fast_as_the_rate_allows(scene: Scene) -> None:
    assert refilled(scene, 30, max_refill_rate=10) == Refill(10, Supply(bucket=Bucket(0, scene.now)))
    empty = Supply(bucket=Bucket(0, scene.now))
    assert refilled(scene, 30, empty, max_refill_rate=10) == Refill(0, empty, 0.1)


def test_an_attempt_is_remembered(scene: Scene) -> None:
    supply = Supply(hold=Hold(2)).attempted(Attempt(3, "quota"), scene.now)
    assert supply == Supply(hold=Hold(5), breaker=Breaker(1, scene.at(1), "quota"))


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (3, [1, 2]), (10, [1, 2, 4, 3]), (300, [1, 2, 4, 8, 16, 32, 64, 128, 45])]
)
def test_slow_start(count: int, sizes: list[int]) -> None:
    assert list(slow_start(count)) == sizes
