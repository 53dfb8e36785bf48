"""Performs what a plan asks for: one request per write, and its answer goes into the cache before anybody goes on.

So the next look at the cache, by the same pass or another controller, includes the write, and the event that the watch
brings later is old news (see ``engine.cache.store``). What a failure means:

* **Create**, ``AlreadyExists``: there is one that the cache did not show. It is read into the cache and the error is
  raised: plan again, with it.
* **Patch**, ``NotFound``: raised by ``patch``, and no matter to ``patch_if_there``. The cache does not have the object
  from then on, or it would be tried again and again until the watch brings the news, and whatever else is done for an
  object that is gone is done in vain.
* **Delete**, ``NotFound``: that is what was wanted. ``Conflict`` is raised: the object is not the one that was meant,
  or has changed since, so the decision is no longer valid.
* Everything else, and no answer at all, is raised as the client raises it. Nothing is known about the write then: the
  watch will tell.

What a plan asks to be written: one request each, in the namespace of the object the plan is about.

Whether those for whom something is made are still there.

What we have made for an object and is gone again may have been collected with that object, of whose end a watch that
lags has not told us yet. That it is gone wakes us, we make it again, it is collected again: a hundred times a second
until the watch has caught up. So before anything is made for an object a second time, the API is asked about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, ResourceType
from sandpool.api.views import View
from sandpool.controllers.informers import Caches, key_of
from sandpool.engine.cache.store import Key
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound

# A field of a pod that its API does not know would be dropped without a word: a typing error, or a restriction that
# the cluster is too old for. The kinds do not always catch that before (see ``api.blueprint.Profile``).
_VALIDATION: Final = {POD: "Strict"}


class ApiWriter:
    """Writes through ``client`` into the namespace that is given; ``field_manager`` is who managedFields say wrote,
    the client's own if empty."""

    def __init__(self, client: Client, caches: Caches, *, field_manager: str = "") -> None:
        self.client = client
        self.caches = caches
        self.field_manager = field_manager or client.field_manager

    async def perform(self, write: Write, namespace: str) -> Object | None:
        """Do one write. The answer is the object as it is now; None after a Delete."""
        match write:
            case Create():
                return await self.create(write, namespace)
            case Patch():
                return await self.patch(write, namespace)
            case Delete():
                await self.delete(write, namespace)
                return None

    async def create(self, write: Create, namespace: str) -> Object:
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
        """Ask the API for an object that the cache does not show, and whether there is one. News may be on its way."""
        try:
            answer = await self.client.get(type, name, namespace)
        except NotFound:
            return False
        self.caches[type].record_write(answer)
        return Key(namespace, name) in self.caches[type]

    async def patch(self, write: Patch, namespace: str) -> Object:
        cache, key = self.caches[write.type], Key(namespace, write.name)
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

    async def patch_if_there(self, write: Patch, namespace: str) -> Object | None:
        """Like ``patch``; None if the object has gone, so that nobody misses what was to be said."""
        try:
            return await self.patch(write, namespace)
        except NotFound:
            return None

    async def delete(self, write: Delete, namespace: str, *, propagation_policy: str | None = None) -> None:
        """Delete the object that was meant; one that is gone is as good."""
        answer: Object | None
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
        self.caches[write.type].record_deletion(Key(namespace, write.name), write.uid, answer)


def is_ambiguous(error: Exception) -> bool:
    """Whether a write that failed so may have been carried out all the same. What the API has refused was not."""
    return not isinstance(error, ApiError) or error.code >= 500


@dataclass(frozen=True, slots=True)
class Create:
    type: ResourceType
    object: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of what the writer owns."""

    type: ResourceType
    name: str
    body: Object
    subresource: str | None = None
    with_metadata: bool = False  # a status patch also changes metadata; see ``Client.stores_metadata_with_status``


@dataclass(frozen=True, slots=True)
class Delete:
    """The UID is a precondition: what was decided about one object must not hit the next one of its name. So is the
    resource version, if given: what was decided about a member of a pool must not hit it once it is claimed."""

    type: ResourceType
    name: str
    uid: str
    resource_version: str = ""


Write = Create | Patch | Delete


class OwnerLivenessCheck:
    """Objects of a type for which things are made."""

    def __init__(self, type: ResourceType, writer: ApiWriter) -> None:
        self.type = type
        self.writer = writer
        # The UIDs of those for which something was made, until they are forgotten.
        self._made_for: dict[Key, str] = {}

    async def may_create_for(self, owner: View) -> bool:
        """Whether something may be made for the owner now. If not, the cache knows why."""
        if not self.was_created_for(owner):
            self.record_creation(owner)
            return True
        return await self.exists(owner)

    def was_created_for(self, owner: View) -> bool:
        """Whether something was made for it before."""
        return self._made_for.get(key_of(owner)) == owner.uid

    def record_creation(self, owner: View) -> None:
        """Something is made for it."""
        self._made_for[key_of(owner)] = owner.uid

    async def exists(self, owner: View) -> bool:
        """What the API says, which the cache knows from then on."""
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
        """The owner is gone."""
        self._made_for.pop(owner, None)
