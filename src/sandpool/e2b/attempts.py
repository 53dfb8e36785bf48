"""Limits on attempts to find a credential that the endpoint does not know yet: each costs a read or a search.

An invented key is looked up in the API, and a signed URL that does not name its sandbox is compared with all of them.
Attempts that succeed do not count, and keys that the endpoint knows are found without one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandpool.e2b.errors import Refusal
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import KeyedLimits, RateLimiter, network_of

# Attempts in vain per second, and at once: from one address, and from all.
_PER_ADDRESS: Final = (20.0, 40)
_OF_ALL: Final = (100.0, 200)


class Attempt(NamedTuple):
    limits: tuple[RateLimiter, ...]

    def succeeded(self) -> None:
        for limit in self.limits:
            limit.give_back()


class Attempts:
    """The attempts of all clients."""

    def __init__(self, clock: Clock) -> None:
        self._per_address = KeyedLimits(*_PER_ADDRESS, clock)
        self._of_all = RateLimiter(*_OF_ALL, clock)

    def begin(self, address: str) -> Attempt:
        """Count an attempt of a client. Raises ``Refusal`` if there were too many in vain."""
        limits = (self._per_address.of(network_of(address)), self._of_all)
        if any(limit.delay for limit in limits):
            raise Refusal(429, "too many requests with credentials that are not known: wait a second")
        for limit in limits:
            limit.take()
        return Attempt(limits)
