"""Which claim gets which sandbox: decided in memory, at once, for one claim only.

**Why in memory.** To look for a free sandbox in a list of all of them is O(sandboxes) for every claim, and everybody
who looks at the same time finds the same one; the API then tells all but one so, and they look again. Here a sandbox
that becomes ready is put in a free list by the watch, and a claim that takes it has it alone from that instant. The
write that follows (the owner of the Sandbox, with its resourceVersion) is the commit point and still the only thing
that counts: after a restart, or if somebody else writes Sandboxes, what is here may be wrong, and is found out then.

**What it promises.** A sandbox is with one claim at most, and a claim has one sandbox at most: a claim that asks again
gets the same one. Nothing is lost: a sandbox that was offered is free, on its way, leased or taken until it is
forgotten. Claims that wait are served in the order in which they came, and nobody overtakes them: a sandbox is never
free while a claim waits that could have it. There is no capacity at which anything is dropped.

**What it costs.** ``take``, ``update``, ``forget`` and the end of a lease are O(1) in sandboxes, nodes and
waiting claims; see ``free_list`` and ``wait_queue``. An entry takes about 300 bytes.

**How a sandbox moves.** ``update`` sets the stage it has reached: PENDING without an address, STARTING with one, READY.
Only READY ones are handed out, unless the caller passes ``starting=True``. A lease ends in one of three
ways: ``done`` when the Sandbox has been written, ``give_back`` when it has not, ``forget`` when the sandbox turns out
to be gone or another's. After ``done`` the entry stays, as taken, until the watch has shown the new owner and the
sandbox is forgotten: an event from before the write, arriving late, would otherwise offer it a second time.

**What was rejected.** Handing claims over to a background task that binds them: then the claim's own pass has to
recognise half-done work. Waking all who wait when something becomes ready: then the quickest wins, not the first, so
the sandbox is promised to the first, who then takes it. Timers instead of waking: they are the latency of a burst. A
queue with everything in it, ready or not, as others have it: every claim of a burst walks over what is not ready.

Not thread-safe; it lives in one event loop and never awaits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import NamedTuple

from sandpool.controllers.claim.assignment.free_list import FreeLists, Key
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest, Waiter, WaitQueue


class Stage(Enum):
    PENDING = auto()  # made, but nobody can reach it yet
    STARTING = auto()  # has an address, is not ready
    READY = auto()


class Candidate(NamedTuple):
    """What the assigner knows of a sandbox that its pool would give away."""

    sandbox: Key
    uid: str
    pool: Key
    compatibility: str  # sandboxes with the same are as good as each other
    node: str  # "" if not known
    stage: Stage


@dataclass(slots=True)
class _Entry:
    candidate: Candidate
    # Who has it. None: it is where its stage puts it, in a stock or counted as coming.
    lease: Lease | None = None
    # Its lease was done; it is in no stock and never will be again.
    is_taken: bool = False


class Lease:
    """A sandbox that is for one claim alone. The first of ``done``, ``give_back`` and the assigner's ``forget`` ends
    it, what follows does nothing; leaving its ``with`` block ends it by ``give_back``."""

    __slots__ = ("_assigner", "_waiter", "claim", "sandbox")

    def __init__(self, assigner: Assigner, claim: Key, sandbox: Key, waiter: Waiter | None) -> None:
        self.claim = claim
        self.sandbox = sandbox
        # None once the lease has ended.
        self._assigner: Assigner | None = assigner
        # The place in line the claim gave up for this, until it has taken the lease.
        self._waiter = waiter

    @property
    def has_ended(self) -> bool:
        return self._assigner is None

    def done(self) -> None:
        """The Sandbox is the claim's: it was written."""
        if self._assigner is not None:
            self._assigner._done(self)

    def give_back(self) -> None:
        """The Sandbox is still the pool's. It is the next one to be handed out on its node."""
        if self._assigner is not None:
            self._assigner._give_back(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


class Assigner:
    """``wake`` is called with a claim that waits when there is a sandbox for it to take."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self.wake = wake
        # Every sandbox that was offered and not forgotten.
        self._entries: dict[Key, _Entry] = {}
        # The entries without lease that are not taken, by stage; COMING ones are only counted.
        self._ready = FreeLists()
        self._starting = FreeLists()
        # How many entries without lease are not ready, per pool and compatibility; under None those of the whole pool.
        self._unready: Counter[tuple[Key, str | None]] = Counter()
        # Leases that have not ended, by claim. Each is the lease of the entry of its sandbox.
        self._leases: dict[Key, Lease] = {}
        # Claims that wait. None of them has a lease, and no entry in _ready is acceptable to any.
        self._waiting = WaitQueue()

    def __len__(self) -> int:
        """How many sandboxes there are, taken ones included until they are forgotten."""
        return len(self._entries)

    # --- what the watch tells ----------------------------------------------------------------------------------------

    def update(self, candidate: Candidate) -> None:
        """A pool has this sandbox, and this is what is known of it now."""
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
        """The sandbox is gone, or not a pool's any more. Nothing happens if it is not known."""
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
            # It was promised and has not been fetched: the claim is back in its place.
            self._waiting.rejoin(waiter)
            self._serve_first(waiter.request)

    def deprioritize(self, node: str) -> None:
        """Hand out what is on this node when there is nothing else, until it is to be trusted again."""
        self._ready.deprioritize(node)
        self._starting.deprioritize(node)

    def restore(self, node: str) -> None:
        self._ready.restore(node)
        self._starting.restore(node)

    # --- what claims ask ---------------------------------------------------------------------------------------------

    def take(self, *requests: SandboxRequest, starting: bool = False) -> Lease | None:
        """A sandbox for a claim, of whose wishes the best comes first: the one it has already or was promised, if that
        fulfils any of them, or a free one; with ``starting`` also one that has an address and is not ready yet, if no
        other is there. None if there is none.

        What it has is not exchanged for something better. It may have been written to the API without our knowing; and
        what was promised to it would be promised to the next in line, who would do the same, and so on in circles."""
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
        """Whether a sandbox is on its way that is not spoken for by those who wait already."""
        coming = self._unready[request.pool, request.compatibility]
        others = 0 if request.claim in self._waiting else self._waiting.waiting(request.pool, request.compatibility)
        return coming > others

    def wait(self, request: SandboxRequest) -> None:
        """The claim, for which ``take`` found nothing, gets the next sandbox that is ready, after those before it. One
        that has a lease has nothing to wait for."""
        if request.claim not in self._leases:
            self._waiting.join(request)
            self._serve_first(request)

    def withdraw(self, claim: Key) -> None:
        """The claim waits no more and wants no sandbox: it is gone, or has one that is not from here."""
        self._waiting.leave(claim)
        lease = self._leases.get(claim)
        if lease is not None:
            lease.give_back()

    # --- how leases begin and end ------------------------------------------------------------------------------------

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

    # --- where entries without lease are -----------------------------------------------------------------------------

    def _put(self, entry: _Entry, *, first: bool = False) -> None:
        candidate = entry.candidate
        if candidate.stage is Stage.READY:
            waiter = self._waiting.serve(candidate.pool, candidate.compatibility)
            if waiter is not None:
                self._lease(entry, waiter.request.claim, waiter)
                self.wake(waiter.request.claim)
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
        """Keeps the promise that nothing is free that somebody waits for, where somebody has begun to wait."""
        sandbox = self._ready.pop(request.pool, request.compatibility)
        if sandbox is not None:
            self._put(self._entries[sandbox], first=True)
