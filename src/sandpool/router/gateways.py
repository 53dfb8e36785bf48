"""Gateways of our class: their address is one at which the router listens.

Nothing listens until somebody makes such a Gateway. All of them share one address, because all lead to the same router;
what differs is the ports of their listeners. A port that cannot be had is said in the Gateway's conditions. A Gateway
that no HTTPRoute refers to lets everything in; one that has routes lets in what they lead to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache, Key
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.gateway_api import (
    CLASS_NAME,
    CONTROLLER_NAME,
    GATEWAY,
    GATEWAY_CLASS,
    HTTP_ROUTE,
    KINDS,
    definition,
    gateway_class,
)
from sandpool.router.headers import RequestHeaders
from sandpool.router.paths import comparable
from sandpool.router.router import Router
from sandpool.router.routes import Listener, PortRoutes, Route, is_ours

_log = logging.getLogger(__name__)

#: A loopback address that nobody else has reason to use.
ADDRESS: Final = "127.0.0.77"
_RETRY: Final = 1.0
_GRACE: Final = 1.0  # seconds for what is under way at a port that is given up
# What a listener must speak for us to serve it.
_SPOKEN: Final = "HTTP"


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What a Gateway asks for, and what it says about itself so far."""

    namespace: str
    name: str
    generation: int
    listeners: tuple[Listener, ...]
    status: Mapping[str, Any]

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({listener.port for listener in self.listeners}))

    @classmethod
    def from_object(cls, gateway: Object) -> GatewaySpec:
        spec, metadata = gateway["spec"], gateway["metadata"]
        ours = spec.get("gatewayClassName") == CLASS_NAME and not metadata.get("deletionTimestamp")
        listeners = spec.get("listeners") or () if ours else ()
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("generation") or 0,
            tuple(_listener(each) for each in listeners if each.get("protocol") == _SPOKEN),
            gateway.get("status") or {},
        )


class GatewayPortRouter(Router):
    """The router as it is behind one port of gateways: ``gate`` says which requests are for it at all."""

    gate = PortRoutes()

    def wanted(self, method: bytes, target: bytes, headers: RequestHeaders) -> Destination | None:
        if self.gate.ways is not None:
            path = comparable(target.partition(b"?")[0].decode("latin-1"))
            if not self.gate.admits(headers.text.get("host", ""), path):
                raise RequestRejected(404, "No route of the gateway leads there.")
        return super().wanted(method, target, headers)


