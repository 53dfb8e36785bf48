"""The timeline of one claim or one sandbox: every call about it, its sandbox and its pod, with the purpose of each.

Reconciles are included if the log has them. The log is read several times. The first readings find the related objects
and when they were created, because a pool creates a sandbox long before a claim adopts it; the last one collects the
calls about all of them.

A name may have had several objects, one after the other. A timeline is of one: the last, or the one that existed at a
given moment. Our own audit log has no UIDs, so objects of one name are told apart by their creations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM
from sandpool.explain.calls import Call, Reconcile, joined, read_calls, read_entries
from sandpool.explain.purpose import outcome, purpose

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
#: A creationTimestamp has no fractions of its second.
_SECOND: Final = timedelta(seconds=1)

Lines = Callable[[], Iterable[bytes]]  # returns the lines of a log, from its beginning each time


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time in which a name belongs to one object: until the next creation of that name."""

    begin: datetime = _FIRST
    end: datetime = _LAST

    def covers(self, moment: datetime) -> bool:
        return self.begin <= moment < self.end


_ALWAYS: Final = Lifetime()


@dataclass(frozen=True, slots=True)
class RelatedObjects:
    """The names of related objects in one namespace. ``lifetimes`` are by plural and name; without one, all calls about
    a name are about the object."""

    namespace: str
    claims: frozenset[str]
    sandboxes: frozenset[str]
    pods: frozenset[str] = frozenset()  # pods with another name than their sandbox
    lifetimes: Mapping[tuple[str, str], Lifetime] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        return self.claims | self.sandboxes | self.pods

    def concerns(self, entry: Call | Reconcile) -> bool:
        if isinstance(entry, Reconcile):
            plural = {SANDBOX.singular: SANDBOX.plural, SANDBOX_CLAIM.singular: SANDBOX_CLAIM.plural}.get(entry.kind)
            return entry.namespace == self.namespace and self._is_one(plural or "", entry.name, entry.started)
        request = entry.request
        if request.namespace != self.namespace:
            return False
        if request.resource == EVENT.plural:
            # The name of an event is the name of its object and a timestamp.
            name = request.name.rpartition(".")[0]
            kinds = (SANDBOX_CLAIM.plural, SANDBOX.plural, POD.plural)
            return any(self._is_one(plural, name, entry.started) for plural in kinds)
        return self._is_one(request.resource, request.name, entry.started)

    def _is_one(self, plural: str, name: str, moment: datetime) -> bool:
        names = {
            SANDBOX_CLAIM.plural: self.claims,
            SANDBOX.plural: self.sandboxes,
            POD.plural: self.sandboxes | self.pods,
        }
        return name in names.get(plural, ()) and self.lifetimes.get((plural, name), _ALWAYS).covers(moment)


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    entry: Call | Reconcile
    delta_ms: float  # since the start of the previous step
    purpose: str


def objects_of_claim(lines: Lines, namespace: str, name: str, created: datetime | None = None) -> RelatedObjects:
    """A claim and every sandbox it has owned.

    Of several claims that had the name it is the last one, or the one with ``created`` as its creationTimestamp.
    """
    history = _History()
    owned: defaultdict[str, list[Call]] = defaultdict(list)
    for call in _calls(lines, [name]):
        if _is(call, SANDBOX_CLAIM.plural, namespace) and call.request.name == name:
            history.add(call)
        elif _is(call, SANDBOX.plural, namespace) and call.owner_of_kind(SANDBOX_CLAIM.kind) == name:
            owned[call.request.name].append(call)
    lifetime = history.lifetime(SANDBOX_CLAIM.plural, name, None if created is None else created + _SECOND)
    sandboxes = {box: since for box, calls in owned.items() if (since := _owned_since(calls, lifetime)) is not None}
    return _related(lines, namespace, {name: lifetime}, sandboxes)


def objects_of_sandbox(lines: Lines, namespace: str, name: str) -> RelatedObjects:
    """A sandbox and every claim that has owned it. Of several sandboxes that had the name it is the last one."""
    calls = [
        call for call in _calls(lines, [name]) if _is(call, SANDBOX.plural, namespace) and call.request.name == name
    ]
    lifetime = _History(calls).lifetime(SANDBOX.plural, name)
    owners: dict[str, datetime] = {}
    for call in calls:
        if lifetime.covers(call.started) and (owner := call.owner_of_kind(SANDBOX_CLAIM.kind)):
            owners[owner] = min(call.started, owners.get(owner, call.started))
    of_claims = _History(call for call in _calls(lines, owners) if _is(call, SANDBOX_CLAIM.plural, namespace))
    claims = {owner: of_claims.lifetime(SANDBOX_CLAIM.plural, owner, since) for owner, since in owners.items()}
    return _related(lines, namespace, claims, {name: None})


