"""What a controller has asked the API for and not yet seen happen.

A cache lags behind the API. A controller that counts five members in it, wants eight and creates three will count five
again a moment later, and create three more. So it writes down what it is about to do, and as long as some of that has
not shown up it neither creates nor deletes anything for the same owner:

* ``try_expect`` writes down creations, *before* the requests are sent, and only if nothing is outstanding. Check and
  record are one step: of eight passes that come to the same conclusion at once, one gets to act.
* ``expect_deletion`` writes down one deletion by UID. A count would not do: a deletion may be observed twice (marked,
  then gone), and the same name may belong to a successor by then.
* ``settle_creations`` and ``settle_deletion`` strike off what has been observed, and likewise what will never be: a
  create that failed, a delete that was answered 404. An expectation nobody settles would freeze the owner.
* An event that is lost all the same must not freeze the owner for good. Expectations of an owner expire as a whole
  when none was added for ``lifetime`` seconds; from then on the cache is trusted again, for better or worse.

Creations are counted rather than named because the event of a creation may show the object already in other hands:
what matters is that as many came as were asked for.

Everything here happens between two awaits, so nothing is locked. Every operation is O(1).
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
    """What is outstanding for one owner; one with nothing outstanding is not kept."""

    raised: float  # when the last expectation was added
    creations: int = 0  # never negative
    deletions: set[str] = field(default_factory=set)  # UIDs, never empty ones


class Expectations(Generic[K]):
    def __init__(self, clock: Clock, *, lifetime: float = LIFETIME) -> None:
        self.clock = clock
        self.lifetime = lifetime
        # By owner. May hold expired ones until somebody asks.
        self._outstanding: dict[K, _Outstanding] = {}

    def satisfied(self, owner: K) -> bool:
        """Nothing is outstanding: what the cache shows includes all we did."""
        return self._current(owner) is None

    def try_expect(self, owner: K, creations: int) -> bool:
        """Expect so many creations, if nothing is outstanding. False, also for none at all, means: do not create."""
        if creations <= 0 or not self.satisfied(owner):
            return False
        self._outstanding[owner] = _Outstanding(self.clock.monotonic(), creations)
        return True

    def expect_deletion(self, owner: K, uid: str) -> None:
        """Expect an object to go. To be called before the request is sent: the event may be faster than the answer."""
        if not uid:
            return  # nothing that could ever be recognised
        outstanding = self._current(owner)
        if outstanding is None:
            outstanding = self._outstanding[owner] = _Outstanding(0.0)
        outstanding.raised = self.clock.monotonic()
        outstanding.deletions.add(uid)

    def settle_creations(self, owner: K, count: int = 1) -> None:
        """So many creations have been observed, or have failed."""
        outstanding = self._outstanding.get(owner)
        if outstanding is not None:
            outstanding.creations = max(0, outstanding.creations - count)
            self._drop_if_settled(owner, outstanding)

    def settle_deletion(self, owner: K, uid: str) -> None:
        """The object is gone, or its deletion has failed."""
        outstanding = self._outstanding.get(owner)
        if outstanding is not None:
            outstanding.deletions.discard(uid)
            self._drop_if_settled(owner, outstanding)

    def pending_deletions(self, owner: K) -> Set[str]:
        """UIDs of objects that are as good as gone although the cache still shows them."""
        outstanding = self._current(owner)
        return frozenset(outstanding.deletions) if outstanding is not None else frozenset()

    def forget(self, owner: K) -> None:
        """The owner is gone, and whatever was expected for it with it."""
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
