"""Letting a burst of claims pass before the pool is refilled.

Creating replacements while claims are being served makes both compete for the API. With a replenish delay, members that
are taken are replaced only once none was taken for that long. The first filling of a pool is never delayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Hold:
    members: int | None = None  # how many there were when last looked; None: not looked yet
    until: datetime | None = None  # no refill before that

    def observe(self, active: int, desired: int, now: datetime, delay: float) -> Hold:
        """Look at the members. Each drop starts the delay anew; a full pool ends it."""
        if delay <= 0:
            return Hold()
        until = self.until
        if self.members is not None and active < self.members:
            until = now + timedelta(seconds=delay)
        return Hold(active, None if active >= desired else until)

    def remaining(self, now: datetime) -> float:
        """Seconds to wait before refilling; 0 if there is nothing to wait for."""
        return 0.0 if self.until is None else max(0.0, (self.until - now).total_seconds())

    def changed(self, by: int) -> Hold:
        """Members the pool itself added, or took away on purpose: that they are more or fewer next time is no news."""
        return self if self.members is None else replace(self, members=max(0, self.members + by))
