"""How many members to create now.

As many as are missing, unless something speaks for waiting: a burst of claims is going on (hold), the last attempts
failed (breaker), what was asked for before has not shown up yet (expectations), it would be too fast (bucket).
Members on their way out count as present. A replacement comes when they are gone, so that there are never more pods
than the pool was allowed.

Which members to give up when there are too many.

Letting a burst of claims pass before the pool is refilled.

Creating replacements while claims are being served makes both compete for the API, and on one machine for its
processors. With a replenish delay, members that are taken are replaced only once none was taken for that long. The
first filling of a pool is never delayed.

A delay that is given is kept, also if claims come so steadily that the pool is never refilled. One that follows from
the size of the pool is not: when little is left of it, the delay counts from the first member that was taken and not
from the last. Small pools have none, for the next claim may well be for what is just being replaced.

Not creating on and on while every creation fails.

Creation may fail for reasons that stay: a quota, a template the API rejects, an admission policy. Every failed attempt
is followed by a pause, each twice as long as the one before. After a few in a row the breaker is open: the pool says so
in a condition, and each further attempt is a single sandbox. One success closes it.

In a namespace that is being deleted nothing can be made any more, so the breaker opens at once and for the longest
pause. Who deletes the namespace deletes the pool, too; one of the same name in a new namespace begins anew.

What fails for one pool often fails for many at the same moment. So a part of every pause is left to chance, and they
come back apart. A pause the API has asked for is kept in full.

How fast a pool may be refilled: a token bucket.

It holds one second's worth, at least one token, and starts full. Nothing is kept for a pool without a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpool.api.views import SandboxView
from sandpool.controllers.options import WarmPoolOptions
from sandpool.kube.errors import TERMINATING

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def none_is_outdated(member: SandboxView) -> bool:
    return False


def least_useful(
    members: Iterable[SandboxView],
    excess: int,
    is_outdated: Callable[[SandboxView], bool] = none_is_outdated,
) -> list[SandboxView]:
    """The ``excess`` members that would be missed least: those that are not ready before those that are, outdated ones
    before current ones, and the newest first, which had the least time to get warm."""
    if excess <= 0:
        return []
    newest_first = sorted(members, key=lambda member: member.creation_timestamp or _LONG_AGO, reverse=True)
    return sorted(newest_first, key=lambda member: (member.ready, not is_outdated(member)))[:excess]


# Seconds by size: so many for each member, pools up to a certain size aside, and no more than that.
_EACH: Final = 0.02
_SMALL: Final = 5
_LONGEST: Final = 2.0
# Little is left when less than this share is.
_RESERVE: Final = 0.25


@dataclass(frozen=True, slots=True)
class RefillDelay:
    delay: float  # seconds without a claim after which a pool is refilled; 0: at once
    reserve: int = 0  # with fewer members than that, it is refilled so long after the first claim

    @classmethod
    def of(cls, delay: float | None, replicas: int) -> RefillDelay:
        """``delay`` None: as the size of the pool suggests."""
        if delay is not None:
            return cls(delay)
        return cls(min(_LONGEST, _EACH * max(0, replicas - _SMALL)), int(replicas * _RESERVE))


@dataclass(frozen=True, slots=True)
class RefillHold:
    members: int | None = None  # how many there were when last looked; None: not looked yet
    until: datetime | None = None  # no refill before that
    since: datetime | None = None  # of the first drop after which nothing was created

    def observe(self, active: int, desired: int, now: datetime, delay_policy: RefillDelay) -> RefillHold:
        """Look at the members. Each drop starts the delay anew; a full pool ends it."""
        if delay_policy.delay <= 0:
            return RefillHold()
        if active >= desired:
            return RefillHold(active)
        until, since = self.until, self.since
        delay = timedelta(seconds=delay_policy.delay)
        if self.members is not None and active < self.members:
            since = since or now
            until = now + delay
        if until is not None and since is not None and active < delay_policy.reserve:
            until = min(until, since + delay)
        return RefillHold(active, until, since)

    def remaining(self, now: datetime) -> float:
        """Seconds to wait before refilling; 0 if there is nothing to wait for."""
        return 0.0 if self.until is None else max(0.0, (self.until - now).total_seconds())

    def changed(self, by: int) -> RefillHold:
        """Members the pool itself added, or took away on purpose: that they are more or fewer next time is no news."""
        if self.members is None:
            return self
        return replace(self, members=max(0, self.members + by), since=None if by > 0 else self.since)


OPENS_AFTER: Final = 3
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0


# The share of a pause that is left to chance.
_JITTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class CreationOutcome:
    """What came of creating members."""

    succeeded: int
    error: str = ""  # what the first failure said; empty if there was none
    retry_after: float = 0.0  # seconds the API asked us to wait
    jitter: float = 0.0  # a random number from 0 to 1


@dataclass(frozen=True, slots=True)
class CreationBreaker:
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

    def attempted(self, attempt: CreationOutcome, now: datetime) -> CreationBreaker:
        if not attempt.error:
            return CreationBreaker() if attempt.succeeded else self
        failures = 1 if attempt.succeeded else self.failures + 1
        pause = max(_pause_after(failures, attempt.error) * (1.0 - _JITTER * attempt.jitter), attempt.retry_after)
        return CreationBreaker(failures, now + timedelta(seconds=pause), attempt.error, attempt.retry_after)


def _pause_after(failures: int, error: str) -> float:
    if TERMINATING in error:
        return LONGEST_PAUSE
    # Beyond 2^64 every pause is the longest, and much beyond it a float overflows.
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 64), LONGEST_PAUSE) if failures else 0.0


@dataclass(frozen=True, slots=True)
class TokenBucket:
    tokens: float
    at: datetime  # when there were so many


@dataclass(frozen=True, slots=True)
class TokenGrant:
    count: int
    bucket: TokenBucket | None
    wait: float | None = None  # seconds until one more may be asked for; only if nothing was granted


def take(bucket: TokenBucket | None, wanted: int, rate: float, now: datetime) -> TokenGrant:
    """As many of those wanted as the bucket allows, ``rate`` being per second and 0 meaning no limit."""
    if rate <= 0:
        return TokenGrant(wanted, None)
    tokens = capacity = max(1.0, rate)
    if bucket is not None:
        # Wall clocks may be set back; tokens do not shrink because of that.
        elapsed = max(0.0, (now - bucket.at).total_seconds())
        tokens = min(capacity, bucket.tokens + rate * elapsed)
    count = math.floor(min(float(wanted), tokens))
    if count:
        return TokenGrant(count, TokenBucket(tokens - count, now))
    # Rounded up, lest the wake-up find the bucket a hair short of a token.
    return TokenGrant(0, TokenBucket(tokens, now), math.ceil((1 - tokens) / rate * 1000) / 1000)


@dataclass(frozen=True, slots=True)
class RefillState:
    """What is remembered from one refill to the next. It starts empty with the process, and no harm is done."""

    hold: RefillHold = field(default_factory=RefillHold)
    breaker: CreationBreaker = field(default_factory=CreationBreaker)
    bucket: TokenBucket | None = None

    def attempted(self, attempt: CreationOutcome, now: datetime) -> RefillState:
        breaker = self.breaker.attempted(attempt, now)
        return replace(self, hold=self.hold.changed(attempt.succeeded), breaker=breaker)


@dataclass(frozen=True, slots=True)
class Refill:
    create: int
    refill_state: RefillState
    wait: float | None = None  # seconds after which to look again; None: an event will tell


def refill(
    missing: int, *, expectations_met: bool, refill_state: RefillState, now: datetime, options: WarmPoolOptions
) -> Refill:
    """``expectations_met``: everything that was asked for so far has been seen to happen."""
    if missing <= 0:
        return Refill(0, refill_state)
    if not expectations_met:
        return Refill(0, refill_state, options.expectations_recheck_interval)
    if pause := max(refill_state.hold.remaining(now), refill_state.breaker.remaining(now)):
        return Refill(0, refill_state, pause)
    wanted = 1 if refill_state.breaker.is_open else min(missing, options.max_batch_size)
    grant = take(refill_state.bucket, wanted, options.max_refill_rate, now)
    return Refill(grant.count, replace(refill_state, bucket=grant.bucket), grant.wait)


def slow_start(count: int) -> Iterator[int]:
    """The sizes of the batches in which ``count`` requests are sent: 1, 2, 4 and so on, each batch at once and none
    after one with a failure. If they fail, they do so for the same reason, and few requests find that out."""
    size = 1
    while count > 0:
        yield min(size, count)
        count -= size
        size *= 2
