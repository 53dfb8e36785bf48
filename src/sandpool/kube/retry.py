"""Retry policy: which requests are sent again, and after which delay; and the pauses of all other retries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

from sandpool.kube.errors import ApiError

# A read changes nothing, so it is retried after every transient server error.
_READ_AGAIN = frozenset({429, 500, 503, 504})
# A server that rejects a request with Retry-After has not executed it. Any other failure may have happened after the
# write, and only the caller knows whether a second write is safe.
_WRITE_AGAIN = frozenset({429, 503})


def backoff_delay(failures: int, *, first: float, longest: float) -> float:
    """Seconds to wait after ``failures`` failures in a row: ``first``, then doubled each time, up to ``longest``."""
    # The exponent is capped because a float overflows far beyond 2^64, and every pause is the longest before that.
    delay: float = min(first * 2.0 ** min(failures - 1, 64), longest)
    return delay


@dataclass(frozen=True, slots=True)
class Retry:
    """Allows ``attempts`` in total. Delays are jittered, so that clients rejected together do not retry together."""

    attempts: int = 5
    first: float = 0.1  # seconds before the second attempt; doubles from there
    longest: float = 30.0  # give up if the server asks for a longer delay
    rng: Random = field(default_factory=Random, compare=False)

    def delay(
        self, method: str, error: ApiError, headers: Mapping[str, str], attempt: int, now: datetime | None = None
    ) -> float | None:
        """Seconds until the next attempt after ``attempt`` attempts; None to give up."""
        asked = retry_after(error, headers, now)
        if attempt >= self.attempts or (asked is not None and asked > self.longest):
            return None
        if method in ("GET", "HEAD"):
            if error.code not in _READ_AGAIN:
                return None
        elif error.code not in _WRITE_AGAIN or asked is None:
            return None
        if asked is not None:
            return asked + asked * 0.1 * self.rng.random()
        ceiling = backoff_delay(attempt, first=self.first, longest=self.longest)
        return ceiling / 2 + ceiling / 2 * self.rng.random()


def retry_after(error: ApiError, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The delay in seconds that the server asked for, in the Retry-After header (a number or a date) or in the Status
    body. Header names are in lower case."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    if value:
        from email.utils import parsedate_to_datetime  # slow to import, and rarely needed

        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return error.retry_after
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
    return error.retry_after
