"""Letting a burst of claims pass before the pool is refilled.

Creating replacements while claims are being served makes both compete for the API, and on one machine for its
processors. With a replenish delay, members that are taken are replaced only once none was taken for that long. The
first filling of a pool is never delayed.

A delay that is given is kept, also if claims come so steadily that the pool is never refilled. One that follows from
the size of the pool is not: when little is left of it, the delay counts from the first member that was taken and not
from the last. Small pools have none, for the next claim may well be for what is just being replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

# Seconds by size: so many for each member, pools up to a certain size aside, and no more than that.
_EACH: Final = 0.02
_SMALL: Final = 5
_LONGEST: Final = 2.0
# Little is left when less than this share is.
_RESERVE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Patience:
    delay: float  # seconds without a claim after which a pool is refilled; 0: at once
    reserve: int = 0  # with fewer members than that, it is refilled so long after the first claim

    @classmethod
    def of(cls, delay: float | None, replicas: int) -> Patience:
        """``delay`` None: as the size of the pool suggests."""
        if delay is not None:
            return cls(delay)
        return cls(min(_LONGEST, _EACH * max(0, replicas - _SMALL)), int(replicas * _RESERVE))


@dataclass(frozen=True, slots=True)
class Hold:
    members: int | None = None  # how many there were when last looked; None: not looked yet
    until: datetime | None = None  # no refill before that
    since: datetime | None = None  # of the first drop after which nothing was created

    def observe(self, active: int, desired: int, now: datetime, patience: Patience) -> Hold:
        """Look at the members. Each drop starts the delay anew; a full pool ends it."""
        if patience.delay <= 0:
            return Hold()
        if active >= desired:
            return Hold(active)
        until, since = self.until, self.since
        delay = timedelta(seconds=patience.delay)
        if self.members is not None and active < self.members:
            since = since or now
            until = now + delay
        if until is not None and since is not None and active < patience.reserve:
            until = min(until, since + delay)
        return Hold(active, until, since)

    def remaining(self, now: datetime) -> float:
        """Seconds to wait before refilling; 0 if there is nothing to wait for."""
        return 0.0 if self.until is None else max(0.0, (self.until - now).total_seconds())

    def changed(self, by: int) -> Hold:
        """Members the pool itself added, or took away on purpose: that they are more or fewer next time is no news."""
        if self.members is None:
            return self
        return replace(self, members=max(0, self.members + by), since=None if by > 0 else self.since)
