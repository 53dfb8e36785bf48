"""Gateways of our class: their address is one at which the router listens.

Nothing listens until somebody makes such a Gateway. All of them share one address, because all lead to the same router;
what differs is the ports of their listeners. A port that cannot be had is said in the Gateway's conditions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.engine.cache import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.reflector import Reflector
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.router.gateway_api import CLASS_NAME, GATEWAY, GATEWAY_CLASS, KINDS, definition, gateway_class
from sandpool.router.router import Router

_log = logging.getLogger(__name__)

#: A loopback address that nobody else has reason to use.
ADDRESS: Final = "127.0.0.77"
_RETRY: Final = 1.0
# What a listener must speak for us to serve it.
_SPOKEN: Final = "HTTP"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Gateway asks for, and what it says about itself so far."""

    namespace: str
    name: str
    generation: int
    ports: tuple[int, ...]
    status: Mapping[str, Any]

    @classmethod
    def from_object(cls, gateway: Object) -> Wish:
        spec, metadata = gateway["spec"], gateway["metadata"]
        ours = spec.get("gatewayClassName") == CLASS_NAME and not metadata.get("deletionTimestamp")
        listeners = spec.get("listeners") or () if ours else ()
        ports = tuple(each["port"] for each in listeners if each.get("protocol") == _SPOKEN)
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("generation") or 0,
            tuple(sorted(set(ports))),
            gateway.get("status") or {},
        )


class Gateways:
    """``run`` is to be started as a task."""

    def __init__(self, client: Client, router: Router, clock: Clock, random: Random, address: str = ADDRESS) -> None:
        self.client = client
        self.router = router
        self.clock = clock
        self.address = address
        self.wishes = Cache(Wish.from_object, name="gateways of the router")
        self._reflector = Reflector(client, GATEWAY, self.wishes, clock, random)
        self._news = asyncio.Event()
        self._listening: dict[int, asyncio.Server] = {}
        self._refused: dict[int, str] = {}  # why a port is not listened on
        self.wishes.subscribe(lambda key, old, new: self._news.set(), reads=lambda wish: (wish.ports, wish.generation))

    async def run(self) -> None:
        await self._install()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="gateways of the router")
            while True:
                await self._news.wait()
                self._news.clear()
                await self._listen()
                for wish in list(self.wishes):
                    if wish.ports:
                        await self._tell(wish)

    async def _install(self) -> None:
        for type in KINDS:
            await self._ensure(CUSTOM_RESOURCE_DEFINITION, definition(type))
        while True:  # until the definitions are served
            with suppress(NotFound):
                await self.client.list(GATEWAY)
                await self._ensure(GATEWAY_CLASS, gateway_class())
                return
            await self.clock.sleep(_RETRY / 20)

    async def _ensure(self, type: ResourceType, wanted: Object) -> None:
        with suppress(AlreadyExists):
            await self.client.create(type, wanted)

    async def _listen(self) -> None:
        wanted = {port for wish in self.wishes for port in wish.ports}
        for port in self._listening.keys() - wanted:
            self.router.close(self._listening.pop(port))
        self._refused.clear()
        for port in wanted - self._listening.keys():
            try:
                self._listening[port] = await self.router.listen(self.address, port)
            except OSError as error:
                _log.warning("the gateway cannot listen on %s:%d: %s", self.address, port, error)
                self._refused[port] = f"cannot listen on {self.address}:{port}: {error.strerror}"

    async def _tell(self, wish: Wish) -> None:
        status = self._status(wish)
        if _without_times(status) == _without_times(wish.status):
            return
        try:
            await self.client.patch(
                GATEWAY, wish.name, MergePatch({"status": status}), wish.namespace, subresource="status"
            )
        except NotFound:
            return
        except ApiError as error:
            _log.warning("the status of gateway %s/%s: %s", wish.namespace, wish.name, error)
            await self.clock.sleep(_RETRY)
            self._news.set()

    def _status(self, wish: Wish) -> Object:
        problems = [self._refused[port] for port in wish.ports if port in self._refused]
        works = len(problems) < len(wish.ports)
        now = timestamp(self.clock.now())

        def condition(type: str, status: bool, reason: str, message: str) -> Object:
            return {
                "type": type,
                "status": "True" if status else "False",
                "reason": reason,
                "message": message,
                "observedGeneration": wish.generation,
                "lastTransitionTime": now,
            }

        return {
            "addresses": [{"type": "IPAddress", "value": self.address}] if works else [],
            "conditions": [
                condition("Accepted", True, "Accepted", "the router of this server"),
                condition("Programmed", works, "Programmed" if works else "AddressNotUsable", "; ".join(problems)),
            ],
        }


def _without_times(status: Mapping[str, Any]) -> object:
    conditions = [
        {name: value for name, value in each.items() if name != "lastTransitionTime"}
        for each in status.get("conditions") or ()
    ]
    return status.get("addresses") or [], conditions
