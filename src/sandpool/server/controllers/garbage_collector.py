"""Garbage collection by owner references, as kube-controller-manager does it.

An object is deleted when all its owners are gone. The propagation policy of an owner decides about its dependents:

* *background*: the owner is removed at once, its dependents afterwards;
* *foreground*: the owner stays, with the finalizer ``foregroundDeletion``, until all dependents with
  ``blockOwnerDeletion`` are gone;
* *orphan*: the owner stays, with the finalizer ``orphan``, until no dependent refers to it.

The collector observes committed changes and enqueues only objects whose owners may be gone. Decisions are pure
functions of the observed objects; each leads to one write with the uid and resourceVersion as preconditions. The
collector keeps no state that is not in the objects, so a crash leaves nothing to repair: start-up builds the graph
again and enqueues every suspicious object.

Whether an owner of an unserved kind exists is unknown. Its dependents stay until the kind is served, unless the
collector observed the deletion of the owner.

Behind a kube-apiserver the objects of its API may depend on ours, and this collector cannot see them. There it is
``partial``: it deletes objects whose owners are gone, and leaves all that a finalizer announces to the collector of
kube-controller-manager, which sees both APIs. A deletion of either collector has the uid as its precondition, so it
does not matter which is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple, Protocol

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.owner_graph import OwnerGraph, OwnerKind, OwnerState, Ref
from sandpool.server.kinds.metadata import FOREGROUND, ORPHAN

Propagation = Literal["Background", "Foreground", "Orphan"]
# A reconcile mostly waits for the disk, and concurrent writes share one sync.
_WORKERS: Final = 64


class OwnedObject(NamedTuple):
    """The owner references of an object that exists when the collector starts."""

    ref: Ref
    uid: str
    owners: tuple[str, ...]  # uids
    held: bool  # whether it may have a finalizer of the collector; True if unknown


class Objects(Protocol):
    """The operations that the collector needs."""

    def owned_objects(self) -> Iterable[OwnedObject]:
        """All objects."""

    def get(self, ref: Ref) -> Object | None:
        """The newest accepted state of an object."""

    def kind(self, api_version: str, kind: str) -> OwnerKind | None:
        """The resource of a kind in an owner reference, of any version; None if the kind is not served."""

    async def delete(self, ref: Ref, *, uid: str, resource_version: str, propagation: Propagation) -> None:
        """Raises NotFound if it is gone, Conflict if it has changed."""

    async def patch(self, ref: Ref, merge_patch: Object) -> None:
        """Raises NotFound if it is gone, Conflict if ``metadata.resourceVersion`` is outdated."""


# Decisions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Unlink:
    """Remove the references to owners that are gone or being deleted; others remain."""

    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Delete:
    propagation: Propagation


Action = Keep | Unlink | Delete


def decide(owners: Mapping[str, OwnerState], *, finalizers: Iterable[str] = (), has_dependents: bool = False) -> Action:
    """Decide about an object with these owners, by uid, that is not being deleted."""
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
    def __init__(self, objects: Objects, clock: Clock, rng: Random, *, partial: bool = False) -> None:
        """``partial``: another collector finishes foreground and orphan deletions."""
        self.objects = objects
        self.partial = partial
        #: Required of every controller of the server. ``ApiServer`` passes all changes to the collector anyway.
        self.resources: Container[str] | None = None
        self.controller = Controller(
            "garbage-collector", self._reconcile, clock, rng, workers=_WORKERS, quiet_failures=4
        )
        self._graph = OwnerGraph(objects.kind)
        self._unknown: set[Ref] = set()  # objects with an owner of an unserved kind

    def start(self) -> None:
        """Build the graph and enqueue suspicious objects.

        No change may be committed between this and the first call of ``notice``.
        """
        existing = list(self.objects.owned_objects())
        for found in existing:
            self._graph.add(found.ref, found.uid, dict.fromkeys(found.owners))
        for found in existing:
            if found.held and (obj := self.objects.get(found.ref)) is not None:
                self._note_deletion(found.ref, obj["metadata"])
        for found in existing:
            if not all(self._graph.is_plausible(uid, found.ref) for uid in found.owners):
                self.controller.enqueue(found.ref)

    def notice(self, type: str, ref: Ref, obj: Object, before: Object | None = None) -> None:
        """Handle a committed change: ADDED, MODIFIED or DELETED, with the current or last state of the object.

        ``before`` is the state that it replaces, where the store keeps it decoded. Most writes copy the owners from
        there, and then nothing has changed for the graph: ``before`` was noticed, too, because the states that the
        graph was built from at the start are not kept decoded.
        """
        metadata: Object = obj["metadata"]
        graph, uid = self._graph, metadata["uid"]
        if (
            before is not None
            and not graph.waiting
            and type == "MODIFIED"
            and metadata.get("ownerReferences") is before["metadata"].get("ownerReferences")
            and "deletionTimestamp" not in metadata
        ):
            return
        affected = {*graph.owners(ref)} if graph.waiting else set()
        if type == "DELETED":
            graph.remove(ref, uid)
            self._unknown.discard(ref)
            for dependent in graph.dependents(uid):
                self.controller.enqueue(dependent)
        else:
            references = metadata.get("ownerReferences") or []
            owners = {reference["uid"]: bool(reference.get("blockOwnerDeletion")) for reference in references}
            graph.add(ref, uid, owners)
            if graph.waiting:
                affected |= owners.keys()
            for reference in references:
                if graph.state(reference, ref.namespace) is not OwnerState.SOLID:
                    self.controller.enqueue(ref)
            if metadata.get("deletionTimestamp"):
                self._note_deletion(ref, metadata)
        # An owner in foreground deletion may have waited for this change.
        if affected:
            for owner in affected & graph.waiting.keys():
                self.controller.enqueue(graph.waiting[owner])

    def kinds_changed(self) -> None:
        """Enqueue objects with owners of unserved kinds, because the served kinds have changed."""
        for ref in self._unknown:
            self.controller.enqueue(ref)
        self._unknown.clear()

    def _note_deletion(self, ref: Ref, metadata: Object) -> None:
        """Enqueue a deletion that the collector must finish."""
        if self._graph.note_deletion(ref, metadata):
            for dependent in self._graph.dependents(metadata["uid"]):
                self.controller.enqueue(dependent)
        if metadata.get("deletionTimestamp") and {ORPHAN, FOREGROUND} & {*(metadata.get("finalizers") or ())}:
            self.controller.enqueue(ref)

    # -- reconcile ---------------------------------------------------------------------------------------------------

    async def _reconcile(self, ref: Ref) -> Result:
        obj = self.objects.get(ref)
        if obj is None:
            return DONE
        metadata = obj["metadata"]
        try:
            if not metadata.get("deletionTimestamp"):
                await self._collect(ref, metadata)
            elif not self.partial:
                await self._finish_deletion(ref, metadata)
        except NotFound:
            pass  # deleted meanwhile
        return DONE

    async def _collect(self, ref: Ref, metadata: Object) -> None:
        references = metadata.get("ownerReferences") or []
        owners = {reference["uid"]: self._graph.state(reference, ref.namespace) for reference in references}
        if OwnerState.UNKNOWN in owners.values():
            self._unknown.add(ref)
        if self.partial and OwnerState.WAITING in owners.values():
            return
        dependents = self._graph.dependents(metadata["uid"])
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
            dependents = list(self._graph.dependents(uid))
            await asyncio.gather(*(self._orphan(dependent, uid) for dependent in dependents))
            await self._write(ref, metadata, finalizers=[name for name in finalizers if name != ORPHAN])
        elif FOREGROUND in finalizers and not self._is_blocked(ref, uid):
            await self._write(ref, metadata, finalizers=[name for name in finalizers if name != FOREGROUND])

    def _is_blocked(self, ref: Ref, uid: str) -> bool:
        """Whether a dependent still blocks the deletion of an owner.

        Objects in a cycle that wait only for each other would wait forever, so they do not block. (For cycles it
        notices, kube-controller-manager removes ``blockOwnerDeletion``.)
        """
        below = self._waits_for(ref, uid)
        return below is None or any(
            uid not in (self._waits_for(self._graph.waiting[each], each) or ()) for each in below - {uid}
        )

    def _waits_for(self, ref: Ref, uid: str) -> set[str] | None:
        """The objects in foreground deletion, by uid, that this one waits for, transitively; None if one of them is not
        in foreground deletion."""
        waiting = {place: each for each, place in self._graph.waiting.items()}
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
        for dependent, blocks in self._graph.dependents(uid).items():
            if ref.namespace and dependent.namespace != ref.namespace:
                continue  # an invalid reference
            if blocks is None:
                blocks = any(
                    reference.get("uid") == uid and reference.get("blockOwnerDeletion")
                    for reference in self._references(dependent)
                )
                self._graph.set_blocking(dependent, uid, blocks)
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
        """Patch metadata, with the observed uid and resourceVersion as preconditions."""
        guard = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self.objects.patch(ref, {"metadata": {**guard, **{key: value or None for key, value in changes.items()}}})
