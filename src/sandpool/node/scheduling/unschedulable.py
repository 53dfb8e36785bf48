"""Pods that fit no node, until something changes.

They wait in arrival order, grouped by equal requirements. When resources are released, they are offered to the first
pod of each group, and to the next as long as one fits. So a thousand pods of one pool that do not fit cost one check,
whatever happens to other pods.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from sandpool.api.resource import Key
from sandpool.node.scheduling.requirements import PodRequirements


class UnschedulablePods:
    """Waiting pods by requirements."""

    def __init__(self) -> None:
        # Groups in order of their first arrival, each in arrival order. No group is empty.
        self._lines: OrderedDict[PodRequirements, OrderedDict[Key, None]] = OrderedDict()
        self._demands: dict[Key, PodRequirements] = {}

    def __len__(self) -> int:
        return len(self._demands)

    def __contains__(self, key: Key) -> bool:
        return key in self._demands

    def add(self, key: Key, requirements: PodRequirements) -> None:
        """Append a pod to its group unless it waits already."""
        if self._demands.get(key) == requirements:
            return
        self.remove(key)
        self._demands[key] = requirements
        self._lines.setdefault(requirements, OrderedDict())[key] = None

    def remove(self, key: Key) -> None:
        requirements = self._demands.pop(key, None)
        if requirements is not None:
            line = self._lines[requirements]
            del line[key]
            if not line:
                del self._lines[requirements]

    def offer(self, fits: Callable[[PodRequirements], bool]) -> Iterator[Key]:
        """Yield and remove the pods that may fit now, in order. ``fits`` is called again after each and must then
        account for the previous ones."""
        for requirements in list(self._lines):
            while requirements in self._lines and fits(requirements):
                key = next(iter(self._lines[requirements]))
                self.remove(key)
                yield key
