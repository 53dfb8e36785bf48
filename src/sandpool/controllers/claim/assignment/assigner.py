"""Assigns sandboxes to claims in memory, at once, each to one claim only.

**Why in memory.** Searching a list of all sandboxes costs O(sandboxes) per claim, and concurrent claims find the same
one; the API then refuses all but one, and they search again. Here the watch puts a sandbox that becomes ready into a
free list, and a claim that takes it has it alone from that moment. The adoption write (owner and resourceVersion of the
Sandbox) remains the commit point. After a restart, or if another writer changes Sandboxes, the state here may be wrong;
the adoption then fails, and the state is corrected.

**Invariants.** A sandbox is leased to at most one claim, and a claim has at most one lease: a claim that asks again
gets the same one. Nothing is lost: a candidate is free, not ready, leased or taken until it is forgotten. Waiting
claims are served in order of arrival: no sandbox is free while a claim waits that accepts it. There is no capacity
limit.

**Cost.** ``take``, ``update``, ``forget`` and the end of a lease are O(1) in sandboxes, nodes and waiting claims; see
``free_list`` and ``wait_queue``. An entry takes about 300 bytes.

**Life of a candidate.** ``update`` sets its stage: PENDING without an address, STARTING with one, READY. Only READY
ones are leased, unless the caller passes ``starting=True``. A lease ends in one of three ways: ``done`` after the
adoption was written, ``give_back`` if it was not, ``forget`` if the sandbox is gone or has another owner. After
``done`` the entry stays, as taken, until the watch shows the new owner: an event from before the write, arriving late,
would otherwise make it a candidate again.

**Rejected alternatives.** A background task that adopts for claims: the claim's reconcile would have to recognise
half-done work. Enqueueing all waiting claims when a sandbox becomes ready: the quickest would win, so the sandbox is
leased to the first. Timers instead of events: they become the latency of a burst. One queue with all sandboxes, ready
or not: every claim of a burst walks over those that are not ready.

Not thread-safe; it lives in one event loop and never awaits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import NamedTuple

from sandpool.api.resource import Key
from sandpool.controllers.claim.assignment.free_list import FreeLists
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest, Waiter, WaitQueue


class Stage(Enum):
    PENDING = auto()  # created, without an address
    STARTING = auto()  # has an address, is not ready
    READY = auto()


class Candidate(NamedTuple):
    """A pooled sandbox that a claim may adopt."""

    sandbox: Key
    uid: str
    pool: Key
    compatibility: str  # sandboxes with the same value are equivalent
    node: str  # "" if not known
    stage: Stage


@dataclass(slots=True)
class _Entry:
    candidate: Candidate
    # None: the entry is in the free list of its stage, or counted as not ready.
    lease: Lease | None = None
    # Its lease was done; it is in no free list any more.
    is_taken: bool = False


class Lease:
    """Exclusive use of a sandbox by one claim.

    The first of ``done``, ``give_back`` and the assigner's ``forget`` ends it, later calls do nothing. Leaving its
    ``with`` block ends it by ``give_back``.
    """

    __slots__ = ("_assigner", "_waiter", "claim", "sandbox")

    def __init__(self, assigner: Assigner, claim: Key, sandbox: Key, waiter: Waiter | None) -> None:
        self.claim = claim
        self.sandbox = sandbox
        # None once the lease has ended.
        self._assigner: Assigner | None = assigner
        # The claim's place in the wait queue, until the claim has taken the lease.
        self._waiter = waiter

    @property
    def has_ended(self) -> bool:
        return self._assigner is None

    def done(self) -> None:
        """The adoption was written."""
        if self._assigner is not None:
            self._assigner._done(self)

    def give_back(self) -> None:
        """Return the sandbox, which the pool still owns. It is the next one of its node."""
        if self._assigner is not None:
            self._assigner._give_back(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


class Assigner:
    """``enqueue`` is called with a waiting claim when it has been leased a sandbox."""

    def __init__(self, enqueue: Callable[[Key], None]) -> None:
        self.enqueue = enqueue
        # All candidates that are not forgotten.
        self._entries: dict[Key, _Entry] = {}
        # Entries without lease that are not taken, by stage; PENDING ones are only counted.
        self._ready = FreeLists()
        self._starting = FreeLists()
        # Number of entries without lease that are not ready, per pool and compatibility; None is the whole pool.
        self._unready: Counter[tuple[Key, str | None]] = Counter()
        # Leases that have not ended, by claim. Each is the lease of the entry of its sandbox.
        self._leases: dict[Key, Lease] = {}
        # Claims that wait. None of them has a lease, and no entry in _ready is acceptable to any.
        self._waiting = WaitQueue()

    def __len__(self) -> int:
        """Number of entries, including taken ones until they are forgotten."""
        return len(self._entries)

    # --- events of the watch -----------------------------------------------------------------------------------------

    def update(self, candidate: Candidate) -> None:
        """Add or update a candidate."""
        entry = self._entries.get(candidate.sandbox)
        if entry is not None and entry.candidate.uid != candidate.uid:
            self.forget(candidate.sandbox)
            entry = None
        if entry is None:
            entry = self._entries[candidate.sandbox] = _Entry(candidate)
            self._put(entry)
        elif entry.candidate != candidate:
            if entry.lease is None and not entry.is_taken:
                self._pull(entry)
                entry.candidate = candidate
                self._put(entry)
            else:
                entry.candidate = candidate

    def forget(self, sandbox: Key) -> None:
        """Remove a sandbox that is gone or has left its pool; a no-op if it is unknown."""
        entry = self._entries.pop(sandbox, None)
        if entry is None:
            return
        if entry.lease is None:
            if not entry.is_taken:
                self._pull(entry)
            return
        waiter = entry.lease._waiter
        self._end(entry.lease)
        if waiter is not None:
            # The claim has not taken this lease yet: it returns to its place in the queue.
            self._waiting.rejoin(waiter)
            self._serve_first(waiter.request)

    def deprioritize(self, node: str) -> None:
        """Lease sandboxes of this node only if there are no others, until ``restore``."""
        self._ready.deprioritize(node)
        self._starting.deprioritize(node)

    def restore(self, node: str) -> None:
        self._ready.restore(node)
        self._starting.restore(node)

    # --- requests of claims ------------------------------------------------------------------------------------------

    def take(self, *requests: SandboxRequest, starting: bool = False) -> Lease | None:
        """Lease a sandbox to a claim, for the first of its requests that can be met; None if there is none.

        A claim that has a lease keeps it if the sandbox meets any of the requests. ``starting`` also accepts a sandbox
        that has an address and is not ready yet, if there is no ready one.

        A lease is not exchanged for a better one. Its adoption may have been written without an answer; and a returned
        sandbox would be leased to the next claim in line, which would do the same, and so on in circles.
        """
        claim = requests[0].claim
        lease = self._leases.get(claim)
        if lease is not None:
            candidate = self._entries[lease.sandbox].candidate
            if any(request.accepts(candidate.pool, candidate.compatibility) for request in requests):
                lease._waiter = None
                return lease
            lease.give_back()
        sandbox = next(
            (found for request in requests if (found := self._pop(request, starting=starting)) is not None), None
        )
        if sandbox is None:
            return None
        self._waiting.leave(claim)
        return self._lease(self._entries[sandbox], claim, None)

    def _pop(self, request: SandboxRequest, *, starting: bool) -> Key | None:
        sandbox = self._ready.pop(request.pool, request.compatibility)
        if sandbox is None and starting:
            sandbox = self._starting.pop(request.pool, request.compatibility)
            if sandbox is not None:
                self._count(self._entries[sandbox].candidate, -1)
        return sandbox

    def is_worth_waiting(self, request: SandboxRequest) -> bool:
        """Whether more sandboxes are starting than claims wait for."""
        starting = self._unready[request.pool, request.compatibility]
        others = 0 if request.claim in self._waiting else self._waiting.waiting(request.pool, request.compatibility)
        return starting > others

    def wait(self, request: SandboxRequest) -> None:
        """Queue a claim for which ``take`` found nothing. A claim with a lease does not wait."""
        if request.claim not in self._leases:
            self._waiting.join(request)
            self._serve_first(request)

    def withdraw(self, claim: Key) -> None:
        """Remove the claim from the queue and return its lease: it is gone, or has a sandbox."""
        self._waiting.leave(claim)
        lease = self._leases.get(claim)
        if lease is not None:
            lease.give_back()

    # --- leases ------------------------------------------------------------------------------------------------------

    def _lease(self, entry: _Entry, claim: Key, waiter: Waiter | None) -> Lease:
        lease = Lease(self, claim, entry.candidate.sandbox, waiter)
        entry.lease = self._leases[claim] = lease
        return lease

    def _end(self, lease: Lease) -> None:
        lease._assigner = lease._waiter = None
        del self._leases[lease.claim]

    def _done(self, lease: Lease) -> None:
        entry = self._entries[lease.sandbox]
        self._end(lease)
        entry.lease = None
        entry.is_taken = True

    def _give_back(self, lease: Lease) -> None:
        entry = self._entries[lease.sandbox]
        self._end(lease)
        entry.lease = None
        self._put(entry, first=True)

    # --- entries without lease ---------------------------------------------------------------------------------------

    def _put(self, entry: _Entry, *, first: bool = False) -> None:
        candidate = entry.candidate
        if candidate.stage is Stage.READY:
            waiter = self._waiting.serve(candidate.pool, candidate.compatibility)
            if waiter is not None:
                self._lease(entry, waiter.request.claim, waiter)
                self.enqueue(waiter.request.claim)
            else:
                self._ready.push(
                    candidate.pool, candidate.compatibility, candidate.node, candidate.sandbox, first=first
                )
            return
        self._count(candidate, +1)
        if candidate.stage is Stage.STARTING:
            self._starting.push(candidate.pool, candidate.compatibility, candidate.node, candidate.sandbox, first=first)

    def _pull(self, entry: _Entry) -> None:
        candidate = entry.candidate
        if candidate.stage is Stage.READY:
            self._ready.remove(candidate.pool, candidate.compatibility, candidate.node, candidate.sandbox)
            return
        self._count(candidate, -1)
        if candidate.stage is Stage.STARTING:
            self._starting.remove(candidate.pool, candidate.compatibility, candidate.node, candidate.sandbox)

    def _count(self, candidate: Candidate, change: int) -> None:
        for at in ((candidate.pool, candidate.compatibility), (candidate.pool, None)):
            self._unready[at] += change
            if not self._unready[at]:
                del self._unready[at]

    def _serve_first(self, request: SandboxRequest) -> None:
        """Restore the invariant that no acceptable sandbox is free, after a claim has begun to wait."""
        sandbox = self._ready.pop(request.pool, request.compatibility)
        if sandbox is not None:
            self._put(self._entries[sandbox], first=True)
