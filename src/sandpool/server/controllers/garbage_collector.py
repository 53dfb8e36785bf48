"""Garbage collection by owner references, as kube-controller-manager does it.

An object whose owners are all gone is deleted. How an owner goes decides what becomes of its dependents:

* *background*: the owner goes at once, its dependents afterwards;
* *foreground*: the owner stays, marked with the finalizer ``foregroundDeletion``, until every dependent that says
  ``blockOwnerDeletion`` is gone;
* *orphan*: the owner stays, marked with the finalizer ``orphan``, until no dependent refers to it any more.

The collector follows the feed of committed changes. Only what looks wrong there is read and decided upon. Decisions
are pure functions of what was read; acting on one is a single write, guarded by the uid and version that were looked
at. Nothing is remembered that is not in the objects, so a crash at any point leaves nothing to repair: at the start
the graph is built again, and everything that looks wrong is looked at.

An owner of a kind that is not served can be neither found nor missed. Its dependents are left alone until the kind is
served, unless the owner was seen to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.backlog import Backlog
from sandpool.server.controllers.owner_graph import OwnerKind, Ownership, OwnerState, Ref
from sandpool.server.kinds.metadata import FOREGROUND, ORPHAN

Propagation = Literal["Background", "Foreground", "Orphan"]


class Trace(NamedTuple):
    """What the collector has to know of an object that was there before it started."""

    ref: Ref
    uid: str
    owners: tuple[str, ...]  # uids
    held: bool  # it may have one of the collector's finalizers; true when in doubt


class Objects(Protocol):
    """The store, as the collector needs it."""

    def traces(self) -> Iterable[Trace]:
        """Every object there is."""

    def get(self, ref: Ref) -> Object | None:
        """The newest state of an object."""

    def kind(self, api_version: str, kind: str) -> OwnerKind | None:
        """What an owner reference means by a kind, whatever its version; None if no such kind is served."""

    async def delete(self, ref: Ref, *, uid: str, resource_version: str, propagation: Propagation) -> None:
        """Raises NotFound if it is gone, Conflict if it is not as it was looked at."""

    async def patch(self, ref: Ref, merge_patch: Object) -> None:
        """Raises NotFound if it is gone, Conflict if it is not as it was looked at (``metadata.resourceVersion``)."""


# Decisions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the object alone."""


@dataclass(frozen=True, slots=True)
class Unlink:
    """Take away the references to owners that are gone or going: others remain."""

    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Delete:
    propagation: Propagation


Action = Keep | Unlink | Delete


def decide(owners: Mapping[str, OwnerState], *, finalizers: Iterable[str] = (), has_dependents: bool = False) -> Action:
    """What to do with an object that has these owners, by uid, and is not being deleted yet."""
    states = set(owners.values())
    if not states or OwnerState.UNKNOWN in states:
        return Keep()
    if OwnerState.SOLID in states:
        lost = frozenset(uid for uid, state in owners.items() if state is not OwnerState.SOLID)
        return Unlink(lost) if lost else Keep()
    if OwnerState.WAITING in states and has_dependents:
        return Delete("Foreground")
    if ORPHAN in finalizers:
        return Delete("Orphan")
    return Delete("Foreground" if FOREGROUND in finalizers else "Background")


def without_owners(references: list[Object], uids: Iterable[str]) -> list[Object]:
    gone = set(uids)
    return [reference for reference in references if reference.get("uid") not in gone]


# The collector ------------------------------------------------------------------------------------------------------


