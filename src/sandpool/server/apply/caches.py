"""Caches that are bounded in the text they hold, not only in the number of their entries.

Entries of these caches are made from what clients write, and one entry can be as large as an object. A limit on their
number alone would let a client fill gigabytes with a few thousand small patches of one large object. Each miss
therefore charges the size of what it adds to a budget that all caches share. When the budget is spent, all of them are
cleared. A hit costs what it costs in ``functools.lru_cache``.

Ordinary objects are a few kilobytes and mostly repeat what is cached, so the budget lasts for tens of thousands of
writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeVar

#: Characters that all caches may hold together.
BUDGET: Final = 32 << 20
#: What an entry or an element costs besides its text.
OVERHEAD: Final = 64

_F = TypeVar("_F", bound=Callable[..., Any])


class CacheGroup:
    """Caches that share one budget."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self._left = budget
        self._clears: list[Callable[[], None]] = []

    def cached(self, size: int, *, typed: bool = False) -> Callable[[_F], _F]:
        """``functools.lru_cache`` for functions that ``charge`` what they add."""

        def decorate(function: _F) -> _F:
            wrapped: Any = lru_cache(size, typed=typed)(function)
            self._clears.append(wrapped.cache_clear)
            return wrapped  # type: ignore[no-any-return]

        return decorate

    def charge(self, characters: int) -> None:
        """Count text that a cache is about to hold, and clear all caches if that exceeds the budget."""
        self._left -= characters + OVERHEAD
        if self._left < 0:
            self.clear()

    def clear(self) -> None:
        for clear in self._clears:
            clear()
        self._left = self.budget


#: The caches of this package.
CACHES: Final = CacheGroup()
cached = CACHES.cached
charge = CACHES.charge
