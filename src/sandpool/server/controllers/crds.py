"""The life of a CustomResourceDefinition: its names are accepted, its kind is served, and it goes with its objects.

The keeper follows the feed of committed changes. A definition is served as soon as its names are its own, whatever
its status says yet; the status follows. Deleting a definition only marks it: the objects of its kind are deleted, and
when the last one is gone the finalizer is taken away and with it the definition. Nothing is remembered that is not in
the objects, so a crash leaves nothing to repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, Protocol

from sandpool.api.columns import from_printer_columns
from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.shape import Shape, from_openapi
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.backlog import Backlog
from sandpool.server.controllers.crd_names import accept_names, status_of
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.kinds.crds import FINALIZER, has_condition, set_condition
from sandpool.server.kinds.custom_resources import CustomResourceStrategy
from sandpool.server.resources import Resource, ScalePaths

_DEFINITIONS: Final = CUSTOM_RESOURCE_DEFINITION.group_resource
# In the order in which discovery lists them for custom resources.
_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
# How many objects of a kind that goes are deleted at once.
_TOGETHER: Final = 256


class Objects(Protocol):
    """The store, as the keeper needs it."""

    def get(self, ref: Ref) -> Object | None:
        """The newest state of an object."""

    def instances(self, resource: str) -> Iterable[tuple[Ref, Object]]:
        """All objects of a group resource, whether its kind is served or not."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is not the current one."""

    async def delete(self, ref: Ref, *, uid: str) -> None:
        """Raises NotFound, and Conflict if the uid is another."""


# What a definition makes served -------------------------------------------------------------------------------------


def from_crd(definition: Object) -> list[Resource]:
    """The resources a definition asks to be served: one for each version that is."""
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
        CustomResourceStrategy(selectable, namespaced=type.namespaced, terminating=terminating),
        columns=from_printer_columns(version.get("additionalPrinterColumns") or ()),
        custom=True,
        deprecation_warning=_warning(type, version),
    )
    if scale is not None:
        selector = scale.get("labelSelectorPath") or ""
        resource.scale = ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], selector)
    stored_as = {storage, *((definition.get("status") or {}).get("storedVersions") or ())}
    if stored_as != {type.version}:
        # Versions differ in name only. Objects may also be stored under a version that was the storage version once.
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


# The keeper ---------------------------------------------------------------------------------------------------------


class CrdController:
    """``publish`` is called with the name of a definition and all that it makes served now; nothing if it is gone."""

    def __init__(self, objects: Objects, clock: Clock, publish: Callable[[str, list[Resource]], None]) -> None:
        self.objects = objects
        self.clock = clock
        self.publish = publish
        self.backlog: Backlog[str] = Backlog(self._look_after, clock)
        self._served: dict[str, Object] = {}  # definitions that are served, as they were when they were published
        self._going: set[str] = set()  # the names of definitions that wait for their objects to go

    async def run(self) -> None:
        """Look after definitions until cancelled, beginning with ``start``."""
        self.start()
        await self.backlog.run()

    def start(self) -> None:
        """Serve what is defined. No change may be committed between this and the first call of ``notice``."""
        for ref, definition in self.objects.instances(_DEFINITIONS):
            self._serve(ref.name, definition)
            self.backlog.add(ref.name)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """A committed change: ADDED, MODIFIED or DELETED, with the object as it is or was."""
        if ref.resource != _DEFINITIONS:
            if type == "DELETED" and ref.resource in self._going:
                self.backlog.add(ref.resource)
        elif type == "DELETED":
            self._forget(ref.name, obj)
        else:
            self._serve(ref.name, obj)
            self.backlog.add(ref.name)

    def _serve(self, name: str, definition: Object) -> None:
        """Publish a definition if it may be served and is not yet as it is."""
        before = self._served.get(name)
        if before is not None and _looks_the_same(definition, before):
            return
        if has_condition(definition, "Established") or accept_names(definition, self._others(name))[1] is None:
            self._served[name] = definition
            self.publish(name, from_crd(definition))

    def _forget(self, name: str, definition: Object) -> None:
        self._going.discard(name)
        if self._served.pop(name, None) is not None:
            self.publish(name, [])
        # Its names are free again: somebody may have been waiting for them.
        group = definition["spec"].get("group")
        for ref, other in self.objects.instances(_DEFINITIONS):
            if other["spec"].get("group") == group and ref.name != name:
                self._serve(ref.name, other)
                self.backlog.add(ref.name)

    def _others(self, name: str) -> Iterator[Object]:
        """The other definitions of a group. What is served uses its names, whether its status says so yet or not."""
        group = name.partition(".")[2]
        for ref, definition in self.objects.instances(_DEFINITIONS):
            if ref.name == name or definition["spec"].get("group") != group:
                continue
            if ref.name in self._served:
                accepted = {"acceptedNames": definition["spec"]["names"]}
                definition = {**definition, "status": {**(definition.get("status") or {}), **accepted}}
            yield definition

    async def _look_after(self, name: str) -> None:
        ref = Ref(_DEFINITIONS, "", name)
        definition = self.objects.get(ref)
        if definition is None:
            return
        try:
            if definition["metadata"].get("deletionTimestamp"):
                await self._clear(ref, definition)
            else:
                status = status_of(definition, self._others(name), timestamp(self.clock.now()))
                await self._write_status(ref, definition, status)
        except NotFound:
            return  # somebody else was faster

    async def _write_status(self, ref: Ref, definition: Object, status: Object) -> None:
        if status == definition.get("status"):
            return
        names = (definition.get("status") or {}).get("acceptedNames") or {}
        accepted = status.get("acceptedNames") or {}
        # In a merge patch a name that is given up has to be said.
        given_up = {field: None for field in names if field not in accepted}
        await self.objects.patch(
            ref,
            {
                "metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]},
                "status": {**status, "acceptedNames": {**accepted, **given_up}},
            },
            "status",
        )

    async def _clear(self, ref: Ref, definition: Object) -> None:
        """Delete the objects of a kind that goes, and let it go when there are none."""
        finalizers = definition["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        self._going.add(ref.name)
        now, status = timestamp(self.clock.now()), definition.get("status") or {}
        doomed = self._to_delete(ref.name)
        if doomed:
            message = "CustomResource deletion is in progress"
            status = set_condition(status, "Terminating", True, "InstanceDeletionInProgress", message, now)
            await self._write_status(ref, definition, status)
            while doomed:
                await asyncio.gather(*(self._delete(*each) for each in doomed))
                doomed = self._to_delete(ref.name)
        if next(iter(self.objects.instances(ref.name)), None) is not None:
            return  # what is left has finalizers of its own; its going will be noticed
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
            await self._write_status(ref, newest, done)  # its notice brings us back here

    def _to_delete(self, resource: str) -> list[tuple[Ref, str]]:
        found = (
            (ref, obj["metadata"]["uid"])
            for ref, obj in self.objects.instances(resource)
            if not obj["metadata"].get("deletionTimestamp")
        )
        return list(islice(found, _TOGETHER))

    async def _delete(self, ref: Ref, uid: str) -> None:
        try:
            await self.objects.delete(ref, uid=uid)
        except NotFound:
            return


def _looks_the_same(definition: Object, before: Object) -> bool:
    """Whether a definition makes the same resources served."""
    return (
        definition["spec"] == before["spec"]
        and bool(definition["metadata"].get("deletionTimestamp")) == bool(before["metadata"].get("deletionTimestamp"))
        and (definition.get("status") or {}).get("storedVersions") == (before.get("status") or {}).get("storedVersions")
    )
