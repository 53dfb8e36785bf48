"""Leader election: of several replicas exactly one works at a time.

The candidates contend for a Lease object. The candidate that writes its identity into it leads; every write carries the
resourceVersion it is based on, so of two candidates the API accepts one. The leader renews the Lease. A Lease that has
not changed for its duration may be taken.

The protocol never compares two clocks. A candidate counts the duration from the moment *it saw* the Lease change, on
its own monotonic clock. The leader counts its renew deadline from the moment *it sent* the last renewal that succeeded.
The candidate cannot have seen a change before it was sent. So with a deadline of 10 s and a duration of 15 s the leader
has stopped 5 s before another candidate takes over, however wrong the wall clocks are.

The Lease cannot stop a process that was frozen and does not know how late it is. Therefore ``held`` reads the clock
every time, and ``transports.FencedTransport`` checks ``held`` before every write.

The protocol is that of client-go, so replicas written in either language may contend for one Lease. Two things differ.
Candidates retry every 1.4 to 1.8 s instead of every 2 to 4.4 s, because a released lease should be in use again within
two seconds. And a leader that finds another identity in the Lease stops at once instead of at its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any, NoReturn

from sandpool.api.kinds import LEASE
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import Clock, micro_timestamp, within
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, Conflict, NotFound

_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another replica leads or may lead soon."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Durations in seconds. ``deadline`` is how long a leader works without a successful renewal."""

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.deadline > self.retry > 0:
            raise ValueError(f"the lease duration must exceed the renew deadline, and that the retry period: {self}")


