"""The CRD controller: accepts names, serves the kind, and deletes its objects with the definition.

The controller observes committed changes. It serves a definition as soon as its names do not conflict; the status
follows. Deleting a definition only marks it: the controller deletes the objects of the kind and removes the finalizer
after the last one. It keeps no state that is not in the objects, so a crash leaves nothing to repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import Final, Protocol

from sandpool.api.columns import from_printer_columns
from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.shape import Shape, from_openapi
from sandpool.engine.clock import Clock, timestamp
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.crd_names import accept_names, status_of
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.kinds.crds import FINALIZER, has_condition, set_condition
from sandpool.server.kinds.sandboxes import strategy_of
from sandpool.server.resources import Resource, ScalePaths

_DEFINITIONS: Final = CUSTOM_RESOURCE_DEFINITION.group_resource
_WORKERS: Final = 4
# In the order of discovery documents for custom resources.
_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
# Objects of a terminating kind that are deleted concurrently.
_CONCURRENT: Final = 256


class Objects(Protocol):
    """The operations that the controller needs."""

    def get(self, ref: Ref) -> Object | None:
        """The newest accepted state of an object."""

    def instances(self, resource: str) -> Iterable[tuple[Ref, Object]]:
        """All objects of a group resource, served or not."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is outdated."""

    async def delete(self, ref: Ref, *, uid: str) -> None:
        """Raises NotFound, and Conflict if the uid differs."""


# Served resources of a definition ----------------------------------------------------------------------------------


def from_crd(definition: Object) -> list[Resource]:
    """The resources of a definition: one for each served version."""
    spec = definition["spec"]
    versions = spec.get("versions") or []
    storage = next(version["name"] for version in versions if version.get("storage"))
    return [_resource(definition, version, storage) for version in versions if version.get("served")]


def _resource(definition: Object, version: Object, storage: str) -> Resource:
    spec, subresources = definition["spec"], version.get("subresources") or {}
    names, scale = spec["names"], subresources.get("scale")
    type = ResourceType(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        namespaced=spec.get("scope") == "Namespaced",
        singular=names.get("singular") or "",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        list_kind=names.get("listKind") or "",
        subresources=frozenset(name for name in ("status", "scale") if subresources.get(name) is not None),
        verbs=_VERBS,
    )
    selectable = [field["jsonPath"] for field in version.get("selectableFields") or ()]
    terminating = bool(definition["metadata"].get("deletionTimestamp"))
    resource = Resource(
        type,
        partial(_shape, (version.get("schema") or {}).get("openAPIV3Schema") or {}),
        strategy_of(type)(selectable, namespaced=type.namespaced, terminating=terminating),
        columns=from_printer_columns(version.get("additionalPrinterColumns") or ()),
        custom=True,
        deprecation_warning=_warning(type, version),
    )
    if scale is not None:
        selector = scale.get("labelSelectorPath") or ""
        resource.scale = ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], selector)
    stored_as = {storage, *((definition.get("status") or {}).get("storedVersions") or ())}
    if stored_as != {type.version}:
        # Versions differ in name only. Objects may be stored in a former storage version.
        resource.from_stored = partial(_rename, type.api_version)
        resource.to_stored = partial(_rename, f"{type.group}/{storage}") if storage != type.version else None
    return resource


def _shape(schema: Object) -> Shape:
    return from_openapi(schema)


def _rename(api_version: str, obj: Object) -> Object:
    return obj if obj.get("apiVersion") == api_version else {**obj, "apiVersion": api_version}


def _warning(type: ResourceType, version: Object) -> str:
    if not version.get("deprecated"):
        return ""
    return version.get("deprecationWarning") or f"{type.api_version} {type.kind} is deprecated"


# The controller ------------------------------------------------------------------------------------------------------


