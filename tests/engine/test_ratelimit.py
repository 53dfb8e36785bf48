from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sandpool.engine.ratelimit import Backoff


def pauses(backoff: Backoff[str], item: str, count: int) -> list[float]:
    return [backoff.next_delay(item) for _ in range(count)]


def test_backoff_doubles_from_5_milliseconds_to_1000_seconds() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    assert pauses(backoff, "a", 19) == [0.005 * 2**n for n in range(18)] + [1000.0]
    assert backoff.failures("a") == 19


def test_backoff_is_per_item() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    pauses(backoff, "a", 10)
    assert backoff.next_delay("b") == 0.005


def test_forget_resets_the_backoff() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    pauses(backoff, "a", 10)
    backoff.forget("a")
    backoff.forget("never failed")
    assert (backoff.failures("a"), len(backoff)) == (0, 0)
    assert backoff.next_delay("a") == 0.005


def test_r38_backoff_has_no_overflow_after_endless_failures() -> None:
    backoff: Backoff[str] = Backoff(Random(0), jitter=0)
    assert pauses(backoff, "a", 5000)[-1] == 1000.0


def test_seed_reproduces_the_delays() -> None:
    assert pauses(Backoff(Random(7)), "a", 20) == pauses(Backoff(Random(7)), "a", 20)


@given(st.integers(1, 40), st.floats(0, 1), st.integers())
def test_jitter_only_shortens_the_delay(count: int, jitter: float, seed: int) -> None:
    plain: list[float] = pauses(Backoff(Random(0), jitter=0), "a", count)
    for pause, most in zip(pauses(Backoff(Random(seed), jitter=jitter), "a", count), plain, strict=True):
        assert most * (1 - jitter) <= pause <= most
