"""Order of the keys in a work queue: the highest priority first, and fair between groups within a priority.

Within a group keys are served in arrival order. Between groups the order is round robin: beside a pool with 10,000 keys
the single key of another pool is served second at the latest. A group that becomes non-empty joins at the end of the
round.

Every operation is O(1). The lines are ``OrderedDict`` because a plain dict keeps a hole for every key taken from its
front and scans all holes to find the next key, which makes emptying a long line quadratic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairQueue(Generic[K]):
    """The keys of one priority."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        # In the order in which they are served. No line is empty; each key is in the line of its group.
        self._groups: OrderedDict[Hashable, OrderedDict[K, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def push(self, key: K, group: Hashable) -> None:
        line = self._groups.get(group)
        if line is None:
            line = self._groups[group] = OrderedDict()
        line[key] = None

    def pop(self) -> K:
        group, line = self._groups.popitem(last=False)
        key, _ = line.popitem(last=False)
        if line:
            self._groups[group] = line  # behind the others
        return key

    def remove(self, key: K, group: Hashable) -> None:
        line = self._groups[group]
        del line[key]
        if not line:
            del self._groups[group]


class PriorityLevels(Generic[K]):
    """A fair queue for each priority."""

    __slots__ = ("levels",)

    def __init__(self) -> None:
        # No queue is empty. There are only a few priorities, so a scan finds the highest. Other modules read only
        # whether there are any.
        self.levels: dict[int, FairQueue[K]] = {}

    def push(self, key: K, priority: int, group: Hashable) -> None:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = FairQueue()
        level.push(key, group)

    def pop(self) -> tuple[K, int]:
        """The next key and its priority."""
        priority = max(self.levels)
        level = self.levels[priority]
        key = level.pop()
        if not level:
            del self.levels[priority]
        return key, priority

    def remove(self, key: K, priority: int, group: Hashable) -> None:
        level = self.levels[priority]
        level.remove(key, group)
        if not level:
            del self.levels[priority]
