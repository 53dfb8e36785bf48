"""Expectations: writes that a controller has sent and not yet observed in its cache.

A cache lags behind the API. A controller that counts five members, wants eight and creates three would count five again
a moment later and create three more. So it records what it is about to do, and while part of that has not been observed
it neither creates nor deletes anything for the same owner:

* ``try_expect`` records creations *before* the requests are sent, and only if nothing is outstanding. Check and record
  are one step: of eight reconciles that reach the same conclusion at once, one may act.
* ``expect_deletion`` records one deletion by UID. A count is not enough: a deletion may be observed twice (marked, then
  gone), and the same name may belong to a successor by then.
* ``settle_creations`` and ``settle_deletion`` remove expectations that were observed, and those that will never be: a
  failed create, a delete that was answered with 404. An expectation that is never settled would freeze the owner.
* A lost event must not freeze the owner for ever. The expectations of an owner expire together when none was added for
  ``lifetime`` seconds; from then on the cache is trusted again.

Creations are counted and not named because the event of a creation may show the object already with another owner. Only
their number matters.

Every operation runs between two awaits, so there are no locks. Every operation is O(1).
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sandpool.engine.clock import Clock

K = TypeVar("K", bound=Hashable)

LIFETIME = 300.0


@dataclass(slots=True)
class _Outstanding:
    """Expectations of one owner. An owner without expectations has no entry."""

    raised: float  # when the last expectation was added
    creations: int = 0  # never negative
    deletions: set[str] = field(default_factory=set)  # UIDs, never empty ones


class Expectations(Generic[K]):
    def __init__(self, clock: Clock, *, lifetime: float = LIFETIME) -> None:
        self.clock = clock
        self.lifetime = lifetime
        # By owner. Expired entries remain until they are read.
        self._outstanding: dict[K, _Outstanding] = {}

    def satisfied(self, owner: K) -> bool:
        """Whether nothing is outstanding, so that the cache includes all our writes."""
        return self._current(owner) is None

    def try_expect(self, owner: K, creations: int) -> bool:
        """Expect ``creations`` creations if nothing is outstanding. False means: do not create (also for 0)."""
        if creations <= 0 or not self.satisfied(owner):
            return False
        self._outstanding[owner] = _Outstanding(self.clock.monotonic(), creations)
        return True

    def expect_deletion(self, owner: K, uid: str) -> None:
        """Expect a deletion. Call it before the request is sent: the event may be faster than the response."""
        if not uid:
            return  # it could never be recognised
        outstanding = self._current(owner)
        if outstanding is None:
            outstanding = self._outstanding[owner] = _Outstanding(0.0)
        outstanding.raised = self.clock.monotonic()
        outstanding.deletions.add(uid)

    def settle_creations(self, owner: K, count: int = 1) -> None:
        """Note that ``count`` creations were observed or failed."""
        outstanding = self._outstanding.get(owner)
        if outstanding is not None:
            outstanding.creations = max(0, outstanding.creations - count)
            self._drop_if_settled(owner, outstanding)

    def settle_deletion(self, owner: K, uid: str) -> None:
        """Note that the object is gone or that its deletion failed."""
        outstanding = self._outstanding.get(owner)
        if outstanding is not None:
            outstanding.deletions.discard(uid)
            self._drop_if_settled(owner, outstanding)

    def pending_deletions(self, owner: K) -> Set[str]:
        """UIDs of objects that are being deleted although the cache still shows them."""
        outstanding = self._current(owner)
        return frozenset(outstanding.deletions) if outstanding is not None else frozenset()

    def forget(self, owner: K) -> None:
        """Drop the expectations of an owner that is gone."""
        self._outstanding.pop(owner, None)

    def _current(self, owner: K) -> _Outstanding | None:
        outstanding = self._outstanding.get(owner)
        if outstanding is not None and self.clock.monotonic() - outstanding.raised > self.lifetime:
            del self._outstanding[owner]
            return None
        return outstanding

    def _drop_if_settled(self, owner: K, outstanding: _Outstanding) -> None:
        if not outstanding.creations and not outstanding.deletions:
            del self._outstanding[owner]
