"""Claims that wait for the next ready sandbox of their pool, in the order in which they came.

A claim may want a sandbox of one compatibility or any. A sandbox that becomes ready goes to whoever came first of those
it is good for: the heads of two lines are compared, so joining, leaving and serving cost O(1) however many wait.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sandpool.controllers.claim.assignment.free_list import Key


class SandboxRequest(NamedTuple):
    """What a claim wants: a sandbox of its pool, of one compatibility or, if that is None, of any."""

    claim: Key
    pool: Key
    compatibility: str | None

    def accepts(self, pool: Key, compatibility: str) -> bool:
        return pool == self.pool and self.compatibility in (None, compatibility)


class Waiter(NamedTuple):
    request: SandboxRequest
    number: int


class WaitQueue:
    __slots__ = ("_arrived", "_lines", "_waiters")

    def __init__(self) -> None:
        # Claims that wait. Each stands in the line of what it wishes, and in no other.
        self._waiters: dict[Key, Waiter] = {}
        # By pool and compatibility, ascending in the number drawn. No line is empty.
        self._lines: dict[tuple[Key, str | None], OrderedDict[Key, int]] = {}
        # The number drawn last.
        self._arrived = 0

    def __contains__(self, claim: Key) -> bool:
        return claim in self._waiters

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, request: SandboxRequest) -> None:
        """The claim waits from now on, last in line; one that waits for the same thing already keeps its place."""
        waiter = self._waiters.get(request.claim)
        if waiter is not None and waiter.request == request:
            return
        self.leave(request.claim)
        self._arrived += 1
        self._stand(Waiter(request, self._arrived))

    def rejoin(self, waiter: Waiter) -> None:
        """Who was served in vain is back where it stood. Rare enough to sort the line, which is nearly sorted."""
        self._stand(waiter)
        at = waiter.request.pool, waiter.request.compatibility
        self._lines[at] = OrderedDict(sorted(self._lines[at].items(), key=lambda item: item[1]))

    def leave(self, claim: Key) -> None:
        """The claim waits no more; nothing happens if it did not."""
        waiter = self._waiters.pop(claim, None)
        if waiter is None:
            return
        at = waiter.request.pool, waiter.request.compatibility
        line = self._lines[at]
        del line[claim]
        if not line:
            del self._lines[at]

    def serve(self, pool: Key, compatibility: str) -> Waiter | None:
        """Takes out the claim that has waited longest for a sandbox like this one."""
        heads = []
        for wanted in (compatibility, None):
            line = self._lines.get((pool, wanted))
            if line is not None:
                claim, number = next(iter(line.items()))
                heads.append((number, claim))
        if not heads:
            return None
        _, claim = min(heads)
        waiter = self._waiters[claim]
        self.leave(claim)
        return waiter

    def waiting(self, pool: Key, compatibility: str | None) -> int:
        """How many claims wish exactly this."""
        return len(self._lines.get((pool, compatibility), ()))

    def _stand(self, waiter: Waiter) -> None:
        self._waiters[waiter.request.claim] = waiter
        line = self._lines.setdefault((waiter.request.pool, waiter.request.compatibility), OrderedDict())
        line[waiter.request.claim] = waiter.number
