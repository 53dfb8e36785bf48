"""Controller for Gateways and HTTPRoutes of the router's GatewayClass.

The router listens on the ports of such Gateways, and on none without a Gateway. All Gateways share one address, because
all of them are the same router. The conditions of a Gateway name ports that are not available. A Gateway without
HTTPRoutes admits every request; one with HTTPRoutes admits the requests that they match.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION
from sandpool.api.resource import Key, Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.router.data_plane import DataPlane
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
from sandpool.router.listeners import open_listeners
from sandpool.router.routes import Listener, PortRoutes, Route, is_gateway

_log = logging.getLogger(__name__)

#: A loopback address that other programs are unlikely to use.
ADDRESS: Final = "127.0.0.77"
_RETRY_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05
_PROTOCOL: Final = "HTTP"  # of listeners that the router serves


@dataclass(frozen=True, slots=True)
class GatewayView:
    """A Gateway: its listeners, and its current status."""

    namespace: str
    name: str
    generation: int
    listeners: tuple[Listener, ...]
    status: Mapping[str, Any]

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({listener.port for listener in self.listeners}))

    @classmethod
    def from_object(cls, gateway: Object) -> GatewayView:
        spec, metadata = gateway["spec"], gateway["metadata"]
        ours = spec.get("gatewayClassName") == CLASS_NAME and not metadata.get("deletionTimestamp")
        listeners = spec.get("listeners") or () if ours else ()
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("generation") or 0,
            tuple(_listener(each) for each in listeners if each.get("protocol") == _PROTOCOL),
            gateway.get("status") or {},
        )


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port of Gateways on which the data plane listens."""

    listening: socket.socket
    routes: PortRoutes


