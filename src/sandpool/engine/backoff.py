"""How long to wait before trying again what has failed: longer after every failure, item by item.

The first pause is 5 ms, each further one doubles up to 1000 s, and one success forgets them all; the figures are those
of client-go's per-item limiter. There is no limit on all items together: a shared budget makes the retries of healthy
items wait behind those of broken ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Backoff(Generic[K]):
    """Pauses from ``first`` to ``longest`` seconds. ``jitter`` is the share of a pause that is left to chance: items
    that failed together come back apart, and never later than the doubling says."""

    def __init__(self, random: Random, *, first: float = 0.005, longest: float = 1000.0, jitter: float = 0.1) -> None:
        self.random = random
        self.first = first
        self.longest = longest
        self.jitter = jitter
        self._failures: dict[K, int] = {}  # in a row; only of items whose last attempt failed

    def __len__(self) -> int:
        """How many items are failing."""
        return len(self._failures)

    def failures(self, item: K) -> int:
        """How often an item has failed since it last succeeded."""
        return self._failures.get(item, 0)

    def pause(self, item: K) -> float:
        """Count a failure; seconds until the next attempt."""
        failures = self._failures[item] = self._failures.get(item, 0) + 1
        # Beyond 2^64 every pause is the longest, and much beyond it a float overflows.
        pause: float = min(self.first * 2.0 ** min(failures - 1, 64), self.longest)
        return pause * (1.0 - self.jitter * self.random.random())

    def forget(self, item: K) -> None:
        """The item has succeeded, or is gone."""
        self._failures.pop(item, None)
