"""Whether those for whom something is made are still there.

What we have made for an object and is gone again may have been collected with that object, of whose end a watch that
lags has not told us yet. That it is gone wakes us, we make it again, it is collected again: a hundred times a second
until the watch has caught up. So before anything is made for an object a second time, the API is asked about it.
"""

from __future__ import annotations

from sandpool.api.resource import ResourceType
from sandpool.api.views import View
from sandpool.controllers.caches import key_of
from sandpool.controllers.perform import Performer
from sandpool.engine.cache.store import Key
from sandpool.kube.errors import NotFound


class Owners:
    """Objects of a type for which things are made."""

    def __init__(self, type: ResourceType, performer: Performer) -> None:
        self.type = type
        self.performer = performer
        # The UIDs of those for which something was made, until they are forgotten.
        self._made_for: dict[Key, str] = {}

    async def is_there(self, owner: View) -> bool:
        """Whether something may be made for the owner now. If not, the cache knows why."""
        if not self.is_known(owner):
            self.remember(owner)
            return True
        return await self.is_still_there(owner)

    def is_known(self, owner: View) -> bool:
        """Whether something was made for it before."""
        return self._made_for.get(key_of(owner)) == owner.uid

    def remember(self, owner: View) -> None:
        """Something is made for it."""
        self._made_for[key_of(owner)] = owner.uid

    async def is_still_there(self, owner: View) -> bool:
        """What the API says, which the cache knows from then on."""
        key, cache = key_of(owner), self.performer.caches[self.type]
        try:
            answer = await self.performer.client.get(self.type, owner.name, owner.namespace)
        except NotFound:
            cache.record_deletion(key, owner.uid)
            return False
        cache.record_write(answer)
        metadata = answer["metadata"]
        return metadata["uid"] == owner.uid and "deletionTimestamp" not in metadata

    def forget(self, owner: Key) -> None:
        """The owner is gone."""
        self._made_for.pop(owner, None)
