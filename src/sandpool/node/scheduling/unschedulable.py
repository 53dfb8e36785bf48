"""Pods that fit nowhere, until something changes.

They wait in the order in which they came, those that ask for the same together: when room is made it is offered to the
first of each kind, and as long as that one fits to the next. So a thousand pods of one pool that do not fit cost one
look, whatever happens to the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from sandpool.engine.cache.store import Key
from sandpool.node.scheduling.requirements import PodRequirements


class UnschedulablePods:
    def __init__(self) -> None:
        # By what they ask for, each in order of arrival; none is empty. The kinds are in order of their first arrival.
        self._lines: OrderedDict[PodRequirements, OrderedDict[Key, None]] = OrderedDict()
        self._demands: dict[Key, PodRequirements] = {}

    def __len__(self) -> int:
        return len(self._demands)

    def __contains__(self, key: Key) -> bool:
        return key in self._demands

    def add(self, key: Key, requirements: PodRequirements) -> None:
        """At the end of its line, unless it waits already."""
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
        """Pods that may fit now, in order. ``fits`` is asked again after each of them, which must have been given its
        place by then; they leave the line."""
        for requirements in list(self._lines):
            while requirements in self._lines and fits(requirements):
                key = next(iter(self._lines[requirements]))
                self.remove(key)
                yield key
