"""Keys that wait, the highest priority first, and each served so that no group of keys can starve another.

Within a group the first to come is the first to go. Between groups it goes round: of a pool with 10,000 keys and one
with a single key, the single key is served second at the latest. A group that comes, also one that comes back, stands
at the end of the round.

Every operation is O(1). The lines are ``OrderedDict`` because a plain dict keeps a hole for every key taken from its
front and walks over all of them to find the next one, which makes emptying a long line quadratic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class FairQueue(Generic[K]):
    __slots__ = ("_groups",)

    def __init__(self) -> None:
        # In the order in which they are served next. No line is empty; each key is in the line of its group.
        self._groups: OrderedDict[Hashable, OrderedDict[K, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def push(self, key: K, group: Hashable) -> None:
        line = self._groups.get(group)
        if line is None:
            line = self._groups[group] = OrderedDict()
        line[key] = None

    def pop(self) -> K:
        group, line = next(iter(self._groups.items()))
        key, _ = line.popitem(last=False)
        if line:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        return key

    def remove(self, key: K, group: Hashable) -> None:
        line = self._groups[group]
        del line[key]
        if not line:
            del self._groups[group]


class PriorityLevels(Generic[K]):
    """A lane for each priority."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        # None is empty, and there are never more than a handful, so the highest is found by looking.
        self._lanes: dict[int, FairQueue[K]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def push(self, key: K, priority: int, group: Hashable) -> None:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = FairQueue()
        lane.push(key, group)

    def pop(self) -> tuple[K, int]:
        """The next key and its priority."""
        priority = max(self._lanes)
        lane = self._lanes[priority]
        key = lane.pop()
        if not lane:
            del self._lanes[priority]
        return key, priority

    def remove(self, key: K, priority: int, group: Hashable) -> None:
        lane = self._lanes[priority]
        lane.remove(key, group)
        if not lane:
            del self._lanes[priority]
