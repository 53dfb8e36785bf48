"""Queue of claims that wait for the next ready sandbox of their pool, in order of arrival.

A claim asks for one compatibility or for any. A sandbox that becomes ready goes to the claim that came first among
those that accept it. The heads of two lines are compared, so joining, leaving and serving cost O(1) in waiting claims.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sandpool.api.resource import Key


class SandboxRequest(NamedTuple):
    """A claim's request for a sandbox of its pool; ``compatibility`` None accepts any."""

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
        # Waiting claims. Each is in the line of its request and in no other.
        self._waiters: dict[Key, Waiter] = {}
        # By pool and compatibility, in ascending order of arrival numbers. No line is empty.
        self._lines: dict[tuple[Key, str | None], OrderedDict[Key, int]] = {}
        # The last arrival number.
        self._arrived = 0

    def __contains__(self, claim: Key) -> bool:
        return claim in self._waiters

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, request: SandboxRequest) -> None:
        """Append the claim to its line. A claim that waits with the same request keeps its place."""
        waiter = self._waiters.get(request.claim)
        if waiter is not None and waiter.request == request:
            return
        self.leave(request.claim)
        self._arrived += 1
        self._stand(Waiter(request, self._arrived))

    def rejoin(self, waiter: Waiter) -> None:
        """Put a claim back in its old place after its sandbox was lost. Sorts the line; this is rare."""
        self._stand(waiter)
        at = waiter.request.pool, waiter.request.compatibility
        self._lines[at] = OrderedDict(sorted(self._lines[at].items(), key=lambda item: item[1]))

    def leave(self, claim: Key) -> None:
        """Remove the claim; a no-op if it does not wait."""
        waiter = self._waiters.pop(claim, None)
        if waiter is None:
            return
        at = waiter.request.pool, waiter.request.compatibility
        line = self._lines[at]
        del line[claim]
        if not line:
            del self._lines[at]

    def serve(self, pool: Key, compatibility: str) -> Waiter | None:
        """Remove and return the claim that has waited longest for such a sandbox."""
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
        """Number of claims that wait with exactly this request."""
        return len(self._lines.get((pool, compatibility), ()))

    def _stand(self, waiter: Waiter) -> None:
        self._waiters[waiter.request.claim] = waiter
        line = self._lines.setdefault((waiter.request.pool, waiter.request.compatibility), OrderedDict())
        line[waiter.request.claim] = waiter.number
