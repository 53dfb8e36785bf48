"""Leader election: of several processes that could do the work, one does, and everybody knows who.

The vote is a Lease object. Whoever writes its name into it leads; every write carries the resourceVersion it is based
on, so of two contenders the API lets one through. The leader renews; a Lease that nobody has changed for its duration
may be taken.

What makes this safe is that no two clocks are ever compared. A contender counts the lease's duration from the moment
*it saw* the Lease change, on its own monotonic clock. The leader counts its renew deadline from the moment *it sent*
the last renewal that succeeded. The contender cannot have seen a change before it was sent, so with a deadline of 10 s
and a duration of 15 s the leader has been silent for 5 s before anybody takes over, however wrong the wall clocks are.

What the Lease cannot do is stop a process that was frozen and does not know how late it is. ``held`` therefore asks
the clock every time, and ``lease_fence`` asks ``held`` before every write.

It is the same protocol as client-go's, so replicas written in either language may contend for one Lease. Two things
differ. Contenders look every 1.4 to 1.8 s instead of every 2 to 4.4 s, because a released lease should be in use again
within two seconds. And a leader that finds another name in the Lease gives up at once instead of at its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn

from sandpool.api.kinds import LEASE
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, micro_timestamp, within
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, NotFound

_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Somebody else leads, or may do so soon."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """All in seconds. ``deadline`` is how long a leader goes on without having renewed."""

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.deadline > self.retry > 0:
            raise ValueError(f"a lease must last longer than its renew deadline, and that longer than a retry: {self}")


def unique_identity() -> str:
    """A name no other process has, nor this one after a restart: what an earlier life held is not ours."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaderElector:
    """One contender for one Lease. ``on_change`` is told True when it begins to lead and False when that ends."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        clock: Clock,
        *,
        terms: LeaseTiming | None = None,
        on_change: Callable[[bool], None] = lambda leading: None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.client = client
        self.name = name
        self.namespace = namespace
        self.identity = identity
        self.clock = clock
        self.terms = terms or LeaseTiming()
        self.on_change = on_change
        self.random = random
        self._seen = LeaseRecord()  # the newest state of the Lease we know of
        self._seen_at = 0.0  # monotonic; when _seen became what it is
        self._version = ""  # resourceVersion of the Lease as we wrote it; empty if that is not what it is now
        self._renewed_at: float | None = None  # monotonic; when the write was sent that made us leader until now
        self._asked = False  # whether a write was sent of which we never heard: the Lease may have our name
        self.slow_paths = 0  # renewals for which the Lease had to be read first
        self._complaint = ""  # what went wrong last, so that it is logged once and not every two seconds

    @property
    def held(self) -> bool:
        """Whether we lead, at this very moment."""
        return self._renewed_at is not None and self._remaining() > 0

    @property
    def leader(self) -> str:
        """Who leads, as far as we know; empty if nobody."""
        return self._seen.holder

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease, then do ``work`` while it is held.

        Ends when the work ends, with its result. Raises ``LeaseLost`` when the lease is lost; the work has been
        cancelled and has ended by then. Cancelled itself, it cancels the work and keeps the lease until the work has
        ended, because a work that is tidying up still writes. Unless it was lost, the lease is released on the way
        out.
        """
        try:
            await self._acquire()
            await self._hold(work)
        finally:
            if self._renewed_at is not None:
                self._step_down()
            if self._version or self._asked:
                await self._release()

    async def _hold(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        renewing, working = asyncio.create_task(self._renew()), asyncio.create_task(work())
        try:
            await asyncio.wait((renewing, working), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = working.done()
            try:
                failure = await _end(working)
            finally:
                await _end(renewing)
            if failure is not None and not ended:
                _log.error("the work did not stop cleanly", exc_info=failure)
        await (working if ended else renewing)

    async def _acquire(self) -> None:
        _log.info("waiting for the lease %s/%s as %s", self.namespace, self.name, self.identity)
        while not (await self._attempt(self.terms.deadline / 2) and self.held):
            await self.clock.sleep(self.terms.retry * (0.7 + 0.2 * self.random()))
        _log.info("leading: %s holds the lease %s/%s", self.identity, self.namespace, self.name)
        self.on_change(True)

    async def _renew(self) -> NoReturn:
        try:
            while True:
                await self.clock.sleep(max(0.0, min(self.terms.retry, self._remaining())))
                remaining = self._remaining()
                if remaining <= 0:
                    raise LeaseLost(f"the lease could not be renewed for {self.terms.deadline:g} s: {self._complaint}")
                # Half the deadline, so that one connection that went dead leaves time for another.
                await self._attempt(min(remaining, self.terms.deadline / 2))
        except LeaseLost as lost:
            _log.error("not leading any more: %s", lost)
            self._version = ""
            self._asked = False
            self._step_down()
            raise

    def _step_down(self) -> None:
        self._renewed_at = None
        self.on_change(False)

    def _remaining(self) -> float:
        """Seconds for which we may go on leading."""
        assert self._renewed_at is not None
        return self._renewed_at + self.terms.deadline - self.clock.monotonic()

    async def _attempt(self, seconds: float) -> bool:
        """Try once to get or keep the lease. An API that does not answer or refuses is part of life."""
        try:
            ours = await within(self.clock, seconds, self._take())
        except (ApiError, OSError) as error:
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self._complaint:
                _log.warning("the lease %s/%s: %s", self.namespace, self.name, complaint)
            self._complaint = complaint
            return False
        self._complaint = ""
        return ours

    async def _take(self) -> bool:
        try:
            if self._version:
                with contextlib.suppress(Conflict, NotFound):
                    await self._write(self._version)
                    return True
                self.slow_paths += 1  # another client has written the Lease: read it
            lease = await self._read()
            if not self._free():
                return False
            await self._write(lease["metadata"]["resourceVersion"] if lease else None)
        except (Conflict, AlreadyExists):
            return False  # somebody was faster
        return True

    async def _read(self) -> Object | None:
        try:
            lease = await self.client.get(LEASE, self.name, self.namespace)
        except NotFound:
            lease = None
        record = LeaseRecord.read(lease or {})
        if record != self._seen:
            self._seen, self._seen_at = record, self.clock.monotonic()
        return lease

    def _free(self) -> bool:
        """Whether we may write our name into the Lease as we last saw it."""
        if self._seen.holder in ("", self.identity):
            return True
        if self._renewed_at is not None:
            raise LeaseLost(f"{self._seen.holder} holds the lease")
        return self.clock.monotonic() >= self._seen_at + self._seen.duration

    async def _write(self, version: str | None) -> None:
        """Put our name into the Lease as it was at ``version``, or into a new one."""
        sent_at = self.clock.monotonic()
        record = self._seen.taken_by(self.identity, self.terms.duration, self.clock.now())
        self._version, self._asked = "", True
        try:
            lease = await (self._create(record) if version is None else self._patch(version, record))
        except (Conflict, AlreadyExists):
            self._asked = False
            raise
        self._version, self._asked = lease["metadata"]["resourceVersion"], False
        self._seen, self._seen_at, self._renewed_at = record, sent_at, sent_at

    async def _create(self, record: LeaseRecord) -> Object:
        metadata = {"name": self.name, "namespace": self.namespace}
        lease = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": record.spec()}
        return await self.client.create(LEASE, lease)

    async def _patch(self, version: str, record: LeaseRecord) -> Object:
        change = {"metadata": {"resourceVersion": version}, "spec": record.spec()}
        return await self.client.patch(LEASE, self.name, MergePatch(change), self.namespace)

    async def _release(self) -> None:
        """Let a successor begin at once. If that fails it begins when the lease has run out, so it is tried once."""
        try:
            await within(self.clock, self.terms.deadline / 2, self._give_up())
        except (ApiError, OSError) as error:
            _log.warning("the lease %s/%s was not released: %s", self.namespace, self.name, error)
        self._version, self._asked = "", False

    async def _give_up(self) -> None:
        # Read even though we know what we wrote last: a renewal cut off by the end may have got through.
        lease = await self.client.get(LEASE, self.name, self.namespace)
        record = LeaseRecord.read(lease)
        if record.holder == self.identity:
            await self._patch(lease["metadata"]["resourceVersion"], record.released(self.clock.now()))
            _log.info("released the lease %s/%s", self.namespace, self.name)


async def _end(task: asyncio.Task[Any]) -> BaseException | None:
    """Cancel, wait, and say what it failed with."""
    task.cancel()
    await asyncio.wait((task,))
    return None if task.cancelled() else task.exception()


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The spec of a coordination.k8s.io Lease, as every Kubernetes leader election writes it.

    The times are for people to read. They come from the holder's clock, so nothing is ever computed from them.
    """

    holder: str = ""  # empty: released
    duration: int = 1  # seconds after which others may take it, counted from when they saw it change
    transitions: int = -1  # so that the first holder makes it 0
    acquired: str = ""
    renewed: str = ""

    @classmethod
    def read(cls, lease: Object) -> LeaseRecord:
        spec = lease.get("spec") or {}
        return cls(
            spec.get("holderIdentity") or "",
            spec.get("leaseDurationSeconds") or 0,
            spec.get("leaseTransitions", 0 if lease else -1),
            spec.get("acquireTime") or "",
            spec.get("renewTime") or "",
        )

    def taken_by(self, identity: str, duration: int, now: datetime) -> LeaseRecord:
        """In new hands; or still in the same ones, which is no transition."""
        time = micro_timestamp(now)
        if self.holder == identity:
            return replace(self, duration=duration, renewed=time)
        return LeaseRecord(identity, duration, self.transitions + 1, time, time)

    def released(self, now: datetime) -> LeaseRecord:
        """Free at once; the short duration is for those who count seconds whoever the holder is."""
        time = micro_timestamp(now)
        return LeaseRecord("", 1, self.transitions, time, time)

    def spec(self) -> Object:
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration,
            "leaseTransitions": self.transitions,
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
        }