def timeline(lines: Lines, related: RelatedObjects, *, writes_only: bool = False) -> list[Step]:
    """The calls and reconciles about the objects, by start time. Watches and lists are left out."""
    entries = joined(entry for entry in read_entries(lines(), mentioning=related.names) if related.concerns(entry))
    if writes_only:
        entries = [entry for entry in entries if isinstance(entry, Call) and entry.request.writes]
    entries.sort(key=lambda entry: entry.started)
    steps: list[Step] = []
    known: dict[tuple[str, str], Call] = {}  # the last write of each object, with its known state
    for number, entry in enumerate(entries, 1):
        delta = (entry.started - entries[max(0, number - 2)].started).total_seconds() * 1000
        if isinstance(entry, Reconcile):
            steps.append(Step(number, entry, delta, outcome(entry)))
            continue
        which = (entry.request.resource, entry.request.name)
        last = known.get(which)
        steps.append(Step(number, entry, delta, purpose(entry, last)))
        if not entry.succeeded:
            continue
        if entry.request.verb == "delete":
            known.pop(which, None)  # an object of this name is another one from now on
        elif entry.request.writes and (entry.owner or entry.ready):
            known[which] = entry if last is None or entry.creates else _together(last, entry)
    return steps


def _together(last: Call, call: Call) -> Call:
    """Merge a call with the earlier state: without response bodies the log only has the patched fields."""
    call = replace(call, owner=call.owner or last.owner)
    return call if call.ready else replace(call, ready=last.ready, ready_reason=last.ready_reason)


class _History:
    """When names were used, and when objects of these names were created, by plural and name."""

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self._creations: defaultdict[tuple[str, str], list[datetime]] = defaultdict(list)
        self._first: dict[tuple[str, str], datetime] = {}
        for call in calls:
            self.add(call)

    def add(self, call: Call) -> None:
        which = (call.request.resource, call.request.name)
        self._first[which] = min(call.started, self._first.get(which, call.started))
        if call.creates:
            self._creations[which].append(call.started)

    def lifetime(self, plural: str, name: str, moment: datetime | None = None) -> Lifetime:
        """The lifetime of the object that had a name at a moment, by default of the last one.

        It begins with the log unless another object had the name before: creations that were refused belong to it.
        """
        creations = sorted(self._creations.get((plural, name), ()))
        number = bisect_right(creations, moment) if moment is not None else len(creations)
        end = creations[number] if number < len(creations) else _LAST
        if number == 0 or self._first[plural, name] >= creations[number - 1]:
            return Lifetime(end=end)
        return Lifetime(creations[number - 1], end)


def _owned_since(calls: Sequence[Call], lifetime: Lifetime) -> datetime | None:
    """When the claim with this lifetime began to own a sandbox; None if an earlier claim of its name did, whose sandbox
    may be deleted only after the next claim was created."""
    within = [call for call in calls if lifetime.covers(call.started) and call.request.verb != "delete"]
    if any(call.creates for call in within) or all(call.started >= lifetime.begin for call in calls):
        return min((call.started for call in within), default=None)
    return None


def _related(
    lines: Lines, namespace: str, claims: Mapping[str, Lifetime], sandboxes: Mapping[str, datetime | None]
) -> RelatedObjects:
    """Add the pods of sandboxes, which are given with a moment of their lives; None for the last of their name."""
    history = _History()
    pods: dict[str, str] = {}  # the sandboxes of pods with another name
    for call in _calls(lines, sandboxes):
        if _is(call, SANDBOX.plural, namespace) and call.request.name in sandboxes:
            history.add(call)
        elif _is(call, POD.plural, namespace) and (owner := call.owner_of_kind(SANDBOX.kind)) in sandboxes:
            pods[call.request.name] = owner
    lifetimes = {(SANDBOX_CLAIM.plural, name): lifetime for name, lifetime in claims.items()}
    for name, moment in sandboxes.items():
        lifetime = history.lifetime(SANDBOX.plural, name, moment)
        lifetimes[SANDBOX.plural, name] = lifetimes[POD.plural, name] = lifetime
    for pod, owner in pods.items():
        lifetimes[POD.plural, pod] = lifetimes[SANDBOX.plural, owner]
    others = frozenset(pods) - sandboxes.keys()
    return RelatedObjects(namespace, frozenset(claims), frozenset(sandboxes), others, lifetimes)


def _calls(lines: Lines, names: Collection[str]) -> Iterable[Call]:
    """The calls that mention one of the names; none without names, which would be all calls."""
    return joined(read_calls(lines(), mentioning=names)) if names else ()


def _is(call: Call, resource: str, namespace: str) -> bool:
    return call.succeeded and call.request.resource == resource and call.request.namespace == namespace
