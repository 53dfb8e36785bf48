"""The namespaces of kube-apiserver, in which our objects live.

kube-apiserver itself does not check them for an aggregated API: a create in a namespace that does not exist or is
terminating is for us to refuse. A deleted namespace is emptied by the controller of kube-controller-manager, through
our API like through any other, and it stays until that has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Final, NamedTuple

from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, NotFound, ServiceUnavailable

_log = logging.getLogger(__name__)


class _Namespace(NamedTuple):
    name: str
    terminating: bool


#: What a create needs to see of a namespace.
_ACTIVE: Final[Object] = {"status": {"phase": "Active"}}
_TERMINATING: Final[Object] = {"status": {"phase": "Terminating"}}


class NamespaceMirror:
    """Follows all namespaces. ``find`` answers from memory; call ``ensure`` first where a namespace may be so new that
    its event has not arrived."""

    def __init__(self, client: Client, clock: Clock, rng: Random) -> None:
        self._client = client
        self._cache: Cache[_Namespace] = Cache(_view, name=NAMESPACE.plural)
        self._reflector = Reflector(client, NAMESPACE, self._cache, clock, rng)

    @property
    def synced(self) -> asyncio.Event:
        return self._reflector.synced

    async def run(self) -> None:
        """Follow the namespaces until cancelled."""
        await self._reflector.run()

    def find(self, name: str) -> Object | None:
        """The phase of a namespace, as an object; None if it does not exist."""
        known = self._cache.get(Key("", name))
        if known is None:
            return None
        return _TERMINATING if known.terminating else _ACTIVE

    async def ensure(self, name: str) -> None:
        """Read a namespace that is not known. Raises ``ServiceUnavailable`` if kube-apiserver does not answer."""
        if self.find(name) is not None:
            return
        try:
            found = await self._client.get(NAMESPACE, name)
        except NotFound:
            return
        except (ApiError, OSError) as error:
            _log.warning("kube-apiserver did not say whether the namespace %s exists: %s", name, error)
            raise ServiceUnavailable(
                f"kube-apiserver could not be asked whether the namespace {name} exists; try again",
                details={"retryAfterSeconds": 1},
            ) from error
        # Ignored if events or a list have shown meanwhile that the namespace is deleted.
        self._cache.record_write(found)


def _view(namespace: SharedObject) -> _Namespace:
    metadata = namespace["metadata"]
    terminating = (namespace.get("status") or {}).get("phase") == "Terminating" or "deletionTimestamp" in metadata
    return _Namespace(metadata["name"], terminating)
