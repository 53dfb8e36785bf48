"""Invariants that hold after every write, checked against what the API has committed.

Each check uses one change and a few running counts, so its cost does not depend on the size of the world. The request
identifies the writer. The invariants:

* **One owner.** A sandbox has at most one controlling owner. A claimed sandbox never gets another owner. A pool member
  is adopted by a claim or orphaned.
* **One sandbox.** A claim owns at most one sandbox that is not terminating, is Ready only with a sandbox that it owns,
  and does not consume one sandbox after another. A late write of a crashed process may add a second one; one of the
  two is gone at quiescence.
* **No foreign writes.** The pool and template controllers never write or delete a claimed sandbox. Only users change
  the pod spec of a sandbox.
* **No excess members.** A pool never creates a member beyond ``replicas``, plus ``maxSurge`` during a rolling update.
  Terminating members count. The bound is the highest one in the pool's spec within the last ``STALENESS`` seconds,
  since a controller may not have seen the last change. Creations that were in flight when a process crashed come on
  top, since its successor could not know of them.
* **No availability lost to a rollout.** During a rolling update a pool deletes a ready member only if
  ``replicas - maxUnavailable`` ready members remain, not counting those lost otherwise within ``STALENESS`` seconds.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.warmpool import ROLLING_UPDATE
from sandpool.kube.transport import Request
from sandpool.server.store.entry import Change
from sandpool.testing.simulation.object_facts import is_deleting, is_ready

STALENESS = 30.0
#: How many sandboxes a claim may get in succession: users delete some, and pods fail.
MAX_SANDBOXES_PER_CLAIM = 6

_POOLS = "sandboxwarmpool"
_TEMPLATES = "sandboxtemplate"
_USERS = "users"


class Violation(Exception):
    """An invariant does not hold; ``invariant`` is its name."""

    def __init__(self, invariant: str, details: str) -> None:
        super().__init__(f"{invariant}: {details}")
        self.invariant = invariant


@dataclass(slots=True)
class _Pool:
    name: str
    ceiling: int
    needed: int
    is_rolling: bool
    former: deque[tuple[float, int]] = field(
        default_factory=deque
    )  # earlier ceilings, with the time at which each ended
    lost: deque[float] = field(
        default_factory=deque
    )  # times at which ready members were lost other than by the pool's deletes
    changed: float = -STALENESS  # when its spec last changed


class Invariants:
    """Checks every committed write. ``on_violation`` gets the first violation; later writes are not checked."""

    def __init__(self, time: Callable[[], float], on_violation: Callable[[Violation], None]) -> None:
        self.time = time
        self.on_violation = on_violation
        self.late_creations: Counter[str] = Counter()  # by pool: creations in flight at a crash
        self.late_adoptions: set[str] = set()  # names of claims with an adoption in flight at a crash
        self.ready_claims: set[str] = set()  # UIDs of claims that have been ready
        self.adoptions = 0
        self.cold_starts = 0
        self.commits = 0  # without Events
        self._is_violated = False
        self._pools: dict[str, _Pool] = {}  # by UID
        self._members: dict[str, set[str]] = {}  # by pool: UIDs of sandboxes
        self._ready: dict[str, set[str]] = {}  # those that are ready and not terminating
        # By claim: UIDs and names of sandboxes that are not terminating.
        self._held: dict[str, dict[str, str]] = {}
        self._assignments: Counter[str] = Counter()  # by claim: how many sandboxes it got
        self._ever_owned: set[tuple[str, str]] = set()  # UIDs of claims and names of sandboxes they own or owned

    def observe_write(self, resource: str, change: Change, writer: str) -> None:
        if self._is_violated:
            return
        if resource != "events":
            self.commits += 1
        try:
            if resource == SANDBOX.group_resource:
                self._sandbox(change, writer)
            elif resource == SANDBOX_CLAIM.group_resource:
                self._claim(change)
            elif resource == SANDBOX_WARM_POOL.group_resource:
                self._pool(change)
        except Violation as violation:
            self._is_violated = True
            self.on_violation(violation)

    def expect_late_write(self, request: Request) -> None:
        """Allow for a write in flight at a crash: it may be committed after the successor has listed."""
        body = request.body if isinstance(request.body, dict) else {}
        for owner in (body.get("metadata") or {}).get("ownerReferences") or []:
            if owner["kind"] == SANDBOX_CLAIM.kind:
                self.late_adoptions.add(owner["name"])
            elif owner["kind"] == SANDBOX_WARM_POOL.kind:
                self.late_creations[owner["name"]] += 1

    # --- sandboxes ----------------------------------------------------------------------------------------------------

    def _sandbox(self, change: Change, writer: str) -> None:
        before = change.previous.decode() if change.previous is not None else None
        after = change.object if change.type != "DELETED" else None
        name = change.entry.key[1]
        was, now = _owner(before, name), _owner(after, name)
        if before is not None and after is not None and was != now:
            _check_transition(name, was, now)
        if was[0] == SANDBOX_CLAIM.kind and writer.partition(" ")[0] in (_POOLS, _TEMPLATES):
            raise Violation("no foreign writes", f"{writer} wrote sandbox {name} of claim {was[2]}: {change.type}")
        if before is not None and after is not None and not writer.startswith(_USERS):
            _check_pod_spec(name, before, after, writer)
        self._hold(change, before, after, was, now)
        self._count(before, after, was, now, writer, name)

    def _hold(self, change: Change, before: Object | None, after: Object | None, was: _Owner, now: _Owner) -> None:
        uid, name = change.entry.uid, change.entry.key[1]
        if was[0] == SANDBOX_CLAIM.kind and (after is None or is_deleting(after)):
            self._held.get(was[1], {}).pop(uid, None)
        elif now[0] == SANDBOX_CLAIM.kind:
            held = self._held.setdefault(now[1], {})
            held[uid] = name
            self._ever_owned.add((now[1], name))
            if len(held) > 1 and now[2] not in self.late_adoptions:
                raise Violation("one sandbox", f"claim {now[2]} owns {', '.join(sorted(held.values()))}")
            if before is None:
                self.cold_starts += 1
            elif was[0] != SANDBOX_CLAIM.kind:
                self.adoptions += 1
            if was[1] != now[1]:
                self._assignments[now[1]] += 1
                if self._assignments[now[1]] > MAX_SANDBOXES_PER_CLAIM:
                    raise Violation("one sandbox", f"claim {now[2]} consumes one sandbox after another")

    def _count(
        self, before: Object | None, after: Object | None, was: _Owner, now: _Owner, writer: str, name: str
    ) -> None:
        uid = (after or before or {})["metadata"]["uid"]
        pooled = SANDBOX_WARM_POOL.kind
        if was[0] == pooled and was[1] != now[1]:
            self._members.get(was[1], set()).discard(uid)
        serves = now[0] == pooled and after is not None and is_ready(after) and not is_deleting(after)
        if was[0] == pooled and uid in self._ready.get(was[1], ()) and not (serves and was[1] == now[1]):
            self._ready[was[1]].discard(uid)
            self._lost(was[1], writer, before, after, name)
        if serves:
            self._ready.setdefault(now[1], set()).add(uid)
        if now[0] == pooled and was[1] != now[1]:
            members = self._members.setdefault(now[1], set())
            members.add(uid)
            self._check_ceiling(now[1], len(members), name)

    def _check_ceiling(self, pool_uid: str, members: int, name: str) -> None:
        pool = self._pools.get(pool_uid)
        if pool is None:
            return  # the pool is gone; the garbage collector deletes late members
        allowed = max([pool.ceiling, *(ceiling for until, ceiling in pool.former if until >= self.time() - STALENESS)])
        allowed += self.late_creations[pool.name]
        if members > allowed:
            raise Violation("no excess members", f"{name} is member {members} of {pool.name}, {allowed} allowed")

    def _lost(self, pool_uid: str, writer: str, before: Object | None, after: Object | None, name: str) -> None:
        """Handle the loss of a ready member."""
        pool = self._pools.get(pool_uid)
        if pool is None:
            return
        now = self.time()
        is_deleted = after is None or is_deleting(after)
        if not (is_deleted and writer.startswith(_POOLS)):
            pool.lost.append(now)
            return
        if not pool.is_rolling or now - pool.changed < STALENESS:
            return
        while pool.lost and pool.lost[0] < now - STALENESS:
            pool.lost.popleft()
        left = len(self._ready[pool_uid])
        if left + len(pool.lost) < pool.needed:
            details = f"{name} is deleted; {pool.name} keeps {left} of {pool.needed} ready members"
            raise Violation("no availability lost to a rollout", details)

    # --- claims and pools ---------------------------------------------------------------------------------------------

    def _claim(self, change: Change) -> None:
        uid, name = change.entry.uid, change.entry.key[1]
        if change.type == "DELETED":
            self._held.pop(uid, None)
            return
        claim = change.object
        if is_ready(claim):
            self.ready_claims.add(uid)
            box = ((claim.get("status") or {}).get("sandbox") or {}).get("name", "")
            if (uid, box) not in self._ever_owned:
                raise Violation("one sandbox", f"claim {name} is ready with {box!r}, which it never owned")

    def _pool(self, change: Change) -> None:
        uid = change.entry.uid
        if change.type == "DELETED":
            for each in (self._pools, self._members, self._ready):
                each.pop(uid, None)
            return
        metadata, spec = change.object["metadata"], change.object["spec"]
        replicas, strategy = spec["replicas"], spec.get("updateStrategy") or {}
        is_rolling = strategy.get("type") == ROLLING_UPDATE
        surge, unavailable = _bounds(strategy.get("rollingUpdate") or {}, replicas)
        ceiling, needed = replicas + (surge if is_rolling else 0), replicas - unavailable
        pool = self._pools.get(uid)
        if pool is None:
            self._pools[uid] = _Pool(metadata["name"], ceiling, needed, is_rolling)
            return
        if change.previous is not None and metadata["generation"] != change.previous.decode()["metadata"]["generation"]:
            pool.former.append((self.time(), pool.ceiling))
            while pool.former and pool.former[0][0] < self.time() - STALENESS:
                pool.former.popleft()
            pool.changed = self.time()
            pool.ceiling, pool.needed, pool.is_rolling = ceiling, needed, is_rolling


def _bounds(rolling: Object, replicas: int) -> tuple[int, int]:
    """The effective maxSurge, rounded up, and maxUnavailable, rounded down; at least one of them is positive."""
    surge, unavailable = rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%")
    more = surge if isinstance(surge, int) else math.ceil(replicas * int(surge[:-1]) / 100)
    less = unavailable if isinstance(unavailable, int) else replicas * int(unavailable[:-1]) // 100
    return more, min(replicas, less or (0 if more else 1))


_Owner = tuple[str, str, str]  # kind, UID and name; empty if there is none


def _owner(sandbox: Object | None, name: str) -> _Owner:
    owners = [] if sandbox is None else sandbox["metadata"].get("ownerReferences") or []
    controlling = [each for each in owners if each.get("controller")]
    if len(controlling) > 1:
        raise Violation("one owner", f"sandbox {name} has {len(controlling)} controlling owners")
    return (controlling[0]["kind"], controlling[0]["uid"], controlling[0]["name"]) if controlling else ("", "", "")


def _check_transition(name: str, was: _Owner, now: _Owner) -> None:
    allowed = {
        SANDBOX_WARM_POOL.kind: (SANDBOX_CLAIM.kind, ""),
        "": (SANDBOX_WARM_POOL.kind,),
        SANDBOX_CLAIM.kind: ("",),  # by the garbage collector, after a delete with policy Orphan
    }
    if now[0] not in allowed.get(was[0], ()):
        raise Violation("one owner", f"sandbox {name} moved from {was[0]} {was[2]} to {now[0]} {now[2]}")


def _check_pod_spec(name: str, before: Object, after: Object, writer: str) -> None:
    if before["spec"]["podTemplate"].get("spec") != after["spec"]["podTemplate"].get("spec"):
        raise Violation("no foreign writes", f"{writer} changed the pod spec of sandbox {name}")
