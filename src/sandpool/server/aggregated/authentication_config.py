"""Follows the ConfigMap in which kube-apiserver says how it names the user of a forwarded request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import Key, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.server.aggregated.request_header import InvalidConfig, RequestHeaderConfig

_log = logging.getLogger(__name__)

NAMESPACE: Final = "kube-system"
NAME: Final = "extension-apiserver-authentication"

_Data = tuple[tuple[str, str], ...]


class AuthenticationConfig:
    """The newest valid configuration. ``on_change`` is called with each later one that differs.

    A ConfigMap that is deleted or becomes invalid changes nothing: the proxy goes on using the certificate that it
    has, and a server that believed no proxy from then on would be an outage.
    """

    def __init__(self, client: Client, clock: Clock, rng: Random) -> None:
        self.on_change: Callable[[RequestHeaderConfig], None] = lambda config: None
        self.current: RequestHeaderConfig | None = None
        self.problem = f"the ConfigMap {NAMESPACE}/{NAME} has not been read yet"
        self.found = asyncio.Event()  # there is a valid configuration
        self._cache: Cache[_Data] = Cache(_data, name=NAME)
        self._cache.subscribe(self._changed)
        self._reflector = Reflector(
            client, CONFIG_MAP, self._cache, clock, rng, namespace=NAMESPACE, field_selector=f"metadata.name={NAME}"
        )

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
        await self._reflector.run()

    def _changed(self, key: Key, old: _Data | None, new: _Data | None) -> None:
        try:
            if new is None:
                raise InvalidConfig(f"the ConfigMap {NAMESPACE}/{NAME} is gone")
            config = RequestHeaderConfig.read(dict(new))
        except InvalidConfig as error:
            self.problem = str(error)
            _log.warning("%s%s", error, "; the last valid configuration stays in use" if self.current else "")
            return
        self.problem = ""
        before, self.current = self.current, config
        self.found.set()
        if before is not None and config != before:
            self.on_change(config)


def _data(config_map: SharedObject) -> _Data:
    data: Mapping[str, str] = config_map.get("data") or {}
    return tuple(sorted(data.items()))
