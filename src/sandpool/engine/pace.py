"""How often a key may be looked at: so many times a second, and then not before the next one.

A pass that does something may be the cause of the next: it makes what somebody else takes away at once, because one of
the two has not heard yet that it should not be there. Each of them is right by what it knows, no request fails, and so
nothing slows them down. Whatever the reason is, a key that needs more passes than any key should is made to wait.

All keys share one count, which begins anew every second, so it holds no more keys than were looked at in that second.

A pass that is a lot of work asks for a rest itself: whatever happens meanwhile is looked at in one pass after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from sandpool.engine.clock import Clock

#: Enough for an object of which each pass has a reason of its own: a launch takes three, a claim two.
PASSES_PER_SECOND: Final = 10

K = TypeVar("K", bound=Hashable)


class Pace(Generic[K]):
    """``per_second`` None is no limit."""

    def __init__(self, clock: Clock, per_second: int | None) -> None:
        self.clock = clock
        self.per_second = per_second
        self._second = 0
        self._passes: Counter[K] = Counter()  # in that second
        self._rests: dict[K, float] = {}  # until when, by key; until the next pass is made

    def wait(self, key: K) -> float:
        """Count a pass; or, if it is too early for one, the seconds until it may be made."""
        if key in self._rests:
            if (left := self._rests[key] - self.clock.monotonic()) > 0:
                return left
            del self._rests[key]
        if self.per_second is None:
            return 0.0
        now = self.clock.monotonic()
        if int(now) != self._second:
            self._second = int(now)
            self._passes.clear()
        if self._passes[key] >= self.per_second:
            return self._second + 1 - now
        self._passes[key] += 1
        return 0.0

    def rest(self, key: K, seconds: float) -> None:
        """There is to be no pass for so long."""
        self._rests[key] = self.clock.monotonic() + seconds