class Gateways:
    """``run`` is to be started as a task."""

    def __init__(self, client: Client, router: Router, clock: Clock, random: Random, address: str = ADDRESS) -> None:
        self.client = client
        self.router = router
        self.clock = clock
        self.address = address
        self.wishes = Cache(GatewaySpec.from_object, name="gateways of the router")
        self.routes = Cache(Route.from_object, name="routes of the router")
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, GATEWAY, self.wishes, clock, random),
            Reflector(client, HTTP_ROUTE, self.routes, clock, random),
        ]
        self._news = asyncio.Event()
        self._listening: dict[int, GatewayPortRouter] = {}
        self._refused: dict[int, str] = {}  # why a port is not listened on
        self.wishes.subscribe(
            lambda key, old, new: self._news.set(), on_change_of=lambda wish: (wish.ports, wish.generation)
        )
        self.routes.subscribe(
            lambda key, old, new: self._news.set(), on_change_of=lambda route: (route.generation, route.parents)
        )

    @property
    def ports(self) -> list[int]:
        return sorted(self._listening)

    async def run(self) -> None:
        await self._install()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"{reflector.type.plural} of the router")
            for reflector in self._reflectors:
                await reflector.synced.wait()
            while True:
                await self._news.wait()
                self._news.clear()
                await self._listen()
                for wish in list(self.wishes):
                    if wish.ports:
                        await self._tell(wish)
                for route in list(self.routes):
                    await self._tell_route(route)

    async def stop(self, grace: float) -> None:
        """Listen nowhere any more; after ``run`` has ended."""
        for router in self._listening.values():
            await router.stop(grace)
        self._listening.clear()

    async def _install(self) -> None:
        for type in KINDS:
            await self._ensure(CUSTOM_RESOURCE_DEFINITION, definition(type))
        while True:  # until the definitions are served
            with suppress(NotFound):
                await self.client.list(GATEWAY)
                await self.client.list(HTTP_ROUTE)
                await self._ensure(GATEWAY_CLASS, gateway_class())
                return
            await self.clock.sleep(_RETRY / 20)

    async def _ensure(self, type: ResourceType, wanted: Object) -> None:
        with suppress(AlreadyExists):
            await self.client.create(type, wanted)

    async def _listen(self) -> None:
        gates = self._gates()
        for port in self._listening.keys() - gates.keys():
            await self._listening.pop(port).stop(_GRACE)
        self._refused.clear()
        for port, gate in gates.items():
            if port not in self._listening:
                await self._open(port)
            if port in self._listening:
                self._listening[port].gate = gate

    async def _open(self, port: int) -> None:
        inner = self.router
        router = GatewayPortRouter(
            inner.targets, inner.upstreams.dial, inner.clock, inner.metrics, guard=inner.guard, longest=inner.longest
        )
        try:
            await router.listen(self.address, port)
        except OSError as error:
            _log.warning("the gateway cannot listen on %s:%d: %s", self.address, port, error)
            self._refused[port] = f"cannot listen on {self.address}:{port}: {error.strerror}"
        else:
            self._listening[port] = router

    def _gates(self) -> dict[int, PortRoutes]:
        """What is let in, by port. A route that leads nowhere still takes its gateway from those that have none."""
        listeners = [listener for wish in self.wishes for listener in wish.listeners]
        ways: dict[int, list[tuple[Listener, Route]]] = {}
        for route in self.routes:
            for reference, wish in self._parents(route):
                verdict = route.judge(reference, wish.listeners)
                for listener in wish.listeners:
                    found = ways.setdefault(listener.port, [])
                    if verdict.leads and listener in verdict.listeners:
                        found.append((listener, route))
        return {each.port: PortRoutes(tuple(ways[each.port]) if each.port in ways else None) for each in listeners}

    def _parents(self, route: Route) -> Iterator[tuple[Mapping[str, Any], GatewaySpec]]:
        """The references of a route to gateways of ours."""
        for reference in route.parents:
            wish = self.wishes.get(Key(reference.get("namespace") or route.namespace, reference.get("name") or ""))
            if wish is not None and wish.listeners and is_ours(reference):
                yield reference, wish

    async def _tell_route(self, route: Route) -> None:
        others = [each for each in route.status.get("parents") or () if each.get("controllerName") != CONTROLLER_NAME]
        ours = [self._answer(route, reference, wish) for reference, wish in self._parents(route)]
        parents = [*others, *ours]
        if [_timeless(each) for each in parents] != [_timeless(each) for each in route.status.get("parents") or ()]:
            await self._patch(HTTP_ROUTE, route.namespace, route.name, {"parents": parents})

    def _answer(self, route: Route, reference: Mapping[str, Any], wish: GatewaySpec) -> Object:
        verdict = route.judge(reference, wish.listeners)
        return {
            "parentRef": dict(reference),
            "controllerName": CONTROLLER_NAME,
            "conditions": [
                self._condition(
                    "Accepted", verdict.accepted, verdict.message if verdict.accepted else "", route.generation
                ),
                self._condition("ResolvedRefs", verdict.resolved, verdict.message, route.generation),
            ],
        }

    async def _tell(self, wish: GatewaySpec) -> None:
        status = self._status(wish)
        if _without_times(status) == _without_times(wish.status):
            return
        await self._patch(GATEWAY, wish.namespace, wish.name, status)

    async def _patch(self, type: ResourceType, namespace: str, name: str, status: Object) -> None:
        try:
            await self.client.patch(type, name, MergePatch({"status": status}), namespace, subresource="status")
        except NotFound:
            return
        except ApiError as error:
            _log.warning("the status of %s %s/%s: %s", type.singular, namespace, name, error)
            await self.clock.sleep(_RETRY)
            self._news.set()

    def _status(self, wish: GatewaySpec) -> Object:
        problems = [self._refused[port] for port in wish.ports if port in self._refused]
        works = len(problems) < len(wish.ports)
        programmed = self._condition(
            "Programmed", "" if works else "AddressNotUsable", "; ".join(problems), wish.generation
        )
        return {
            "addresses": [{"type": "IPAddress", "value": self.address}] if works else [],
            "conditions": [
                self._condition("Accepted", "", "the router of this server", wish.generation),
                programmed,
            ],
        }

    def _condition(self, type: str, problem: str, message: str, generation: int) -> Object:
        """True with its own name for a reason, unless there is a problem."""
        return {
            "type": type,
            "status": "False" if problem else "True",
            "reason": problem or type,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": timestamp(self.clock.now()),
        }


def _listener(given: Mapping[str, Any]) -> Listener:
    allowed = ((given.get("allowedRoutes") or {}).get("namespaces") or {}).get("from")
    return Listener(given["name"], given["port"], str(given.get("hostname") or "").lower(), allowed == "All")


def _without_times(status: Mapping[str, Any]) -> object:
    return status.get("addresses") or [], _timeless(status)["conditions"]


def _timeless(status: Mapping[str, Any]) -> dict[str, Any]:
    """With conditions that do not say since when."""
    conditions = [
        {name: value for name, value in each.items() if name != "lastTransitionTime"}
        for each in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}
