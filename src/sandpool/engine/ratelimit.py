"""Back-off, rate limits and per-key limits.

* ``Backoff``: exponential pauses after failures, per item (``kube.retry.backoff_delay``). The defaults are those of
  client-go's per-item limiter: 5 ms, doubled per failure up to 1000 s. There is no limit on all items together, because
  a shared budget makes the retries of healthy items wait behind those of broken ones.
* ``RateLimiter``: a token bucket for requests. Callers wait in arrival order.
* ``KeyedLimits``: a token bucket per key, such as the address of a client.
* ``PerKeyRateLimit``: a ceiling on reconciles per key and second.

Two others have rules of their own. The token bucket of a pool (``controllers/warmpool/scaling.py``) is a value that the
pure plan takes and returns: it reads no clock, grants several tokens at once, and nothing waits for it. The back-off of
a container (``node/pods/backoff.py``) is kubelet's: the first restart is immediate, the pause follows the end of a run,
and a run of ten minutes resets it. It counts no failures.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Network, ip_address
from random import Random
from typing import Final, Generic, TypeVar

from sandpool.engine.clock import Clock
from sandpool.kube.retry import backoff_delay

#: Reconciles of one key per second. A launch takes three and a claim two, so a healthy key never reaches it.
RECONCILES_PER_SECOND: Final = 10

# Seconds by which sums of the shares of a second may be off.
_ROUNDING: Final = 1e-6

K = TypeVar("K", bound=Hashable)


class Backoff(Generic[K]):
    """Counts failures per item and returns the pause before the next attempt.

    ``jitter`` is the random share of a pause. It spreads the retries of items that failed together, and it only ever
    shortens a pause.
    """

    def __init__(self, rng: Random, *, first: float = 0.005, longest: float = 1000.0, jitter: float = 0.1) -> None:
        self.rng = rng
        self.first = first
        self.longest = longest
        self.jitter = jitter
        self._failures: dict[K, int] = {}  # in a row; holds only items that failed in their last attempt

    def __len__(self) -> int:
        """Number of items that are failing."""
        return len(self._failures)

    def failures(self, item: K) -> int:
        """Failures of an item since its last success."""
        return self._failures.get(item, 0)

    def next_delay(self, item: K) -> float:
        """Count a failure and return the seconds until the next attempt."""
        failures = self._failures[item] = self._failures.get(item, 0) + 1
        delay = backoff_delay(failures, first=self.first, longest=self.longest)
        return delay * (1.0 - self.jitter * self.rng.random())

    def forget(self, item: K) -> None:
        """Reset an item after a success or its removal."""
        self._failures.pop(item, None)


class RateLimiter:
    """Token bucket: ``per_second`` permits, of which up to ``burst`` accumulate while unused.

    Several callers and several transports may share one limiter. The state is one number, so waiting costs O(1).
    """

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        if per_second <= 0 or burst <= 0:
            raise ValueError(f"rate limit must be positive: {per_second:g} per second, burst {burst}")
        self.per_second = per_second
        self.burst = burst
        self.clock = clock
        # The time at which the last permit was due if all permits had been evenly spread.
        self._last = clock.monotonic() - burst / per_second

    @property
    def delay(self) -> float:
        """Seconds until a permit is due; 0 if one is."""
        now = self.clock.monotonic()
        delay = max(self._last, now - self.burst / self.per_second) + 1 / self.per_second - now
        return delay if delay > _ROUNDING else 0.0

    @property
    def is_full(self) -> bool:
        """Whether all permits are due, as for a new limiter."""
        return self._last <= self.clock.monotonic() - self.burst / self.per_second + _ROUNDING

    def take(self) -> float:
        """Take a permit. Returns the seconds until it is due."""
        now = self.clock.monotonic()
        self._last = max(self._last, now - self.burst / self.per_second) + 1 / self.per_second
        return max(self._last - now, 0.0)

    async def wait(self) -> None:
        """Take a permit, after waiting for it if necessary."""
        if delay := self.take():
            await self.clock.sleep(delay)

    def give_back(self) -> None:
        """Return a permit that turned out not to be needed. Callers that wait already are not served earlier."""
        self._last -= 1 / self.per_second


class KeyedLimits:
    """A token bucket per key, of at most ``most`` keys: the one that was used least recently is forgotten first."""

    def __init__(self, per_second: float, burst: int, clock: Clock, most: int = 4096) -> None:
        self.per_second = per_second
        self.burst = burst
        self.clock = clock
        self.most = most
        self._limiters: OrderedDict[str, RateLimiter] = OrderedDict()

    def of(self, key: str) -> RateLimiter:
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = RateLimiter(self.per_second, self.burst, self.clock)
            if len(self._limiters) > self.most:
                self._limiters.popitem(last=False)
        self._limiters.move_to_end(key)
        return limiter


def network_of(address: str) -> str:
    """The address of a client or, of IPv6, its network: one client has all addresses of that."""
    parsed = ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(parsed if parsed.version == 4 else IPv6Network((int(parsed) >> 64 << 64, 64)))


class PerKeyRateLimit(Generic[K]):
    """Per-key limit on reconciles per second, and a cooldown that a reconcile may ask for.

    A reconcile may cause the next one: it creates what another controller deletes at once, because one of the two has
    stale data. Each acts correctly on what it knows and no request fails, so back-off never applies. This limit breaks
    such a loop whatever its cause.

    All keys share one counter that is reset every second, so it holds no more keys than were reconciled in that second.
    ``per_second`` None disables the limit.
    """

    def __init__(self, clock: Clock, per_second: int | None) -> None:
        self.clock = clock
        self.per_second = per_second
        self._second = 0
        self._reconciles: dict[K, int] = {}  # in that second
        self._cooldowns: dict[K, float] = {}  # monotonic end; removed by the first reconcile after it

    def acquire(self, key: K) -> float:
        """Count a reconcile and return 0, or return the seconds until the key may be reconciled."""
        if key in self._cooldowns:
            if (left := self._cooldowns[key] - self.clock.monotonic()) > 0:
                return left
            del self._cooldowns[key]
        if self.per_second is None:
            return 0.0
        now = self.clock.monotonic()
        if int(now) != self._second:
            self._second = int(now)
            self._reconciles.clear()
        reconciles = self._reconciles.get(key, 0)
        if reconciles >= self.per_second:
            return self._second + 1 - now
        self._reconciles[key] = reconciles + 1
        return 0.0

    def cool_down(self, key: K, seconds: float) -> None:
        """Hold back all reconciles of a key for ``seconds``."""
        self._cooldowns[key] = self.clock.monotonic() + seconds
