"""How many members to create now.

As many as are missing, unless something speaks for waiting: a burst of claims is going on (hold), the last attempts
failed (breaker), what was asked for before has not shown up yet (expectations), it would be too fast (bucket).
Members on their way out count as present. A replacement comes when they are gone, so that there are never more pods
than the pool was allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.warmpool.breaker import Attempt, Breaker
from sandpool.controllers.warmpool.bucket import Bucket, take
from sandpool.controllers.warmpool.hold import Hold


@dataclass(frozen=True, slots=True)
class Supply:
    """What is remembered from one refill to the next. It starts empty with the process, and no harm is done."""

    hold: Hold = field(default_factory=Hold)
    breaker: Breaker = field(default_factory=Breaker)
    bucket: Bucket | None = None

    def attempted(self, attempt: Attempt, now: datetime) -> Supply:
        breaker = self.breaker.attempted(attempt, now)
        return replace(self, hold=self.hold.changed(attempt.succeeded), breaker=breaker)


@dataclass(frozen=True, slots=True)
class Refill:
    create: int
    supply: Supply
    wait: float | None = None  # seconds after which to look again; None: an event will tell


def refill(missing: int, *, settled: bool, supply: Supply, now: datetime, settings: WarmPoolOptions) -> Refill:
    """``settled``: everything that was asked for so far has been seen to happen."""
    if missing <= 0:
        return Refill(0, supply)
    if not settled:
        return Refill(0, supply, settings.expectations_recheck_interval)
    if pause := max(supply.hold.remaining(now), supply.breaker.remaining(now)):
        return Refill(0, supply, pause)
    wanted = 1 if supply.breaker.is_open else min(missing, settings.max_batch_size)
    grant = take(supply.bucket, wanted, settings.max_refill_rate, now)
    return Refill(grant.count, replace(supply, bucket=grant.bucket), grant.wait)


def slow_start(count: int) -> Iterator[int]:
    """The sizes of the batches in which ``count`` requests are sent: 1, 2, 4 and so on, each batch at once and none
    after one with a failure. If they fail, they do so for the same reason, and few requests find that out."""
    size = 1
    while count > 0:
        yield min(size, count)
        count -= size
        size *= 2
