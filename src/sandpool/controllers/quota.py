"""The limits of a namespace: the number of its claims that have a sandbox, and of the warm sandboxes in its pools.

An annotation of the Namespace sets a limit, and the flags of the controllers set it for namespaces without the
annotation. Users with rights in a namespace alone can change neither. Without permission to read Namespaces, or where
an annotation is no number, the flags apply.

``ClaimQuota`` keeps the number of claims with a sandbox within the limit of their namespace, and claims beyond it in
line. A claim has a *place* from the reconcile that decides to give it a sandbox until it and its sandbox are gone, or
until it has expired and its sandbox is gone. Claims without a place wait in the order of their creation; a place that
becomes free enqueues the first. Claims that have a sandbox keep it when a limit is lowered.

The places follow from the caches, except those of claims whose sandbox is being written. So a successor knows them once
its caches are synced. Without a limit a claim costs a few lookups; with one, a wait costs a search in the line.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from sandpool.api import labels
from sandpool.api.conditions import CLAIM_EXPIRED, READY
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Key
from sandpool.api.views import ClaimView, NamespaceView, Owner, SandboxView, WarmPoolView
from sandpool.controllers.informers import Caches, key_of
from sandpool.engine.cache.store import reads

_log = logging.getLogger(__name__)

#: The value of an annotation that sets no limit.
UNLIMITED: Final = "unlimited"
_NONE: Final[frozenset[str]] = frozenset()


class NamespaceLimits:
    """Reads the limits of namespaces. ``claims`` and ``warm_sandboxes`` apply to those without an annotation; None: no
    limit."""

    def __init__(self, caches: Caches, *, claims: int | None = None, warm_sandboxes: int | None = None) -> None:
        self.caches = caches
        self._claims = claims
        self._warm_sandboxes = warm_sandboxes

    def claims(self, namespace: str) -> int | None:
        """The number of claims of a namespace that may have a sandbox at a time."""
        return self._limit(namespace, labels.MAX_CLAIMS, self._claims)

    def warm_sandboxes(self, namespace: str) -> int | None:
        """The number of warm sandboxes that all pools of a namespace may keep together."""
        return self._limit(namespace, labels.MAX_WARM_SANDBOXES, self._warm_sandboxes)

    def pool_size(self, pool: WarmPoolView) -> int:
        """The number of warm sandboxes that a pool keeps. The oldest pools of a namespace get theirs first."""
        limit = self.warm_sandboxes(pool.namespace)
        if limit is None:
            return pool.replicas
        others = self.caches.namespace_pools(pool.namespace)
        older = sum(each.replicas for each in others if not each.deleting and _age(each) < _age(pool))
        return max(0, min(pool.replicas, limit - older))

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with the name of a namespace whose annotations have changed its limits."""

        def handle(key: Key, old: NamespaceView | None, new: NamespaceView | None) -> None:
            changed(key.name)

        self.caches.namespaces.subscribe(handle, on_change_of=_limits_of)

    def _limit(self, namespace: str, annotation: str, default: int | None) -> int | None:
        view = self.caches.namespaces.get(Key("", namespace))
        text = None if view is None else view.annotations.get(annotation)
        return default if text is None else _parsed(annotation, text, default)


class _Waiting(NamedTuple):
    """A claim in line; the order of the fields is that of the line."""

    created: float
    name: str
    uid: str


class ClaimQuota:
    """The places and the line of every namespace. Call ``subscribe`` before the caches are filled. A reconcile asks
    ``refusal`` and, without waiting in between, calls ``admit``, ``wait`` or ``leave``."""

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
        """Compare a claim with the caches: give it a place if it has a sandbox, and take away what it no longer needs.

        A live claim without a sandbox keeps its place or its position in line while ``is_served``, because its sandbox
        may be on its way to the API. Without ``is_served`` the reconcile has decided that it gets none.
        """
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


@reads("annotations")
def _limits_of(namespace: NamespaceView) -> tuple[str | None, str | None]:
    return namespace.annotations.get(labels.MAX_CLAIMS), namespace.annotations.get(labels.MAX_WARM_SANDBOXES)


@lru_cache(1024)
def _parsed(annotation: str, text: str, default: int | None) -> int | None:
    if text == UNLIMITED:
        return None
    if text.isascii() and text.isdecimal():
        return int(text[:18])
    _log.warning(
        'annotation %s of a Namespace has no effect: %r is neither a whole number nor "%s"', annotation, text, UNLIMITED
    )
    return default


def _age(pool: WarmPoolView) -> tuple[float, str]:
    created = pool.creation_timestamp
    return 0.0 if created is None else created.timestamp(), pool.name
