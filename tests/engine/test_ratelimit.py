from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sandpool.engine.ratelimit import Backoff


def pauses(backoff: Backoff[str], item: str, count: int) -> list[float]:
    return [backoff.next_delay(item) for _ in range(count)]


def test_five_milliseconds_doubling_to_a_thousand_seconds() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    assert pauses(backoff, "a", 19) == [0.005 * 2**n for n in range(18)] + [1000.0]
    assert backoff.failures("a") == 19


def test_items_do_not_wait_for_each_other() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    pauses(backoff, "a", 10)
    assert backoff.next_delay("b") == 0.005


def test_success_forgets() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    pauses(backoff, "a", 10)
    backoff.forget("a")
    backoff.forget("never failed")
    assert (backoff.failures("a"), len(backoff)) == (0, 0)
    assert backoff.next_delay("a") == 0.005


def test_r38_an_item_may_fail_for_ever() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    assert pauses(backoff, "a", 5000)[-1] == 1000.0


def test_a_seed_replays_the_pauses() -> None:
    assert pauses(Backoff(Random(7)), "a", 20) == pauses(Backoff(Random(7)), "a", 20)


@given(st.integers(1, 40), st.floats(0, 1), st.integers())
def test_jitter_only_shortens(count: int, jitter: float, seed: int) -> None:
    plain: list[float] = pauses(Backoff(Random(0), jitter=0), "a", count)
    for pause, most in zip(pauses(Backoff(Random(seed), jitter=jitter), "a", count), plain, strict=True):
        assert most * (1 - jitter) <= pause <= most