class GatewayController:
    """``run`` must run as a task. It opens the ports of Gateways and has ``data_plane`` serve them."""

    def __init__(
        self, client: Client, data_plane: DataPlane, clock: Clock, rng: Random, address: str = ADDRESS
    ) -> None:
        self.client = client
        self.data_plane = data_plane
        self.clock = clock
        self.address = address
        self.gateways = Cache(GatewayView.from_object, name="router gateways")
        self.routes = Cache(Route.from_object, name="router routes")
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, GATEWAY, self.gateways, clock, rng),
            Reflector(client, HTTP_ROUTE, self.routes, clock, rng),
        ]
        self._changed = asyncio.Event()
        self._listening: dict[int, OpenPort] = {}
        self._unavailable: dict[int, str] = {}  # by port: why the router does not listen there
        self.gateways.subscribe(
            lambda key, old, new: self._changed.set(), on_change_of=lambda gateway: (gateway.ports, gateway.generation)
        )
        self.routes.subscribe(
            lambda key, old, new: self._changed.set(), on_change_of=lambda route: (route.generation, route.parents)
        )

    @property
    def ports(self) -> list[int]:
        return sorted(self._listening)

    async def run(self) -> None:
        await self._install()
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"router: {reflector.type.plural}")
            for reflector in self._reflectors:
                await reflector.synced.wait()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._update_listeners()
                for gateway in list(self.gateways):
                    if gateway.ports:
                        await self._write_gateway_status(gateway)
                for route in list(self.routes):
                    await self._write_route_status(route)

    def close(self) -> None:
        """Close all ports, after ``run`` has ended."""
        for port in self._listening.values():
            port.listening.close()
        self._listening.clear()

    async def _install(self) -> None:
        for kind in KINDS:
            await self._ensure(CUSTOM_RESOURCE_DEFINITION, definition(kind))
        while True:  # until the API server serves the definitions
            with suppress(NotFound):
                await self.client.list(GATEWAY)
                await self.client.list(HTTP_ROUTE)
                await self._ensure(GATEWAY_CLASS, gateway_class())
                return
            await self.clock.sleep(_POLL_SECONDS)

    async def _ensure(self, kind: ResourceType, wanted: Object) -> None:
        with suppress(AlreadyExists):
            await self.client.create(kind, wanted)

    async def _update_listeners(self) -> None:
        wanted = self._routes_by_port()
        closed = [self._listening.pop(port) for port in self._listening.keys() - wanted.keys()]
        for each in closed:
            each.listening.close()
        self._unavailable.clear()
        for port, routes in wanted.items():
            if port in self._listening:
                self._listening[port] = OpenPort(self._listening[port].listening, routes)
            else:
                await self._open(port, routes)
        await self.data_plane.set_gateway_ports(self._listening)

    async def _open(self, port: int, routes: PortRoutes) -> None:
        try:
            (listening,) = await open_listeners(self.address, port)
        except OSError as error:
            _log.warning("cannot listen on %s:%d for a Gateway: %s", self.address, port, error)
            self._unavailable[port] = f"cannot listen on {self.address}:{port}: {error.strerror}"
        else:
            self._listening[port] = OpenPort(listening, routes)

    def _routes_by_port(self) -> dict[int, PortRoutes]:
        """A Gateway with a route that has no effect still counts as one with routes."""
        listeners = [listener for gateway in self.gateways for listener in gateway.listeners]
        routes: dict[int, list[tuple[Listener, Route]]] = {}
        for route in self.routes:
            for reference, gateway in self._parents(route):
                verdict = route.judge(reference, gateway.listeners)
                for listener in gateway.listeners:
                    found = routes.setdefault(listener.port, [])
                    if verdict.is_effective and listener in verdict.listeners:
                        found.append((listener, route))
        return {each.port: PortRoutes(tuple(routes[each.port]) if each.port in routes else None) for each in listeners}

    def _parents(self, route: Route) -> Iterator[tuple[Mapping[str, Any], GatewayView]]:
        """Return the references of a route to Gateways of this class."""
        for reference in route.parents:
            gateway = self.gateways.get(Key(reference.get("namespace") or route.namespace, reference.get("name") or ""))
            if gateway is not None and gateway.listeners and is_gateway(reference):
                yield reference, gateway

    async def _write_route_status(self, route: Route) -> None:
        others = [each for each in route.status.get("parents") or () if each.get("controllerName") != CONTROLLER_NAME]
        ours = [self._parent_status(route, reference, gateway) for reference, gateway in self._parents(route)]
        parents = [*others, *ours]
        current = route.status.get("parents") or ()
        if [_without_transition_times(each) for each in parents] != [
            _without_transition_times(each) for each in current
        ]:
            await self._patch(HTTP_ROUTE, route.namespace, route.name, {"parents": parents})

    def _parent_status(self, route: Route, reference: Mapping[str, Any], gateway: GatewayView) -> Object:
        verdict = route.judge(reference, gateway.listeners)
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

    async def _write_gateway_status(self, gateway: GatewayView) -> None:
        status = self._status(gateway)
        if _comparable(status) == _comparable(gateway.status):
            return
        await self._patch(GATEWAY, gateway.namespace, gateway.name, status)

    async def _patch(self, kind: ResourceType, namespace: str, name: str, status: Object) -> None:
        try:
            await self.client.patch(kind, name, MergePatch({"status": status}), namespace, subresource="status")
        except NotFound:
            return
        except ApiError as error:
            _log.warning("cannot write the status of %s %s/%s: %s", kind.singular, namespace, name, error)
            await self.clock.sleep(_RETRY_SECONDS)
            self._changed.set()

    def _status(self, gateway: GatewayView) -> Object:
        problems = [self._unavailable[port] for port in gateway.ports if port in self._unavailable]
        is_programmed = len(problems) < len(gateway.ports)
        programmed = self._condition(
            "Programmed", "" if is_programmed else "AddressNotUsable", "; ".join(problems), gateway.generation
        )
        return {
            "addresses": [{"type": "IPAddress", "value": self.address}] if is_programmed else [],
            "conditions": [
                self._condition("Accepted", "", "the router of this server", gateway.generation),
                programmed,
            ],
        }

    def _condition(self, name: str, problem: str, message: str, generation: int) -> Object:
        """Return a condition that is True with its name as reason, or False if there is a problem."""
        return {
            "type": name,
            "status": "False" if problem else "True",
            "reason": problem or name,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": timestamp(self.clock.now()),
        }


def _listener(given: Mapping[str, Any]) -> Listener:
    allowed = ((given.get("allowedRoutes") or {}).get("namespaces") or {}).get("from")
    return Listener(given["name"], given["port"], str(given.get("hostname") or "").lower(), allowed == "All")


def _comparable(status: Mapping[str, Any]) -> object:
    return status.get("addresses") or [], _without_transition_times(status)["conditions"]


def _without_transition_times(status: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the times at which conditions changed, to compare the rest."""
    conditions = [
        {name: value for name, value in each.items() if name != "lastTransitionTime"}
        for each in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}
