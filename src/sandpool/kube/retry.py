"""When to send a request again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sandpool.kube.errors import ApiError

# Reading changes nothing, so it may be repeated whatever went wrong on the server's side.
_READ_AGAIN = frozenset({429, 500, 503, 504})
# A server that refuses a request and says when to come back has done nothing with it. Any other failure of a write
# may have happened after the write, and only the writer knows what repeating it means.
_WRITE_AGAIN = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` in all. Waiting times are jittered, so that clients refused together do not return so."""

    attempts: int = 5
    first: float = 0.1  # seconds before the second attempt; doubles from there
    longest: float = 30.0  # a server that wants us to wait longer than this is not waited for
    random: Callable[[], float] = random.random

    def delay(
        self, method: str, error: ApiError, headers: Mapping[str, str], attempt: int, now: datetime | None = None
    ) -> float | None:
        """Seconds until the next attempt, ``attempt`` being the number of those made; None to give up."""
        asked = retry_after(error, headers, now)
        if attempt >= self.attempts or (asked is not None and asked > self.longest):
            return None
        if method in ("GET", "HEAD"):
            if error.code not in _READ_AGAIN:
                return None
        elif error.code not in _WRITE_AGAIN or asked is None:
            return None
        if asked is not None:
            return asked + asked * 0.1 * self.random()
        ceiling: float = min(self.longest, self.first * 2 ** (attempt - 1))
        return ceiling / 2 + ceiling / 2 * self.random()


def retry_after(error: ApiError, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds the server asked us to wait, in the header (a number or a date) or in the Status body. Names of headers
    are in lower case."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    if value:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return error.retry_after
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
    return error.retry_after
