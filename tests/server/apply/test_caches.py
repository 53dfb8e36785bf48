from __future__ import annotations

from sandpool.server.apply.caches import OVERHEAD, CacheGroup


def test_caches_are_cleared_together_when_their_budget_is_spent() -> None:
    group = CacheGroup(budget=2 * (OVERHEAD + 10))
    calls: list[str] = []

    @group.cached(100)
    def first(text: str) -> str:
        group.charge(len(text))
        calls.append(text)
        return text

    @group.cached(100)
    def second(text: str) -> str:
        group.charge(len(text))
        calls.append(text)
        return text

    for _ in range(3):
        first("a" * 10)
        second("b" * 10)
    assert len(calls) == 2, "within the budget every answer is cached"
    first("c" * 10)
    first("a" * 10)
    second("b" * 10)
    assert len(calls) == 5


def test_cache_hit_does_not_use_the_budget() -> None:
    group = CacheGroup(budget=OVERHEAD + 10)
    calls: list[str] = []

    @group.cached(100)
    def echo(text: str) -> str:
        group.charge(len(text))
        calls.append(text)
        return text

    for _ in range(1_000):
        echo("a" * 10)
    assert calls == ["a" * 10]
