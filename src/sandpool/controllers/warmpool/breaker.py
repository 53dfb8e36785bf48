"""Not creating on and on while every creation fails.

Creation may fail for reasons that stay: a quota, a template the API rejects, an admission policy. Every failed attempt
is followed by a pause, each twice as long as the one before. After a few in a row the breaker is open: the pool says so
in a condition, and each further attempt is a single sandbox. One success closes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

OPENS_AFTER: Final = 3
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0  # attempts in a row that created nothing, or ended with a failure
    until: datetime | None = None  # no attempt before that
    error: str = ""  # what the last failure said

    @property
    def is_open(self) -> bool:
        return self.failures >= OPENS_AFTER

    @property
    def pause(self) -> float:
        """How long creation rests after the last failure."""
        return _pause_after(self.failures)

    def remaining(self, now: datetime) -> float:
        """Seconds until the next attempt; 0 if it may be made now."""
        if self.until is None:
            return 0.0
        # A wall clock that was set back must not turn a pause into an age.
        return min(self.pause, max(0.0, (self.until - now).total_seconds()))

    def attempted(self, succeeded: int, error: str, now: datetime) -> Breaker:
        """After an attempt. ``error`` is the first failure in it, empty if there was none."""
        if not error:
            return Breaker() if succeeded else self
        failures = 1 if succeeded else self.failures + 1
        return Breaker(failures, now + timedelta(seconds=_pause_after(failures)), error)


def _pause_after(failures: int) -> float:
    # Beyond 2^64 every pause is the longest, and much beyond it a float overflows.
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 64), LONGEST_PAUSE) if failures else 0.0