class CrdController:
    """Calls ``publish`` with the name of a definition and its served resources; none if it was deleted."""

    def __init__(
        self, objects: Objects, clock: Clock, rng: Random, publish: Callable[[str, list[Resource]], None]
    ) -> None:
        self.objects = objects
        self.clock = clock
        self.publish = publish
        self.controller = Controller("crd", self._reconcile, clock, rng, workers=_WORKERS, quiet_failures=4)
        self._served: dict[str, Object] = {}  # served definitions, as published
        self._going: set[str] = set()  # names of definitions that wait for the deletion of their objects
        #: The resources whose changes ``notice`` handles: definitions, and the objects of those that are going.
        self.resources: set[str] = {_DEFINITIONS}

    def start(self) -> None:
        """Serve existing definitions. No change may be committed between this and the first call of ``notice``."""
        for ref, definition in self.objects.instances(_DEFINITIONS):
            self._serve(ref.name, definition)
            self.controller.enqueue(ref.name)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """Handle a committed change: ADDED, MODIFIED or DELETED, with the current or last state of the object."""
        if ref.resource != _DEFINITIONS:
            if type == "DELETED" and ref.resource in self._going:
                self.controller.enqueue(ref.resource)
        elif type == "DELETED":
            self._forget(ref.name, obj)
        else:
            self._serve(ref.name, obj)
            self.controller.enqueue(ref.name)

    def _serve(self, name: str, definition: Object) -> None:
        """Publish a definition if its names are free and it has changed."""
        before = self._served.get(name)
        if before is not None and _serves_the_same(definition, before):
            return
        if has_condition(definition, "Established") or accept_names(definition, self._others(name))[1] is None:
            self._served[name] = definition
            self.publish(name, from_crd(definition))

    def _forget(self, name: str, definition: Object) -> None:
        self._going.discard(name)
        self.resources.discard(name)
        if self._served.pop(name, None) is not None:
            self.publish(name, [])
        # Its names are free again: another definition may have waited for them.
        group = definition["spec"].get("group")
        for ref, other in self.objects.instances(_DEFINITIONS):
            if other["spec"].get("group") == group and ref.name != name:
                self._serve(ref.name, other)
                self.controller.enqueue(ref.name)

    def _others(self, name: str) -> Iterator[Object]:
        """The other definitions of a group. Served ones count as accepted, even before their status is written."""
        group = name.partition(".")[2]
        for ref, definition in self.objects.instances(_DEFINITIONS):
            if ref.name == name or definition["spec"].get("group") != group:
                continue
            if ref.name in self._served:
                accepted = {"acceptedNames": definition["spec"]["names"]}
                definition = {**definition, "status": {**(definition.get("status") or {}), **accepted}}
            yield definition

    async def _reconcile(self, name: str) -> Result:
        ref = Ref(_DEFINITIONS, "", name)
        definition = self.objects.get(ref)
        if definition is None:
            return DONE
        try:
            if definition["metadata"].get("deletionTimestamp"):
                await self._clear(ref, definition)
            else:
                status = status_of(definition, self._others(name), timestamp(self.clock.now()))
                await self._write_status(ref, definition, status)
        except NotFound:
            pass  # deleted meanwhile
        return DONE

    async def _write_status(self, ref: Ref, definition: Object, status: Object) -> None:
        if status == definition.get("status"):
            return
        names = (definition.get("status") or {}).get("acceptedNames") or {}
        accepted = status.get("acceptedNames") or {}
        # A merge patch must set removed names to null.
        removed = {field: None for field in names if field not in accepted}
        await self.objects.patch(
            ref,
            {
                "metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]},
                "status": {**status, "acceptedNames": {**accepted, **removed}},
            },
            "status",
        )

    async def _clear(self, ref: Ref, definition: Object) -> None:
        """Delete the objects of a terminating kind, and remove the finalizer when there are none."""
        finalizers = definition["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        self._going.add(ref.name)
        self.resources.add(ref.name)
        now, status = timestamp(self.clock.now()), definition.get("status") or {}
        remaining_objects = self._to_delete(ref.name)
        if remaining_objects:
            message = "CustomResource deletion is in progress"
            status = set_condition(status, "Terminating", True, "InstanceDeletionInProgress", message, now)
            await self._write_status(ref, definition, status)
            while remaining_objects:
                await asyncio.gather(*(self._delete(*each) for each in remaining_objects))
                remaining_objects = self._to_delete(ref.name)
        if next(iter(self.objects.instances(ref.name)), None) is not None:
            return  # the rest have finalizers; their deletion enqueues the definition
        newest = self.objects.get(ref)
        if newest is not None and not has_condition(newest, "Terminating"):
            remaining = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            guard = {"uid": newest["metadata"]["uid"], "resourceVersion": newest["metadata"]["resourceVersion"]}
            await self.objects.patch(ref, {"metadata": {**guard, "finalizers": remaining or None}})
        elif newest is not None:
            status = newest.get("status") or {}
            done = set_condition(
                status, "Terminating", False, "InstanceDeletionCompleted", "removed all instances", now
            )
            await self._write_status(ref, newest, done)  # the change enqueues the definition again

    def _to_delete(self, resource: str) -> list[tuple[Ref, str]]:
        found = (
            (ref, obj["metadata"]["uid"])
            for ref, obj in self.objects.instances(resource)
            if not obj["metadata"].get("deletionTimestamp")
        )
        return list(islice(found, _CONCURRENT))

    async def _delete(self, ref: Ref, uid: str) -> None:
        try:
            await self.objects.delete(ref, uid=uid)
        except NotFound:
            return


def _serves_the_same(definition: Object, before: Object) -> bool:
    """Whether both states of a definition serve the same resources."""
    return (
        definition["spec"] == before["spec"]
        and bool(definition["metadata"].get("deletionTimestamp")) == bool(before["metadata"].get("deletionTimestamp"))
        and (definition.get("status") or {}).get("storedVersions") == (before.get("status") or {}).get("storedVersions")
    )
