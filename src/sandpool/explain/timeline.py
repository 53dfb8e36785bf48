"""The timeline of one claim or one sandbox: every call about it, its sandbox and its pod, and what each was for; and
every pass of a controller over it, where that was noted.

A log is read twice. The first pass finds out what belongs together, because a sandbox is made, and watched over by its
pool, long before anybody knows which claim will get it; the second takes the calls about all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM
from sandpool.explain.calls import Call, Pass, read_calls, read_entries
from sandpool.explain.purpose import outcome, purpose

Lines = Callable[[], Iterable[bytes]]  # the lines of a log, from its beginning each time it is called


@dataclass(frozen=True, slots=True)
class Cast:
    """The names of what belongs together in one namespace."""

    namespace: str
    claims: frozenset[str]
    sandboxes: frozenset[str]
    pods: frozenset[str] = frozenset()  # those that are not named like their sandbox

    @property
    def names(self) -> frozenset[str]:
        return self.claims | self.sandboxes | self.pods

    def concerns(self, entry: Call | Pass) -> bool:
        if isinstance(entry, Pass):
            about = {SANDBOX.singular: self.sandboxes, SANDBOX_CLAIM.singular: self.claims}.get(entry.kind, frozenset())
            return entry.namespace == self.namespace and entry.name in about
        asked = entry.asked
        if asked.namespace != self.namespace:
            return False
        if asked.resource == SANDBOX_CLAIM.plural:
            return asked.name in self.claims
        if asked.resource == SANDBOX.plural:
            return asked.name in self.sandboxes
        if asked.resource == POD.plural:
            return asked.name in self.sandboxes or asked.name in self.pods
        # An event is named after what it is about, and the time.
        return asked.resource == EVENT.plural and asked.name.rpartition(".")[0] in self.names


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    entry: Call | Pass
    delta_ms: float  # since the step before began
    purpose: str


def claim_cast(lines: Lines, namespace: str, name: str) -> Cast:
    """A claim, and every sandbox that was its own at some time."""
    sandboxes = {
        call.asked.name
        for call in read_calls(lines(), mentioning=[name])
        if _is(call, SANDBOX.plural, namespace) and call.owner_of_kind(SANDBOX_CLAIM.kind) == name
    }
    return _with_pods(lines, Cast(namespace, frozenset({name}), frozenset(sandboxes)))


def sandbox_cast(lines: Lines, namespace: str, name: str) -> Cast:
    """A sandbox, and every claim that it was given to."""
    owners = {
        call.owner_of_kind(SANDBOX_CLAIM.kind)
        for call in read_calls(lines(), mentioning=[name])
        if _is(call, SANDBOX.plural, namespace) and call.asked.name == name
    }
    return _with_pods(lines, Cast(namespace, frozenset(owners - {""}), frozenset({name})))


def timeline(lines: Lines, cast: Cast, *, writes_only: bool = False) -> list[Step]:
    """The calls and passes about the cast, in the order in which they began; watches and lists are about everybody."""
    entries = [entry for entry in read_entries(lines(), mentioning=cast.names) if cast.concerns(entry)]
    if writes_only:
        entries = [entry for entry in entries if isinstance(entry, Call) and entry.asked.writes]
    entries.sort(key=lambda entry: entry.started)
    steps: list[Step] = []
    known: dict[tuple[str, str], Call] = {}  # the last write of each object, with all that is known of it by then
    for number, entry in enumerate(entries, 1):
        delta = (entry.started - entries[max(0, number - 2)].started).total_seconds() * 1000
        if isinstance(entry, Pass):
            steps.append(Step(number, entry, delta, outcome(entry)))
            continue
        which = (entry.asked.resource, entry.asked.name)
        last = known.get(which)
        steps.append(Step(number, entry, delta, purpose(entry, last)))
        if entry.asked.writes and entry.succeeded and (entry.owner or entry.ready):
            known[which] = entry if last is None else _together(last, entry)
    return steps


def _together(last: Call, call: Call) -> Call:
    """A log without answers has only the part that a patch was about; the rest is as it was."""
    call = replace(call, owner=call.owner or last.owner)
    return call if call.ready else replace(call, ready=last.ready, ready_reason=last.ready_reason)


def _with_pods(lines: Lines, cast: Cast) -> Cast:
    pods = {
        call.asked.name
        for call in read_calls(lines(), mentioning=cast.sandboxes)
        if _is(call, POD.plural, cast.namespace) and call.owner_of_kind(SANDBOX.kind) in cast.sandboxes
    }
    return Cast(cast.namespace, cast.claims, cast.sandboxes, frozenset(pods - cast.sandboxes))


def _is(call: Call, resource: str, namespace: str) -> bool:
    return call.succeeded and call.asked.resource == resource and call.asked.namespace == namespace
