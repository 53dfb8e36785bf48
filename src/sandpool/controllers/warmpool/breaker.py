"""Not creating on and on while every creation fails.

Creation may fail for reasons that stay: a quota, a template the API rejects, an admission policy. Every failed attempt
is followed by a pause, each twice as long as the one before. After a few in a row the breaker is open: the pool says so
in a condition, and each further attempt is a single sandbox. One success closes it.

In a namespace that is being deleted nothing can be made any more, so the breaker opens at once and for the longest
pause. Who deletes the namespace deletes the pool, too; one of the same name in a new namespace begins anew.

What fails for one pool often fails for many at the same moment. So a part of every pause is left to chance, and they
come back apart. A pause the API has asked for is kept in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandpool.kube.errors import TERMINATING

OPENS_AFTER: Final = 3
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0


# The share of a pause that is left to chance.
_JITTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of creating members."""

    succeeded: int
    error: str = ""  # what the first failure said; empty if there was none
    retry_after: float = 0.0  # seconds the API asked us to wait
    chance: float = 0.0  # a random number from 0 to 1


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0  # attempts in a row that created nothing, or ended with a failure
    until: datetime | None = None  # no attempt before that
    error: str = ""  # what the last failure said
    retry_after: float = 0.0  # seconds the API asked us to wait then

    @property
    def is_open(self) -> bool:
        return self.failures >= OPENS_AFTER or TERMINATING in self.error

    @property
    def pause(self) -> float:
        """How long creation rests after the last failure, at most."""
        return max(_pause_after(self.failures, self.error), self.retry_after)

    def remaining(self, now: datetime) -> float:
        """Seconds until the next attempt; 0 if it may be made now."""
        if self.until is None:
            return 0.0
        # A wall clock that was set back must not turn a pause into an age.
        return min(self.pause, max(0.0, (self.until - now).total_seconds()))

    def attempted(self, attempt: Attempt, now: datetime) -> Breaker:
        if not attempt.error:
            return Breaker() if attempt.succeeded else self
        failures = 1 if attempt.succeeded else self.failures + 1
        pause = max(_pause_after(failures, attempt.error) * (1.0 - _JITTER * attempt.chance), attempt.retry_after)
        return Breaker(failures, now + timedelta(seconds=pause), attempt.error, attempt.retry_after)


def _pause_after(failures: int, error: str) -> float:
    if TERMINATING in error:
        return LONGEST_PAUSE
    # Beyond 2^64 every pause is the longest, and much beyond it a float overflows.
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 64), LONGEST_PAUSE) if failures else 0.0