def unique_identity() -> str:
    """A name that no other process has, nor this one after a restart."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaderElector:
    """One candidate for one Lease. ``on_change`` is called with True when it begins to lead, then with False.

    Every write puts ``annotations`` on the Lease, too: what the leader wants to be remembered costs no other request.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        clock: Clock,
        rng: Random,
        *,
        terms: LeaseTiming | None = None,
        on_change: Callable[[bool], None] = lambda leading: None,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.client = client
        self.name = name
        self.namespace = namespace
        self.identity = identity
        self.clock = clock
        self.rng = rng
        self.terms = terms or LeaseTiming()
        self.on_change = on_change
        self.annotations = annotations
        self._seen = LeaseRecord()  # the newest state of the Lease that we know
        self._seen_at = 0.0  # monotonic; when _seen last changed
        self._version = ""  # resourceVersion of our last write; empty if the Lease may have changed since
        self._renewed_at: float | None = None  # monotonic; when the last successful renewal was sent
        self._unanswered = False  # whether a write got no response: the Lease may hold our identity
        self.slow_paths = 0  # renewals for which the Lease had to be read first
        self._last_error = ""  # to log each error once and not every two seconds

    @property
    def held(self) -> bool:
        """Whether this process leads at this moment."""
        return self._renewed_at is not None and self._remaining() > 0

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the lease, then run ``work`` while the lease is held.

        Returns when the work ends. Raises ``LeaseLost`` when the lease is lost, after the work was cancelled and has
        ended. On cancellation it cancels the work and keeps the lease until the work has ended, because clean-up may
        still write. Unless the lease was lost it is released at the end.
        """
        try:
            await self._acquire()
            await self._hold(work)
        finally:
            if self._renewed_at is not None:
                self._step_down()
            if self._version or self._unanswered:
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
                _log.error("the work failed while it was being stopped", exc_info=failure)
        await (working if ended else renewing)

    async def _acquire(self) -> None:
        _log.info("waiting for the lease %s/%s as %s", self.namespace, self.name, self.identity)
        while not (await self._attempt(self.terms.deadline / 2) and self.held):
            await self.clock.sleep(self.terms.retry * (0.7 + 0.2 * self.rng.random()))
        _log.info("leading: %s holds the lease %s/%s", self.identity, self.namespace, self.name)
        self.on_change(True)

    async def _renew(self) -> NoReturn:
        try:
            while True:
                await self.clock.sleep(max(0.0, min(self.terms.retry, self._remaining())))
                remaining = self._remaining()
                if remaining <= 0:
                    raise LeaseLost(f"the lease could not be renewed for {self.terms.deadline:g} s: {self._last_error}")
                # Half the deadline, so that a dead connection leaves time for another attempt.
                await self._attempt(min(remaining, self.terms.deadline / 2))
        except LeaseLost as lost:
            _log.error("lost the leader lease: %s", lost)
            self._version = ""
            self._unanswered = False
            self._step_down()
            raise

    def _step_down(self) -> None:
        self._renewed_at = None
        self.on_change(False)

    def _remaining(self) -> float:
        """Seconds until the renew deadline."""
        assert self._renewed_at is not None
        return self._renewed_at + self.terms.deadline - self.clock.monotonic()

    async def _attempt(self, seconds: float) -> bool:
        """Try once to acquire or renew the lease. Errors of the API are expected; they are logged."""
        try:
            ours = await within(self.clock, seconds, self._take())
        except (ApiError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            if text != self._last_error:
                _log.warning("the lease %s/%s: %s", self.namespace, self.name, text)
            self._last_error = text
            return False
        self._last_error = ""
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
            return False  # another candidate was faster
        return True

    async def _read(self) -> SharedObject | None:
        try:
            lease = await self.client.get(LEASE, self.name, self.namespace)
        except NotFound:
            lease = None
        record = LeaseRecord.read(lease or {})
        if record != self._seen:
            self._seen, self._seen_at = record, self.clock.monotonic()
        return lease

    def _free(self) -> bool:
        """Whether we may write our identity into the Lease as we last saw it."""
        if self._seen.holder in ("", self.identity):
            return True
        if self._renewed_at is not None:
            raise LeaseLost(f"{self._seen.holder} holds the lease")
        return self.clock.monotonic() >= self._seen_at + self._seen.duration

    async def _write(self, version: str | None) -> None:
        """Write our identity into the Lease at ``version``, or into a new one for None."""
        sent_at = self.clock.monotonic()
        record = self._seen.taken_by(self.identity, self.terms.duration, self.clock.now())
        self._version, self._unanswered = "", True
        try:
            lease = await (self._create(record) if version is None else self._patch(version, record))
        except (Conflict, AlreadyExists):
            self._unanswered = False
            raise
        self._version, self._unanswered = lease["metadata"]["resourceVersion"], False
        self._seen, self._seen_at, self._renewed_at = record, sent_at, sent_at

    async def _create(self, record: LeaseRecord) -> SharedObject:
        metadata = {"name": self.name, "namespace": self.namespace, **self._annotated()}
        lease = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": record.spec()}
        return await self.client.create(LEASE, lease)

    async def _patch(self, version: str, record: LeaseRecord) -> SharedObject:
        change = {"metadata": {"resourceVersion": version, **self._annotated()}, "spec": record.spec()}
        return await self.client.patch(LEASE, self.name, MergePatch(change), self.namespace)

    def _annotated(self) -> Object:
        annotations = self.annotations()
        return {"annotations": dict(annotations)} if annotations else {}

    async def _release(self) -> None:
        """Release the lease so that a successor starts at once. One attempt: otherwise the lease expires."""
        try:
            await within(self.clock, self.terms.deadline / 2, self._give_up())
        except (ApiError, OSError) as error:
            _log.warning("the lease %s/%s was not released: %s", self.namespace, self.name, error)
        self._version, self._unanswered = "", False

    async def _give_up(self) -> None:
        # Read the Lease first: a renewal that was cancelled may have succeeded, or succeed after that.
        while True:
            lease = await self.client.get(LEASE, self.name, self.namespace)
            record = LeaseRecord.read(lease)
            if record.holder != self.identity:
                return
            with contextlib.suppress(Conflict):
                await self._patch(lease["metadata"]["resourceVersion"], record.released(self.clock.now()))
                _log.info("released the lease %s/%s", self.namespace, self.name)
                return


async def _end(task: asyncio.Task[Any]) -> BaseException | None:
    """Cancel a task, wait for its end and return its exception."""
    task.cancel()
    await asyncio.wait((task,))
    return None if task.cancelled() else task.exception()


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The spec of a coordination.k8s.io Lease, as every Kubernetes leader election writes it.

    The times are informative. They come from the holder's clock, so nothing is computed from them.
    """

    holder: str = ""  # empty: released
    duration: int = 1  # seconds after which others may take it, counted from when they saw it change
    transitions: int = -1  # so that the first holder makes it 0
    acquired: str = ""
    renewed: str = ""

    @classmethod
    def read(cls, lease: SharedObject) -> LeaseRecord:
        spec = lease.get("spec") or {}
        return cls(
            spec.get("holderIdentity") or "",
            spec.get("leaseDurationSeconds") or 0,
            spec.get("leaseTransitions", 0 if lease else -1),
            spec.get("acquireTime") or "",
            spec.get("renewTime") or "",
        )

    def taken_by(self, identity: str, duration: int, now: datetime) -> LeaseRecord:
        """The record after ``identity`` acquires or renews the lease; only a new holder counts as a transition."""
        time = micro_timestamp(now)
        if self.holder == identity:
            return replace(self, duration=duration, renewed=time)
        return LeaseRecord(identity, duration, self.transitions + 1, time, time)

    def released(self, now: datetime) -> LeaseRecord:
        """The record after a release. Its short duration serves contenders that only wait for the lease to expire."""
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
