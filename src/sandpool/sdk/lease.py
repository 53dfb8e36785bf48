"""Leases: the claims of a program end soon after the program, however it ends.

A leased claim has a ``shutdownTime`` a short time ahead, which its holder moves on while it lives. The controllers
delete an expired claim with its sandbox, so nothing but the API is needed, on every Kubernetes.

Several programs may hold the claim of a key. Each writes to an annotation of its own until when it needs the claim, and
sets ``shutdownTime`` to the latest of all these times. These are merge patches, so they never conflict. The last holder
that leaves deletes the claim, unless the claim has changed since: another program may have joined. A claim that is kept
has no lease, and programs that find it leave it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import SharedObject
from sandpool.api.times import timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound
from sandpool.kube.user_agent import shared_context

#: On SandboxClaim: until when a program needs it. The name after the prefix is that of the program.
HOLDER_PREFIX: Final = "lease.sandpool.dev/"
#: The name in place of that of a program: until when a program that does not hold it wants the claim to live.
_EXTENDED: Final = HOLDER_PREFIX + "extended"
#: On SandboxClaim: "true" if it stays without a lease until it is released by name.
KEPT: Final = "sandpool.dev/kept"

#: A lease is renewed when a third of it is over, so that two renewals may fail.
_RENEWALS: Final = 3
_AT_ONCE: Final = 32


def _now() -> datetime:
    return datetime.now(UTC)


def is_kept(claim: SharedObject) -> bool:
    """Whether a claim has no lease: it stays until it is released by name."""
    lifecycle = claim["spec"].get("lifecycle") or {}
    return KEPT in (claim["metadata"].get("annotations") or {}) or "shutdownTime" not in lifecycle


@dataclass(slots=True)
class _Lease:
    """The lease of one claim. ``shared`` with other programs, which need it until ``others`` as far as is known."""

    uid: str
    shared: bool
    users: int = 0  # in this program
    until: datetime | None = None  # it must reach this time
    others: datetime | None = None


class Leases:
    """Renews the leases of a client's claims.

    ``length`` is the time in seconds after which the claims of a dead client expire, and ``holder`` the name of the
    client. Times are those of the server: the difference to the local clock is learned from the objects that the
    server creates.
    """

    def __init__(
        self, client: Client, namespace: str, length: float, holder: str, clock: Callable[[], datetime] = _now
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.length = length
        self.clock = clock
        self._annotation = HOLDER_PREFIX + holder
        self._ahead = timedelta()  # of the server's clock
        self._held: dict[str, _Lease] = {}  # by the name of the claim
        self._running: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def __contains__(self, claim: str) -> bool:
        return claim in self._held

    def now(self) -> datetime:
        """The time of the server, as far as it is known."""
        return self.clock() + self._ahead

    def end(self) -> str:
        """The time at which a lease that begins now ends."""
        return timestamp(self._end(None))

    def marks(self) -> dict[str, str]:
        """The annotations of a new claim that other programs may share."""
        return {self._annotation: self.end()}

    def learn(self, created: SharedObject) -> timedelta:
        """Correct the clock by an object that the server has just created. Returns the correction."""
        moment = datetime.fromisoformat(created["metadata"]["creationTimestamp"])
        before, ahead = self._ahead, moment - self.clock()
        # Timestamps of the API are cut to whole seconds, and the answer was under way for a while.
        if abs(ahead - before) > timedelta(seconds=2):
            self._ahead = ahead
        return self._ahead - before

    def hold(self, claim: str, uid: str, shared: bool = False) -> None:
        """Renew the lease of a claim until every ``hold`` had its ``drop``."""
        lease = self._held.get(claim)
        if lease is None or lease.uid != uid:
            lease = self._held[claim] = _Lease(uid, shared)
        lease.users += 1
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="lease renewal", context=shared_context())

    def drop(self, claim: str, uid: str) -> None:
        """Stop renewing the lease of a claim, unless another user in this program holds it too."""
        lease = self._held.get(claim)
        if lease is not None and lease.uid == uid:
            lease.users -= 1
            if not lease.users:
                del self._held[claim]

    async def join(self, found: SharedObject, shared: bool) -> SharedObject:
        """Hold the lease of a claim that exists. Raises ``ApiError`` and ``OSError``; the claim may be gone."""
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        self.hold(name, uid, shared)
        try:
            return await self._renew_one(name, self._held[name])
        except BaseException:
            self.drop(name, uid)
            raise

    async def keep(self, found: SharedObject) -> SharedObject:
        """Take the lease from a claim, for good. Raises ``ApiError`` and ``OSError``; the claim may be gone."""
        return await self._patch(found["metadata"]["name"], found["metadata"]["uid"], {KEPT: "true"}, None)

    async def leave(self, claim: str, uid: str) -> None:
        """Give up a shared claim that was dropped: delete it if no program needs it any more. Raises ``ApiError`` and
        ``OSError``; the claim may be gone. A renewal that is under way may undo this; the claim then expires."""
        if claim in self._held:
            return
        left = await self._patch(claim, uid, {self._annotation: None})
        while left["metadata"]["uid"] == uid and not is_kept(left):
            if claim in self._held:  # joined again meanwhile
                await self._renew_one(claim, self._held[claim])
                return
            needed = self._needed(left)
            if needed.keys() - {_EXTENDED}:
                latest = timestamp(max(needed.values()))
                if left["spec"]["lifecycle"]["shutdownTime"] > latest:  # this program had extended it
                    await self._patch(claim, uid, {}, latest)
                return
            try:
                version = left["metadata"]["resourceVersion"]
                await self.client.delete(SANDBOX_CLAIM, claim, self.namespace, uid=uid, resource_version=version)
                return
            except Conflict:
                left = await self.client.get(SANDBOX_CLAIM, claim, self.namespace)

    async def extend(self, claim: str, seconds: float) -> None:
        """Let a claim live for ``seconds`` from now, also without its holder. Raises ``ApiError`` and ``OSError``."""
        until = self.now() + timedelta(seconds=seconds)
        lease = self._held.get(claim)
        if lease is not None:
            lease.until = until
            await self._renew_one(claim, lease)
        else:
            await self._patch(claim, None, {_EXTENDED: timestamp(until)}, timestamp(until))

    async def close(self) -> None:
        """Stop renewing."""
        self._held.clear()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def renew(self) -> None:
        """Renew all leases now. A failure is left to the next renewal."""
        await asyncio.gather(*(self._renew(claim, lease) for claim, lease in list(self._held.items())))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.length / _RENEWALS)
            await self.renew()

    async def _renew(self, claim: str, lease: _Lease) -> None:
        async with self._slots:
            if self._held.get(claim) is not lease:
                return
            try:
                await self._renew_one(claim, lease)
            except NotFound:
                self._forget(claim, lease)
            except (ApiError, OSError):
                pass

    async def _renew_one(self, claim: str, lease: _Lease) -> SharedObject:
        end = self._end(lease.until)
        marks: dict[str, str | None] = {self._annotation: timestamp(end)} if lease.shared else {}
        latest = max(end, lease.others or end)
        renewed = await self._patch(claim, lease.uid, marks, timestamp(latest))
        lease.others = max(self._needed(renewed).values(), default=None)
        if KEPT in (renewed["metadata"].get("annotations") or {}):
            self._forget(claim, lease)
            return await self._patch(claim, lease.uid, {}, None)
        if lease.others is not None and lease.others > latest:
            return await self._patch(claim, lease.uid, {}, timestamp(lease.others))
        return renewed

    def _forget(self, claim: str, lease: _Lease) -> None:
        if self._held.get(claim) is lease:
            del self._held[claim]

    def _end(self, until: datetime | None) -> datetime:
        end = self.now() + timedelta(seconds=self.length)
        return end if until is None else max(end, until)

    def _needed(self, claim: SharedObject) -> dict[str, datetime]:
        """Until when others need a claim, by annotation. A time in the past is that of a program that has died."""
        needed: dict[str, datetime] = {}
        for name, value in (claim["metadata"].get("annotations") or {}).items():
            if name.startswith(HOLDER_PREFIX) and name != self._annotation:
                with suppress(ValueError, TypeError):  # users can write anything
                    if (until := datetime.fromisoformat(value)) > self.now():
                        needed[name] = until
        return needed

    async def _patch(
        self, claim: str, uid: str | None, annotations: Mapping[str, str | None], *end: str | None
    ) -> SharedObject:
        """Write annotations and, if given, the end of a claim; None removes it."""
        metadata = {**({"uid": uid} if uid else {}), **({"annotations": dict(annotations)} if annotations else {})}
        body: dict[str, Any] = {"metadata": metadata} if metadata else {}
        for time in end:
            policy = None if time is None else "Delete"
            body["spec"] = {"lifecycle": {"shutdownTime": time, "shutdownPolicy": policy}}
        return await self.client.patch(SANDBOX_CLAIM, claim, MergePatch(body), self.namespace)
