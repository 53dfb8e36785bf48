"""Host users of pods: each pod has a UID on the host that no other pod and no person has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

FIRST: Final = 200_000


class HostUsers:
    """Allocates the lowest free UID from ``first`` on; O(log n)."""

    def __init__(self, first: int = FIRST, *, taken: Iterable[int] = ()) -> None:
        self.first = first
        self._taken = set(taken)
        self._next = first  # lowest UID that was never allocated
        self._returned: list[int] = []  # heap of free UIDs below _next

    def take(self) -> int:
        while self._returned:
            if (user := heappop(self._returned)) not in self._taken:
                self._taken.add(user)
                return user
        while self._next in self._taken:
            self._next += 1
        self._taken.add(self._next)
        self._next += 1
        return self._next - 1

    def group_of(self, user: int) -> int:
        return user

    def give_back(self, user: int) -> None:
        if user in self._taken:
            self._taken.remove(user)
            heappush(self._returned, user)


class OwnUser(HostUsers):
    """Every pod runs as the node's own user: without privileges there is no other."""

    def take(self) -> int:
        return os.geteuid()

    def group_of(self, user: int) -> int:
        return os.getegid()

    def give_back(self, user: int) -> None:
        pass
