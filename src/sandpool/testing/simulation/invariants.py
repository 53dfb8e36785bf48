"""What must be true after every write, whoever made it, checked against what the API has committed.

Each law looks at one change and at a few counts that are kept up to date, so a check costs the same however large the
world is. Who wrote is known from the request. The laws:

* **One owner.** A sandbox has at most one controlling owner. One that is a claim's never becomes anybody else's, and
  one of a pool becomes a claim's or nobody's.
* **One sandbox.** A claim owns at most one sandbox that is not on its way out, and is never Ready with one it does not
  own. Nor does it use up one after the other. A second one may come from a process that died; then one of them is gone
  once it is quiet.
* **Hands off.** What controls pools and templates does not write or delete a sandbox that is a claim's; and nobody but
  people changes what runs in a sandbox (its pod's spec).
* **No more than asked for.** A pool does not make a member beyond ``replicas``, plus ``maxSurge`` while rolling.
  Members on their way out count. What counts as asked for is the most that the pool's spec has said within ``MEMORY``
  seconds, since a controller may not have heard of the last change; and what a dead process had under way when it died
  comes on top, since nobody could know of that.
* **No fewer because of a rollout.** While rolling, a ready member is only deleted if ``replicas - maxUnavailable``
  ready ones are left, not counting those that were lost otherwise within ``MEMORY`` seconds.
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

MEMORY = 30.0
#: How many sandboxes a claim may be given one after the other: people delete some, and pods fail.
ENOUGH = 6

_POOLS = "sandboxwarmpool"
_TEMPLATES = "sandboxtemplate"
_PEOPLE = "users"


class Violation(Exception):
    """A law was broken; ``law`` is its name."""

    def __init__(self, law: str, details: str) -> None:
        super().__init__(f"{law}: {details}")
        self.law = law


@dataclass(slots=True)
class _Pool:
    name: str
    ceiling: int
    needed: int
    is_rolling: bool
    former: deque[tuple[float, int]] = field(default_factory=deque)  # until when which ceiling was in force
    lost: deque[float] = field(default_factory=deque)  # when ready members were lost, not by being deleted by the pool
    changed: float = -MEMORY  # when its spec last changed


class Laws:
    """``broken`` is told of the first violation, and nothing is checked from then on."""

    def __init__(self, time: Callable[[], float], broken: Callable[[Violation], None]) -> None:
        self.time = time
        self.broken = broken
        self.zombies: Counter[str] = Counter()  # by pool: creations that were under way when a process died
        self.zombie_claims: set[str] = set()  # claims that were being given a sandbox when a process died
        self.ready_claims: set[str] = set()  # UIDs of claims that were ready once
        self.adoptions = 0
        self.cold_starts = 0
        self.commits = 0  # Events aside
        self._is_broken = False
        self._pools: dict[str, _Pool] = {}  # by UID
        self._members: dict[str, set[str]] = {}  # by pool: UIDs of sandboxes
        self._ready: dict[str, set[str]] = {}  # those of them that are ready and not on their way out
        # By claim: UIDs and names of sandboxes that are not on their way out.
        self._held: dict[str, dict[str, str]] = {}
        self._gifts: Counter[str] = Counter()  # by claim: how many sandboxes it was given
        self._given: set[tuple[str, str]] = set()  # claims' UIDs and the names of sandboxes they own or have owned

    def witness(self, resource: str, change: Change, writer: str) -> None:
        if self._is_broken:
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
            self._is_broken = True
            self.broken(violation)

    def expect_zombie(self, request: Request) -> None:
        """A process has died that had this under way: it may happen after its successor has looked."""
        body = request.body if isinstance(request.body, dict) else {}
        for owner in (body.get("metadata") or {}).get("ownerReferences") or []:
            if owner["kind"] == SANDBOX_CLAIM.kind:
                self.zombie_claims.add(owner["name"])
            elif owner["kind"] == SANDBOX_WARM_POOL.kind:
                self.zombies[owner["name"]] += 1

    # --- sandboxes ----------------------------------------------------------------------------------------------------

    def _sandbox(self, change: Change, writer: str) -> None:
        before = change.previous.decode() if change.previous is not None else None
        after = change.object if change.type != "DELETED" else None
        name = change.entry.key[1]
        was, now = _owner(before, name), _owner(after, name)
        if before is not None and after is not None and was != now:
            _check_transition(name, was, now)
        if was[0] == SANDBOX_CLAIM.kind and writer.partition(" ")[0] in (_POOLS, _TEMPLATES):
            raise Violation("hands off", f"{writer} has written sandbox {name} of claim {was[2]}: {change.type}")
        if before is not None and after is not None and not writer.startswith(_PEOPLE):
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
            self._given.add((now[1], name))
            if len(held) > 1 and now[2] not in self.zombie_claims:
                raise Violation("one sandbox", f"claim {now[2]} owns {', '.join(sorted(held.values()))}")
            if before is None:
                self.cold_starts += 1
            elif was[0] != SANDBOX_CLAIM.kind:
                self.adoptions += 1
            if was[1] != now[1]:
                self._gifts[now[1]] += 1
                if self._gifts[now[1]] > ENOUGH:
                    raise Violation("one sandbox", f"claim {now[2]} goes through one sandbox after the other")

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
            return  # it has gone; the garbage collector takes what is late
        allowed = max([pool.ceiling, *(ceiling for until, ceiling in pool.former if until >= self.time() - MEMORY)])
        allowed += self.zombies[pool.name]
        if members > allowed:
            raise Violation("no more than asked for", f"{name} is member {members} of {pool.name}, {allowed} allowed")

    def _lost(self, pool_uid: str, writer: str, before: Object | None, after: Object | None, name: str) -> None:
        """A ready member is none any more."""
        pool = self._pools.get(pool_uid)
        if pool is None:
            return
        now = self.time()
        is_deleted = after is None or is_deleting(after)
        if not (is_deleted and writer.startswith(_POOLS)):
            pool.lost.append(now)
            return
        if not pool.is_rolling or now - pool.changed < MEMORY:
            return
        while pool.lost and pool.lost[0] < now - MEMORY:
            pool.lost.popleft()
        left = len(self._ready[pool_uid])
        if left + len(pool.lost) < pool.needed:
            details = f"{name} is deleted, {left} of {pool.needed} ready are left of {pool.name}"
            raise Violation("no fewer because of a rollout", details)

    # --- the others ---------------------------------------------------------------------------------------------------

    def _claim(self, change: Change) -> None:
        uid, name = change.entry.uid, change.entry.key[1]
        if change.type == "DELETED":
            self._held.pop(uid, None)
            return
        claim = change.object
        if is_ready(claim):
            self.ready_claims.add(uid)
            box = ((claim.get("status") or {}).get("sandbox") or {}).get("name", "")
            if (uid, box) not in self._given:
                raise Violation("one sandbox", f"claim {name} is ready with {box!r}, which was never its own")

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
            while pool.former and pool.former[0][0] < self.time() - MEMORY:
                pool.former.popleft()
            pool.changed = self.time()
            pool.ceiling, pool.needed, pool.is_rolling = ceiling, needed, is_rolling


def _bounds(rolling: Object, replicas: int) -> tuple[int, int]:
    """How many members a rollout may add, rounded up, and do without, rounded down; at least one of them."""
    surge, unavailable = rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%")
    more = surge if isinstance(surge, int) else math.ceil(replicas * int(surge[:-1]) / 100)
    less = unavailable if isinstance(unavailable, int) else replicas * int(unavailable[:-1]) // 100
    return more, min(replicas, less or (0 if more else 1))


_Owner = tuple[str, str, str]  # kind, UID and name; empty if there is none


def _owner(sandbox: Object | None, name: str) -> _Owner:
    owners = [] if sandbox is None else sandbox["metadata"].get("ownerReferences") or []
    controlling = [each for each in owners if each.get("controller")]
    if len(controlling) > 1:
        raise Violation("one owner", f"sandbox {name} has {len(controlling)}")
    return (controlling[0]["kind"], controlling[0]["uid"], controlling[0]["name"]) if controlling else ("", "", "")


def _check_transition(name: str, was: _Owner, now: _Owner) -> None:
    allowed = {
        SANDBOX_WARM_POOL.kind: (SANDBOX_CLAIM.kind, ""),
        "": (SANDBOX_WARM_POOL.kind,),
        SANDBOX_CLAIM.kind: ("",),  # by the garbage collector, if the claim was deleted as an orphan's owner
    }
    if now[0] not in allowed.get(was[0], ()):
        raise Violation("one owner", f"sandbox {name} of {was[0]} {was[2]} is now of {now[0]} {now[2]}")


def _check_pod_spec(name: str, before: Object, after: Object, writer: str) -> None:
    if before["spec"]["podTemplate"].get("spec") != after["spec"]["podTemplate"].get("spec"):
        raise Violation("hands off", f"{writer} has changed what runs in sandbox {name}")
