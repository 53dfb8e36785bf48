"""The client of the server's own controllers: the verbs and rules of the API without authorization and HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import Key, Object
from sandpool.kube.errors import not_found
from sandpool.kube.transport import MERGE_PATCH
from sandpool.server.controllers.garbage_collector import OwnedObject, Propagation
from sandpool.server.controllers.owner_graph import OwnerKind, Ref
from sandpool.server.registry.context import RegistryContext
from sandpool.server.registry.create import create
from sandpool.server.registry.delete import delete
from sandpool.server.registry.patch import patch
from sandpool.server.request.options import DeleteOptions, WriteOptions
from sandpool.server.request.subresources import Call, Subresources
from sandpool.server.resources import Resource, ResourceTable

_OPTIONS = WriteOptions(manager="sandpool-server", field_validation="Ignore")


class SystemClient:
    def __init__(self, context: RegistryContext, resources: ResourceTable, subresources: Subresources) -> None:
        self._context = context
        self._store = context.store
        self._resources = resources
        self._subresources = subresources
        # By group and kind, as of that generation of the resources.
        self._kinds: dict[tuple[str, str], OwnerKind] = {}
        self._kinds_of = -1

    def _resource(self, storage: str) -> Resource:
        resource = self._resources.stored().get(storage)
        if resource is None:
            raise not_found(NAMESPACE, storage)
        return resource

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, ref: Ref) -> Object | None:
        entry = self._store.head(ref.resource, Key(ref.namespace, ref.name))
        return entry.decode() if entry is not None else None

    def owned_objects(self) -> Iterator[OwnedObject]:
        for resource in self._store.resources():
            for entry in self._store.scan(resource):
                # Searching the bytes is a thousand times cheaper than decoding and has no false negatives.
                held = b'"finalizers"' in entry.encoded
                yield OwnedObject(Ref(resource, *entry.key), entry.uid, entry.owners, held)

    def kind(self, api_version: str, kind: str) -> OwnerKind | None:
        if self._resources.generation != self._kinds_of:
            self._kinds_of = self._resources.generation
            self._kinds = {}
            for resource in self._resources:
                known = OwnerKind(resource.storage, resource.type.namespaced)
                self._kinds.setdefault((resource.type.group, resource.type.kind), known)
        return self._kinds.get((api_version.rpartition("/")[0], kind))

    def namespaces(self) -> Iterable[str]:
        return [entry.key[1] for entry in self._store.scan(NAMESPACE.group_resource)]

    def contents(self, namespace: str) -> Iterator[tuple[Ref, Object]]:
        for resource in self._store.resources():
            for entry in self._store.scan(resource, namespace):
                yield Ref(resource, *entry.key), entry.decode()

    def instances(self, storage: str) -> Iterator[tuple[Ref, Object]]:
        for entry in self._store.scan(storage):
            yield Ref(storage, *entry.key), entry.decode()

    # -- writing -----------------------------------------------------------------------------------------------------

    async def create(self, ref: Ref, obj: Object) -> None:
        await create(self._context, self._resource(ref.resource), ref.namespace, obj, _OPTIONS)

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        resource = self._resource(ref.resource)
        await patch(
            self._context,
            resource,
            ref.namespace,
            ref.name,
            MERGE_PATCH,
            merge_patch,
            _OPTIONS,
            subresource=subresource,
        )

    async def delete(
        self,
        ref: Ref,
        *,
        uid: str,
        resource_version: str = "",
        propagation: Propagation = "Background",
        grace_period: int | None = None,
    ) -> None:
        options = DeleteOptions(grace_period, propagation, uid, resource_version)
        await delete(self._context, self._resource(ref.resource), ref.namespace, ref.name, options)

    async def finalize(self, namespace: Object) -> None:
        resource = self._resource(NAMESPACE.group_resource)
        action = self._subresources.find(resource, "finalize", "update")
        if action is not None:
            await action(Call(resource, "", namespace["metadata"]["name"], namespace, _OPTIONS))
