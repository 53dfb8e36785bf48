"""The timeline of one claim or one sandbox: every call about it, its sandbox and its pod, with the purpose of each.

Reconciles are included if the log has them. The log is read twice. The first reading finds the related objects, because
a pool creates a sandbox long before a claim adopts it; the second collects the calls about all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM
from sandpool.explain.calls import Call, Reconcile, read_calls, read_entries
from sandpool.explain.purpose import outcome, purpose

Lines = Callable[[], Iterable[bytes]]  # returns the lines of a log, from its beginning each time


@dataclass(frozen=True, slots=True)
class RelatedObjects:
    """The names of related objects in one namespace."""

    namespace: str
    claims: frozenset[str]
    sandboxes: frozenset[str]
    pods: frozenset[str] = frozenset()  # pods with another name than their sandbox

    @property
    def names(self) -> frozenset[str]:
        return self.claims | self.sandboxes | self.pods

    def concerns(self, entry: Call | Reconcile) -> bool:
        if isinstance(entry, Reconcile):
            about = {SANDBOX.singular: self.sandboxes, SANDBOX_CLAIM.singular: self.claims}.get(entry.kind, frozenset())
            return entry.namespace == self.namespace and entry.name in about
        request = entry.request
        if request.namespace != self.namespace:
            return False
        if request.resource == SANDBOX_CLAIM.plural:
            return request.name in self.claims
        if request.resource == SANDBOX.plural:
            return request.name in self.sandboxes
        if request.resource == POD.plural:
            return request.name in self.sandboxes or request.name in self.pods
        # The name of an event is the name of its object and a timestamp.
        return request.resource == EVENT.plural and request.name.rpartition(".")[0] in self.names


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    entry: Call | Reconcile
    delta_ms: float  # since the start of the previous step
    purpose: str


def objects_of_claim(lines: Lines, namespace: str, name: str) -> RelatedObjects:
    """A claim and every sandbox it has owned."""
    sandboxes = {
        call.request.name
        for call in read_calls(lines(), mentioning=[name])
        if _is(call, SANDBOX.plural, namespace) and call.owner_of_kind(SANDBOX_CLAIM.kind) == name
    }
    return _with_pods(lines, RelatedObjects(namespace, frozenset({name}), frozenset(sandboxes)))


def objects_of_sandbox(lines: Lines, namespace: str, name: str) -> RelatedObjects:
    """A sandbox and every claim that has owned it."""
    owners = {
        call.owner_of_kind(SANDBOX_CLAIM.kind)
        for call in read_calls(lines(), mentioning=[name])
        if _is(call, SANDBOX.plural, namespace) and call.request.name == name
    }
    return _with_pods(lines, RelatedObjects(namespace, frozenset(owners - {""}), frozenset({name})))


def timeline(lines: Lines, related: RelatedObjects, *, writes_only: bool = False) -> list[Step]:
    """The calls and reconciles about the objects, by start time. Watches and lists are left out."""
    entries = [entry for entry in read_entries(lines(), mentioning=related.names) if related.concerns(entry)]
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
        if entry.request.writes and entry.succeeded and (entry.owner or entry.ready):
            known[which] = entry if last is None else _together(last, entry)
    return steps


def _together(last: Call, call: Call) -> Call:
    """Merge a call with the earlier state: without response bodies the log only has the patched fields."""
    call = replace(call, owner=call.owner or last.owner)
    return call if call.ready else replace(call, ready=last.ready, ready_reason=last.ready_reason)


def _with_pods(lines: Lines, related: RelatedObjects) -> RelatedObjects:
    pods = {
        call.request.name
        for call in read_calls(lines(), mentioning=related.sandboxes)
        if _is(call, POD.plural, related.namespace) and call.owner_of_kind(SANDBOX.kind) in related.sandboxes
    }
    return RelatedObjects(related.namespace, related.claims, related.sandboxes, frozenset(pods - related.sandboxes))


def _is(call: Call, resource: str, namespace: str) -> bool:
    return call.succeeded and call.request.resource == resource and call.request.namespace == namespace
