"""Writes to the API for the controllers, and reads their own writes back from the answers.

``ApiWriter`` sends one request per write and records the answer in the cache before it returns. So the next read of the
cache, by the same reconcile or by another controller, includes the write, and the watch event that follows changes
nothing (see ``engine.cache``). Failures:

* **Create**, ``AlreadyExists``: an object exists that the cache did not show. ``ApiWriter`` reads it into the cache and
  raises the error, so that the caller plans again with it.
* **Patch**, ``NotFound``: ``patch`` raises it, ``patch_if_there`` returns None. The object is removed from the cache.
  Otherwise the patch would be repeated until the watch reports the deletion, and all other work for the object would be
  in vain.
* **Delete**, ``NotFound``: counts as success. ``Conflict`` is raised: the object is another one or has changed, so the
  decision to delete it is no longer valid.
* All other errors, and a missing answer, are raised as the client raises them. The outcome of the write is unknown
  then, and the watch will show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import POD
from sandpool.api.resource import Key, Object, ResourceType, SharedObject, shared_key
from sandpool.api.views import View
from sandpool.controllers.informers import Caches, key_of
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound

# The API would silently drop a field of a pod that it does not know: a typing error, or a restriction that the cluster
# is too old for. The definitions do not always catch that before (see ``api.sandbox_spec.Profile``).
_VALIDATION: Final = {POD: "Strict"}


class ApiWriter:
    """Writes through ``client``. ``field_manager`` is the name in managedFields, the client's own if empty."""

    def __init__(self, client: Client, caches: Caches, *, field_manager: str = "") -> None:
        self.client = client
        self.caches = caches
        self.field_manager = field_manager or client.field_manager

    async def perform(self, write: Write, namespace: str) -> SharedObject | None:
        """Perform one write. Returns the object as the API answered; None after a Delete."""
        match write:
            case Create():
                return await self.create(write, namespace)
            case Patch():
                return await self.patch(write, namespace)
            case Delete():
                await self.delete(write, namespace)
                return None

    async def create(self, write: Create, namespace: str) -> SharedObject:
        try:
            answer = await self.client.create(
                write.type,
                write.object,
                namespace,
                field_manager=self.field_manager,
                field_validation=_VALIDATION.get(write.type),
            )
        except AlreadyExists:
            await self.refresh(write.type, write.object["metadata"]["name"], namespace)
            raise
        self.caches[write.type].record_write(answer)
        return answer

    async def refresh(self, type: ResourceType, name: str, namespace: str) -> bool:
        """Read an object that the cache does not show from the API. Returns whether it exists. Its watch event may
        still be on the way."""
        try:
            answer = await self.client.get(type, name, namespace)
        except NotFound:
            return False
        self.caches[type].record_write(answer)
        return Key(namespace, name) in self.caches[type]

    async def patch(self, write: Patch, namespace: str) -> SharedObject:
        cache, key = self.caches[write.type], shared_key(namespace, write.name)
        known = cache.get(key)
        try:
            answer = await self.client.patch(
                write.type,
                write.name,
                MergePatch(write.body),
                namespace,
                subresource=write.subresource,
                field_manager=self.field_manager,
                with_metadata=write.with_metadata,
            )
        except NotFound:
            if known is not None:
                cache.record_deletion(key, known.uid)
            raise
        cache.record_write(answer)
        return answer

    async def patch_if_there(self, write: Patch, namespace: str) -> SharedObject | None:
        """Like ``patch``, but return None if the object does not exist any more."""
        try:
            return await self.patch(write, namespace)
        except NotFound:
            return None

    async def delete(self, write: Delete, namespace: str, *, propagation_policy: str | None = None) -> None:
        """Delete an object. One that is gone already counts as deleted."""
        answer: SharedObject | None
        try:
            answer = await self.client.delete(
                write.type,
                write.name,
                namespace,
                propagation_policy=propagation_policy,
                uid=write.uid,
                resource_version=write.resource_version or None,
            )
        except NotFound:
            answer = None
        self.caches[write.type].record_deletion(shared_key(namespace, write.name), write.uid, answer)


def is_ambiguous(error: Exception) -> bool:
    """Whether a write that failed with this error may have been carried out. An API that refuses a write has not
    carried it out."""
    return not isinstance(error, ApiError) or error.code >= 500


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object in the namespace of the object that is reconciled."""

    type: ResourceType
    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of the fields that the controller owns."""

    type: ResourceType
    name: str
    body: Object
    subresource: str | None = None
    with_metadata: bool = False  # a status patch also changes metadata; see ``Client.stores_metadata_with_status``


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object. The UID is a precondition, so that the delete never hits a successor of the same name. So is
    the resource version, if given: a pool must not delete a member that was claimed since the decision."""

    type: ResourceType
    name: str
    uid: str
    resource_version: str = ""


Write = Create | Patch | Delete


class OwnerLivenessCheck:
    """Checks with a live GET that an owner exists before its children are created again.

    A child that is gone may have been garbage collected with its owner, whose deletion a lagging watch has not reported
    yet. The deletion of the child enqueues the owner, the controller creates the child again, and it is collected
    again: a hundred times a second until the watch has caught up. The first creation for an owner needs no GET.
    """

    def __init__(self, type: ResourceType, writer: ApiWriter) -> None:
        self.type = type
        self.writer = writer
        # UIDs of the owners for which something was created, until they are forgotten.
        self._made_for: dict[Key, str] = {}

    async def may_create_for(self, owner: View) -> bool:
        """Whether children may be created for the owner now. If not, the cache shows why."""
        if not self.was_created_for(owner):
            self.record_creation(owner)
            return True
        return await self.exists(owner)

    def was_created_for(self, owner: View) -> bool:
        """Whether this process has created something for the owner before."""
        return self._made_for.get(key_of(owner)) == owner.uid

    def record_creation(self, owner: View) -> None:
        """Record that something is created for the owner."""
        self._made_for[key_of(owner)] = owner.uid

    async def exists(self, owner: View) -> bool:
        """Read the owner from the API into the cache. Returns whether it exists and is not being deleted."""
        key, cache = key_of(owner), self.writer.caches[self.type]
        try:
            answer = await self.writer.client.get(self.type, owner.name, owner.namespace)
        except NotFound:
            cache.record_deletion(key, owner.uid)
            return False
        cache.record_write(answer)
        metadata = answer["metadata"]
        return metadata["uid"] == owner.uid and "deletionTimestamp" not in metadata

    def forget(self, owner: Key) -> None:
        """Drop the record of an owner that is gone."""
        self._made_for.pop(owner, None)