class GarbageCollector:
    def __init__(self, objects: Objects, clock: Clock) -> None:
        self.objects = objects
        self.backlog: Backlog[Ref] = Backlog(self._examine, clock)
        self._ownership = Ownership(objects.kind)
        self._unknown: set[Ref] = set()  # objects with an owner of a kind that is not served

    async def run(self) -> None:
        """Collect until cancelled, beginning with ``start``."""
        self.start()
        await self.backlog.run()

    def start(self) -> None:
        """Learn what is there, and put everything that looks wrong on the backlog.

        No change may be committed between this and the first call of ``notice``.
        """
        traces = list(self.objects.traces())
        for trace in traces:
            self._ownership.add(trace.ref, trace.uid, dict.fromkeys(trace.owners))
        for trace in traces:
            if trace.held and (obj := self.objects.get(trace.ref)) is not None:
                self._note_deletion(trace.ref, obj["metadata"])
        for trace in traces:
            if not all(self._ownership.is_plausible(uid, trace.ref) for uid in trace.owners):
                self.backlog.add(trace.ref)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """A committed change: ADDED, MODIFIED or DELETED, with the object as it is or was."""
        metadata: Object = obj["metadata"]
        graph, uid = self._ownership, metadata["uid"]
        concerned = {*graph.owners(ref)}
        if type == "DELETED":
            graph.remove(ref, uid)
            self._unknown.discard(ref)
            for dependent in graph.dependents(uid):
                self.backlog.add(dependent)
        else:
            references = metadata.get("ownerReferences") or []
            owners = {reference["uid"]: bool(reference.get("blockOwnerDeletion")) for reference in references}
            graph.add(ref, uid, owners)
            concerned |= owners.keys()
            if any(graph.state(reference, ref.namespace) is not OwnerState.SOLID for reference in references):
                self.backlog.add(ref)
            if metadata.get("deletionTimestamp"):
                self._note_deletion(ref, metadata)
        # An owner in foreground deletion may have been waiting for just this.
        for owner in concerned & graph.waiting.keys():
            self.backlog.add(graph.waiting[owner])

    def kinds_changed(self) -> None:
        """Other kinds are served than before: what became of an owner may be told now."""
        for ref in self._unknown:
            self.backlog.add(ref)
        self._unknown.clear()

    def _note_deletion(self, ref: Ref, metadata: Object) -> None:
        """Take up a deletion that is the collector's to finish."""
        if self._ownership.note_deletion(ref, metadata):
            for dependent in self._ownership.dependents(metadata["uid"]):
                self.backlog.add(dependent)
        if metadata.get("deletionTimestamp") and {ORPHAN, FOREGROUND} & {*(metadata.get("finalizers") or ())}:
            self.backlog.add(ref)

    # -- acting ------------------------------------------------------------------------------------------------------

    async def _examine(self, ref: Ref) -> None:
        obj = self.objects.get(ref)
        if obj is None:
            return
        metadata = obj["metadata"]
        try:
            if metadata.get("deletionTimestamp"):
                await self._finish_deletion(ref, metadata)
            else:
                await self._collect(ref, metadata)
        except NotFound:
            return  # somebody else was faster

    async def _collect(self, ref: Ref, metadata: Object) -> None:
        references = metadata.get("ownerReferences") or []
        owners = {reference["uid"]: self._ownership.state(reference, ref.namespace) for reference in references}
        if OwnerState.UNKNOWN in owners.values():
            self._unknown.add(ref)
        dependents = self._ownership.dependents(metadata["uid"])
        action = decide(
            owners,
            finalizers=metadata.get("finalizers") or (),
            has_dependents=bool(dependents),
        )
        match action:
            case Unlink(lost):
                await self._write(ref, metadata, ownerReferences=without_owners(references, lost))
            case Delete(propagation):
                await self.objects.delete(
                    ref, uid=metadata["uid"], resource_version=metadata["resourceVersion"], propagation=propagation
                )

    async def _finish_deletion(self, ref: Ref, metadata: Object) -> None:
        uid, finalizers = metadata["uid"], metadata.get("finalizers") or []
        if ORPHAN in finalizers:
            dependents = list(self._ownership.dependents(uid))
            await asyncio.gather(*(self._orphan(dependent, uid) for dependent in dependents))
            await self._write(ref, metadata, finalizers=[name for name in finalizers if name != ORPHAN])
        elif FOREGROUND in finalizers and not self._is_held_up(ref, uid):
            await self._write(ref, metadata, finalizers=[name for name in finalizers if name != FOREGROUND])

    def _is_held_up(self, ref: Ref, uid: str) -> bool:
        """Whether an owner still has a dependent that it must wait for.

        Objects that wait for each other in a circle, and for nothing outside it, would wait forever: none of them has
        to. (kube-controller-manager breaks the circles it notices by giving up ``blockOwnerDeletion``.)
        """
        below = self._waits_for(ref, uid)
        return below is None or any(
            uid not in (self._waits_for(self._ownership.waiting[each], each) or ()) for each in below - {uid}
        )

    def _waits_for(self, ref: Ref, uid: str) -> set[str] | None:
        """The objects in foreground deletion, by uid, that one waits for, and those that these wait for in turn; None
        if among them is one that is not in foreground deletion."""
        waiting = {place: each for each, place in self._ownership.waiting.items()}
        found: set[str] = set()
        ahead = [(ref, uid)]
        while ahead:
            for dependent in self._blocking(*ahead.pop()):
                if dependent not in waiting:
                    return None
                if waiting[dependent] not in found:
                    found.add(waiting[dependent])
                    ahead.append((dependent, waiting[dependent]))
        return found

    def _blocking(self, ref: Ref, uid: str) -> Iterator[Ref]:
        for dependent, blocks in self._ownership.dependents(uid).items():
            if ref.namespace and dependent.namespace != ref.namespace:
                continue  # a reference that means nothing
            if blocks is None:
                blocks = any(
                    reference.get("uid") == uid and reference.get("blockOwnerDeletion")
                    for reference in self._references(dependent)
                )
                self._ownership.settle(dependent, uid, blocks)
            if blocks:
                yield dependent

    def _references(self, ref: Ref) -> list[Object]:
        obj = self.objects.get(ref)
        return (obj["metadata"].get("ownerReferences") or []) if obj is not None else []

    async def _orphan(self, ref: Ref, owner: str) -> None:
        obj = self.objects.get(ref)
        references = self._references(ref)
        remaining = without_owners(references, [owner])
        if obj is None or len(remaining) == len(references):
            return
        try:
            await self._write(ref, obj["metadata"], ownerReferences=remaining)
        except NotFound:
            return

    async def _write(self, ref: Ref, metadata: Object, **changes: list[Object] | list[str]) -> None:
        """Change the metadata that was looked at, and nothing newer."""
        guard = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self.objects.patch(ref, {"metadata": {**guard, **{key: value or None for key, value in changes.items()}}})
