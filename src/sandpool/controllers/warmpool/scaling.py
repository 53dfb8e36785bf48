"""Decides the number of members to create now, and the members to delete if there are too many.

A refill creates the missing members unless one of these delays it:

* **A burst of claims** (``RefillDelay``). Creating replacements while claims are served makes both compete for the API,
  and on one machine for its processors. With a replenish delay, claimed members are replaced only once none was claimed
  for that long. The first filling of a pool is never delayed. A configured delay is kept even if claims come so
  steadily that the pool is never refilled. One derived from the size of the pool is not: only a burst starts or extends
  it (``ArrivalRate``), because a steady load would otherwise drain the pool and then be refilled in one large batch.
  When few members are left, it counts from the first claim and not from the last. Small pools have none, since the next
  claim may need the member that is being replaced.
* **Failed creations** (``CreationBreaker``). Creation may fail for lasting reasons: a quota, a template the API
  rejects, an admission policy. A pause follows every failed attempt, each twice as long as the one before. After a few
  failures in a row the breaker is open: a condition of the pool shows it, and each further attempt is a single sandbox.
  One success closes it. In a namespace that is being deleted nothing can be created, so the breaker opens at once and
  for the longest pause. Pools often fail together, so part of every pause is random. A pause that the API asks for is
  kept in full.
* **Unmet expectations**: creations or deletions that have not been observed yet.
* **The rate limit** (``TokenBucket``). It holds the tokens of one second, at least one, and starts full.

Terminating members count as present. Their replacements come when they are gone, so that there are never more pods than
the pool allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpool.api.views import SandboxView
from sandpool.controllers.options import WarmPoolOptions
from sandpool.kube.retry import backoff_delay

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def none_is_outdated(member: SandboxView) -> bool:
    return False


def least_useful(
    members: Iterable[SandboxView],
    excess: int,
    is_outdated: Callable[[SandboxView], bool] = none_is_outdated,
) -> list[SandboxView]:
    """The ``excess`` members that would be missed least: unready before ready ones, outdated before current ones, and
    the newest first, which had the least time to get warm."""
    if excess <= 0:
        return []
    newest_first = sorted(members, key=lambda member: member.creation_timestamp or _LONG_AGO, reverse=True)
    return sorted(newest_first, key=lambda member: (member.ready, not is_outdated(member)))[:excess]


# Derived delay in seconds: per member beyond a small pool, up to a maximum.
_EACH: Final = 0.02
_SMALL: Final = 5
_LONGEST: Final = 2.0
# Few members are left below this share.
_RESERVE: Final = 0.25


@dataclass(frozen=True, slots=True)
class RefillDelay:
    """Delay of a refill after a claim."""

    delay: float  # seconds without a claim before a refill; 0: no delay
    reserve: int = 0  # below this number of members the delay counts from the first claim
    bursts_only: bool = False  # claims of a steady load do not delay a refill

    @classmethod
    def of(cls, delay: float | None, replicas: int) -> RefillDelay:
        """``delay`` None derives it from the size of the pool."""
        if delay is not None:
            return cls(delay)
        return cls(min(_LONGEST, _EACH * max(0, replicas - _SMALL)), int(replicas * _RESERVE), bursts_only=True)


# The mean rate covers this many delays. A burst has more than twice as many claims in one delay as the mean rate
# predicts, and a few more, which may come together by chance. After a pause, that takes 26 claims.
_MEAN: Final = 2.5
_SPIKE: Final = 2.0
_BY_CHANCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class ArrivalRate:
    """Claims per second, as two exponentially weighted means: over one delay, and over several."""

    recent: float = 0.0
    mean: float = 0.0
    at: datetime | None = None  # time of both

    def observe(self, claims: int, delay: float, now: datetime) -> ArrivalRate:
        # A wall clock that was set back does not make the rates grow.
        elapsed = 0.0 if self.at is None else max(0.0, (now - self.at).total_seconds())
        return ArrivalRate(
            self.recent * math.exp(-elapsed / delay) + claims / delay,
            self.mean * math.exp(-elapsed / (_MEAN * delay)) + claims / (_MEAN * delay),
            now,
        )

    def is_burst(self, delay: float) -> bool:
        return self.recent * delay > _SPIKE * self.mean * delay + _BY_CHANCE


@dataclass(frozen=True, slots=True)
class RefillTimer:
    """State of the refill delay of one pool."""

    members: int | None = None  # number of members at the last reconcile; None: none yet
    until: datetime | None = None  # no refill before that
    since: datetime | None = None  # first drop since the last creation
    arrivals: ArrivalRate = field(default_factory=ArrivalRate)  # kept for a delay of ``bursts_only``

    def observe(self, active: int, desired: int, now: datetime, delay_policy: RefillDelay) -> RefillTimer:
        """Update with the current number of members. Each drop restarts the delay, unless it is none of a burst and the
        policy is for bursts only; a full pool ends it."""
        if delay_policy.delay <= 0:
            return RefillTimer()
        claims = 0 if self.members is None else max(0, self.members - active)
        arrivals = self.arrivals
        if delay_policy.bursts_only and claims:
            arrivals = arrivals.observe(claims, delay_policy.delay, now)
        if active >= desired:
            return RefillTimer(active, arrivals=arrivals)
        until, since = self.until, self.since
        delay = timedelta(seconds=delay_policy.delay)
        if claims and (not delay_policy.bursts_only or arrivals.is_burst(delay_policy.delay)):
            since = since or now
            until = now + delay
        if until is not None and since is not None and active < delay_policy.reserve:
            until = min(until, since + delay)
        return RefillTimer(active, until, since, arrivals)

    def remaining(self, now: datetime) -> float:
        """Seconds until a refill may start; 0 if it may now."""
        return 0.0 if self.until is None else max(0.0, (self.until - now).total_seconds())

    def changed(self, by: int) -> RefillTimer:
        """Account for members that the pool itself added or deleted, so that they do not count as claims."""
        if self.members is None:
            return self
        return replace(self, members=max(0, self.members + by), since=None if by > 0 else self.since)


#: Failures in a row after which the condition of the pool shows them, and an attempt is one sandbox.
OPENS_AFTER: Final = 3
#: Seconds between attempts after the first failure, and at most.
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0


# Random share of a pause.
_JITTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class CreationOutcome:
    """Result of creating members."""

    succeeded: int
    error: str = ""  # message of the first failure; empty if there was none
    retry_after: float = 0.0  # seconds the API asked us to wait
    jitter: float = 0.0  # random number from 0 to 1
    namespace_terminating: bool = False  # the first failure has that cause


@dataclass(frozen=True, slots=True)
class CreationBreaker:
    """State of the breaker of one pool."""

    failures: int = 0  # consecutive attempts that created nothing or ended with a failure
    until: datetime | None = None  # no attempt before that
    error: str = ""  # message of the last failure
    retry_after: float = 0.0  # seconds the API asked us to wait after it
    namespace_terminating: bool = False  # cause of the last failure

    @property
    def is_open(self) -> bool:
        return self.failures >= OPENS_AFTER or self.namespace_terminating

    @property
    def pause(self) -> float:
        """Longest pause after the last failure."""
        return max(_pause_after(self.failures, self.namespace_terminating), self.retry_after)

    def remaining(self, now: datetime) -> float:
        """Seconds until the next attempt; 0 if it may be made now."""
        if self.until is None:
            return 0.0
        # A wall clock that was set back must not prolong a pause.
        return min(self.pause, max(0.0, (self.until - now).total_seconds()))

    def attempted(self, attempt: CreationOutcome, now: datetime) -> CreationBreaker:
        if not attempt.error:
            return CreationBreaker() if attempt.succeeded else self
        failures = 1 if attempt.succeeded else self.failures + 1
        longest = _pause_after(failures, attempt.namespace_terminating)
        pause = max(longest * (1.0 - _JITTER * attempt.jitter), attempt.retry_after)
        return CreationBreaker(
            failures,
            now + timedelta(seconds=pause),
            attempt.error,
            attempt.retry_after,
            attempt.namespace_terminating,
        )


def _pause_after(failures: int, namespace_terminating: bool) -> float:
    if namespace_terminating:
        return LONGEST_PAUSE
    return backoff_delay(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE) if failures else 0.0


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Tokens at a moment. A pool without a limit has no bucket."""

    tokens: float
    at: datetime  # time of that count


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Result of ``take``."""

    count: int
    bucket: TokenBucket | None
    wait: float | None = None  # seconds until the next token; only if none was granted


def take(bucket: TokenBucket | None, wanted: int, rate: float, now: datetime) -> TokenGrant:
    """Grant as many as the bucket allows. ``rate`` is per second; 0 means no limit."""
    if rate <= 0:
        return TokenGrant(wanted, None)
    tokens = capacity = max(1.0, rate)
    if bucket is not None:
        # A wall clock that was set back does not reduce the tokens.
        elapsed = max(0.0, (now - bucket.at).total_seconds())
        tokens = min(capacity, bucket.tokens + rate * elapsed)
    count = math.floor(min(float(wanted), tokens))
    if count:
        return TokenGrant(count, TokenBucket(tokens - count, now))
    # Rounded up, so that the next reconcile does not come a moment too early.
    return TokenGrant(0, TokenBucket(tokens, now), math.ceil((1 - tokens) / rate * 1000) / 1000)


@dataclass(frozen=True, slots=True)
class RefillState:
    """State that is kept from one refill to the next. It starts empty with the process, which does no harm."""

    timer: RefillTimer = field(default_factory=RefillTimer)
    breaker: CreationBreaker = field(default_factory=CreationBreaker)
    bucket: TokenBucket | None = None

    def attempted(self, attempt: CreationOutcome, now: datetime) -> RefillState:
        breaker = self.breaker.attempted(attempt, now)
        return replace(self, timer=self.timer.changed(attempt.succeeded), breaker=breaker)


@dataclass(frozen=True, slots=True)
class Refill:
    """The number of members to create now."""

    create: int
    refill_state: RefillState
    wait: float | None = None  # seconds until the next reconcile; None: a watch event will enqueue the pool


def refill(
    missing: int, *, expectations_met: bool, refill_state: RefillState, now: datetime, options: WarmPoolOptions
) -> Refill:
    """``expectations_met``: all expected creations and deletions have been observed."""
    if missing <= 0:
        return Refill(0, refill_state)
    if not expectations_met:
        return Refill(0, refill_state, options.expectations_recheck_interval)
    if pause := max(refill_state.timer.remaining(now), refill_state.breaker.remaining(now)):
        return Refill(0, refill_state, pause)
    wanted = 1 if refill_state.breaker.is_open else min(missing, options.max_batch_size)
    grant = take(refill_state.bucket, wanted, options.max_refill_rate, now)
    return Refill(grant.count, replace(refill_state, bucket=grant.bucket), grant.wait)


def slow_start(count: int) -> Iterator[int]:
    """Batch sizes for ``count`` requests: 1, 2, 4 and so on. A batch is sent concurrently, and none after one with a
    failure. Failures usually have the same reason, so few requests suffice to find it."""
    size = 1
    while count > 0:
        yield min(size, count)
        count -= size
        size *= 2
