"""How fast a pool may be refilled: a token bucket.

It holds one second's worth, at least one token, and starts full. Nothing is kept for a pool without a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Bucket:
    tokens: float
    at: datetime  # when there were so many


@dataclass(frozen=True, slots=True)
class Grant:
    count: int
    bucket: Bucket | None
    wait: float | None = None  # seconds until one more may be asked for; only if nothing was granted


def take(bucket: Bucket | None, wanted: int, rate: float, now: datetime) -> Grant:
    """As many of those wanted as the bucket allows, ``rate`` being per second and 0 meaning no limit."""
    if rate <= 0:
        return Grant(wanted, None)
    tokens = capacity = max(1.0, rate)
    if bucket is not None:
        # Wall clocks may be set back; tokens do not shrink because of that.
        elapsed = max(0.0, (now - bucket.at).total_seconds())
        tokens = min(capacity, bucket.tokens + rate * elapsed)
    count = math.floor(min(float(wanted), tokens))
    if count:
        return Grant(count, Bucket(tokens - count, now))
    # Rounded up, lest the wake-up find the bucket a hair short of a token.
    return Grant(0, Bucket(tokens, now), math.ceil((1 - tokens) / rate * 1000) / 1000)
