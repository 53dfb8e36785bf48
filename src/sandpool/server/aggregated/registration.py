"""Publishes the CA of our serving certificate in the APIServices, so that kube-apiserver trusts this server.

``sandpool install`` creates the APIServices without it, because the server makes its own CA when it starts on a new
volume. They are followed: one that is created later, or applied again without the CA, gets it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Sequence
from random import Random

from sandpool.api.kinds import API_SERVICE
from sandpool.api.resource import Key, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound

_log = logging.getLogger(__name__)


class ApiServiceRegistration:
    """Keeps the ``caBundle`` of some APIServices equal to the PEM ``bundle``."""

    def __init__(self, client: Client, names: Sequence[str], bundle: str, clock: Clock, rng: Random) -> None:
        self._client = client
        self._bundle = _encoded(bundle)
        self._controller = Controller("apiservice", self._reconcile, clock, rng, quiet_failures=4)
        self._caches: dict[str, Cache[str]] = {}
        self._reflectors = []
        for name in names:
            cache = self._caches[name] = Cache(_ca_bundle, name=f"APIService {name}")
            cache.subscribe(self._changed)
            self._reflectors.append(
                Reflector(client, API_SERVICE, cache, clock, rng, field_selector=f"metadata.name={name}")
            )

    def publish(self, bundle: str) -> None:
        """Publish another bundle from now on."""
        self._bundle = _encoded(bundle)
        for name in self._caches:
            self._controller.enqueue(name)

    @property
    def published(self) -> bool:
        """Whether all APIServices have the bundle."""
        return all(cache.get(Key("", name)) == self._bundle for name, cache in self._caches.items())

    async def run(self) -> None:
        """Follow the APIServices until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run())
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    def _changed(self, key: Key, old: str | None, new: str | None) -> None:
        if new is None:
            _log.warning("the APIService %s is gone: its kinds are not served; `sandpool install` creates it", key.name)
        elif new != self._bundle:
            self._controller.enqueue(key.name)

    async def _reconcile(self, name: str) -> Result:
        if self._caches[name].get(Key("", name)) in (None, self._bundle):
            return DONE
        try:
            await self._client.patch(API_SERVICE, name, MergePatch({"spec": {"caBundle": self._bundle}}))
        except NotFound:
            return DONE
        _log.info("published the CA of this server in the APIService %s", name)
        return DONE


def _encoded(bundle: str) -> str:
    return base64.b64encode(bundle.encode()).decode()


def _ca_bundle(api_service: SharedObject) -> str:
    bundle: str = (api_service.get("spec") or {}).get("caBundle") or ""
    return bundle
