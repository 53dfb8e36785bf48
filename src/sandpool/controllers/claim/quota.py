"""Keeps the number of claims with a sandbox within the limit of their namespace, and claims beyond it in line.

A claim has a *place* from the reconcile that decides to give it a sandbox until it and its sandbox are gone, or until
it has expired and its sandbox is gone. Claims without a place wait in the order of their creation; a place that becomes
free enqueues the first. Claims that have a sandbox keep it when a limit is lowered.

The places follow from the caches, except those of claims whose sandbox is being written. So a successor knows them once
its caches are synced. Without a limit a claim costs a few lookups; with one, a wait costs a search in the line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from sandpool.api.conditions import CLAIM_EXPIRED, READY
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Key
from sandpool.api.views import ClaimView, Owner, SandboxView
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.limits import NamespaceLimits
from sandpool.engine.cache.store import reads

_NONE: Final[frozenset[str]] = frozenset()


class _Waiting(NamedTuple):
    """A claim in line; the order of the fields is that of the line."""

    created: float
    name: str
    uid: str


class ClaimQuota:
    """``subscribe`` before the caches are filled. A reconcile asks ``refusal`` and, without waiting in between, calls
    ``admit``, ``wait`` or ``leave``."""

    def __init__(self, caches: Caches, limits: NamespaceLimits, enqueue: Callable[[Key], None]) -> None:
        self.caches = caches
        self.limits = limits
        self.enqueue = enqueue
        self._places: defaultdict[str, set[str]] = defaultdict(set)  # UIDs of claims by namespace
        self._lines: defaultdict[str, list[_Waiting]] = defaultdict(list)  # sorted
        self._waiting: dict[str, _Waiting] = {}  # by UID

    def subscribe(self) -> None:
        self.caches.claims.subscribe(self._claim_changed, on_change_of=_place_of)
        self.caches.sandboxes.subscribe(self._sandbox_changed, on_change_of=_owner)
        self.limits.subscribe(self._enqueue_next)

    def refusal(self, claim: ClaimView) -> int | None:
        """The limit that keeps a claim from getting a sandbox now; None if it may get one."""
        namespace = claim.namespace
        limit = self.limits.claims(namespace)
        places = self._places.get(namespace, _NONE)
        if limit is None or claim.uid in places:
            return None
        ahead = bisect_left(self._lines[namespace], _entry(claim))
        return limit if len(places) + ahead >= limit else None

    def admit(self, claim: ClaimView) -> None:
        """The claim is given a sandbox."""
        self._leave_line(claim.namespace, claim.uid)
        self._places[claim.namespace].add(claim.uid)

    def wait(self, claim: ClaimView) -> None:
        """The claim is refused, and waits."""
        if claim.uid not in self._waiting:
            entry = self._waiting[claim.uid] = _entry(claim)
            insort(self._lines[claim.namespace], entry)

    def leave(self, claim: ClaimView) -> None:
        """The claim gets no sandbox for another reason, or needs none. A sandbox that it has keeps its place."""
        self._update(key_of(claim), claim.uid, is_served=False)

    def _claim_changed(self, key: Key, old: ClaimView | None, new: ClaimView | None) -> None:
        for uid in {view.uid for view in (old, new) if view is not None}:
            self._update(key, uid, is_served=True)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        for view in (old, new):
            if view is not None and view.owner is not None and view.owner.type is SANDBOX_CLAIM:
                self._update(Key(key.namespace, view.owner.name), view.owner.uid, is_served=True)

    def _update(self, key: Key, uid: str, *, is_served: bool) -> None:
        """Give a claim its place, or take it away. ``is_served``: a claim without a sandbox may be getting one."""
        namespace, places = key.namespace, self._places[key.namespace]
        claim = self.caches.claims.get(key)
        is_alive = claim is not None and claim.uid == uid and claim.reason(READY) != CLAIM_EXPIRED[0]
        if self.caches.owned_sandboxes(uid) or (is_alive and claim is not None and claim.sandbox_name):
            self._leave_line(namespace, uid)
            places.add(uid)
            return
        left = False
        if not (is_alive and is_served):
            left = self._leave_line(namespace, uid)
            if uid in places:
                places.remove(uid)
                left = True
        if left:
            self._enqueue_next(namespace)

    def _leave_line(self, namespace: str, uid: str) -> bool:
        entry = self._waiting.pop(uid, None)
        if entry is None:
            return False
        line = self._lines[namespace]
        del line[bisect_left(line, entry)]
        return True

    def _enqueue_next(self, namespace: str) -> None:
        line = self._lines.get(namespace)
        if not line:
            return
        limit = self.limits.claims(namespace)
        free = len(line) if limit is None else max(0, limit - len(self._places[namespace]))
        for entry in line[:free]:
            self.enqueue(Key(namespace, entry.name))


def _entry(claim: ClaimView) -> _Waiting:
    created = claim.creation_timestamp
    return _Waiting(0.0 if created is None else created.timestamp(), claim.name, claim.uid)


@reads("uid", "sandbox_name", "conditions")
def _place_of(claim: ClaimView) -> tuple[object, ...]:
    return claim.uid, bool(claim.sandbox_name), claim.reason(READY) == CLAIM_EXPIRED[0]


@reads("owner")
def _owner(sandbox: SandboxView) -> Owner | None:
    return sandbox.owner
