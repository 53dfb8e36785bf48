"""Leases: the claims of a program end soon after the program, however it ends.

A leased claim has a ``shutdownTime`` a short time ahead, which its holder moves on while it lives. The controllers
delete an expired claim with its sandbox, so nothing but the API is needed, on every Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import SharedObject
from sandpool.api.times import timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, NotFound

#: A lease is renewed when a third of it is over, so that two renewals may fail.
_RENEWALS: Final = 3
_AT_ONCE: Final = 32


def _now() -> datetime:
    return datetime.now(UTC)


class Leases:
    """Renews the leases of a client's claims.

    ``length`` is the time in seconds after which the claims of a dead client expire. Times are those of the server: the
    difference to the local clock is learned from the objects that the server creates.
    """

    def __init__(self, client: Client, namespace: str, length: float, clock: Callable[[], datetime] = _now) -> None:
        self.client = client
        self.namespace = namespace
        self.length = length
        self.clock = clock
        self._ahead = timedelta()  # of the server's clock
        self._held: dict[str, tuple[str, datetime | None]] = {}  # claim -> UID, and the time it must reach
        self._running: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def __contains__(self, claim: str) -> bool:
        return claim in self._held

    def now(self) -> datetime:
        """The time of the server, as far as it is known."""
        return self.clock() + self._ahead

    def end(self, until: datetime | None = None) -> str:
        """The time at which a lease that begins now ends, at least ``until``."""
        end = self.now() + timedelta(seconds=self.length)
        return timestamp(max(end, until) if until is not None else end)

    def learn(self, created: SharedObject) -> timedelta:
        """Correct the clock by an object that the server has just created. Returns the correction."""
        moment = datetime.fromisoformat(created["metadata"]["creationTimestamp"])
        before, ahead = self._ahead, moment - self.clock()
        # Timestamps of the API are cut to whole seconds, and the answer was under way for a while.
        if abs(ahead - before) > timedelta(seconds=2):
            self._ahead = ahead
        return self._ahead - before

    def hold(self, claim: str, uid: str, until: datetime | None = None) -> None:
        """Renew the lease of a claim until ``drop``, never to a time before ``until``."""
        self._held[claim] = (uid, until)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="lease renewal")

    def drop(self, claim: str) -> None:
        """Stop renewing the lease of a claim."""
        self._held.pop(claim, None)

    async def extend(self, claim: str, seconds: float) -> None:
        """Let a claim live for ``seconds`` from now, also without its holder. Raises ``ApiError`` and ``OSError``."""
        until = self.now() + timedelta(seconds=seconds)
        if claim in self._held:
            uid, _ = self._held[claim]
            self._held[claim] = (uid, until)
            await self._set(claim, uid, self.end(until))
        else:
            await self._set(claim, None, timestamp(until))

    async def close(self) -> None:
        """Stop renewing."""
        self._held.clear()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def renew(self) -> None:
        """Renew all leases now. A failure is left to the next renewal."""
        await asyncio.gather(*(self._renew(claim, *held) for claim, held in list(self._held.items())))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.length / _RENEWALS)
            await self.renew()

    async def _renew(self, claim: str, uid: str, until: datetime | None) -> None:
        async with self._slots:
            if claim not in self._held:
                return
            try:
                await self._set(claim, uid, self.end(until))
            except NotFound:
                self._held.pop(claim, None)
            except (ApiError, OSError):
                pass

    async def _set(self, claim: str, uid: str | None, end: str) -> None:
        metadata = {"metadata": {"uid": uid}} if uid is not None else {}
        patch = MergePatch({**metadata, "spec": {"lifecycle": {"shutdownTime": end, "shutdownPolicy": "Delete"}}})
        await self.client.patch(SANDBOX_CLAIM, claim, patch, self.namespace)
