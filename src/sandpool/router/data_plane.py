"""The data plane of the router of ``sandpool up``: everything that reads bytes of clients and sandboxes.

It listens on sockets that others opened, and connects to pods with a dialer that others provide. The control plane
(``embedded``) decides on which ports it listens. ``process`` runs it as a process of its own, without privileges.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Protocol

from sandpool.api.resource import Key
from sandpool.api.views import PodView
from sandpool.engine.clock import Clock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import Client
from sandpool.router.authorization import Authorizer, allow_all
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.downstream import Peer
from sandpool.router.headers import RequestHeaders
from sandpool.router.metrics import RouterMetrics
from sandpool.router.paths import comparable
from sandpool.router.router import Router, RouterOptions, TrustCheck, trust_none
from sandpool.router.routes import PortRoutes
from sandpool.router.targets import SandboxResolver
from sandpool.router.upstream import Dial
from sandpool.router.waking import RequestWaker, Wake

_GRACE: Final = 1.0  # seconds for requests in service at a port that is closed


class GatewayPort(Protocol):
    """A port of Gateways: its listening socket, and the routes that admit requests there."""

    @property
    def listening(self) -> socket.socket: ...

    @property
    def routes(self) -> PortRoutes: ...


class DataPlane(Protocol):
    """The interface of a data plane to its control plane. The caller keeps its sockets."""

    async def start(self, listening: Sequence[socket.socket]) -> None: ...

    async def wait(self) -> None:
        """Return or raise when a part of it ends."""

    async def set_gateway_ports(self, ports: Mapping[int, GatewayPort]) -> None:
        """Serve these ports of Gateways, and no others."""

    async def connect_forwarded(self, granted: str) -> socket.socket:
        """Return a connection for a client that the API server has authorized; see ``Peer``. Raises ``OSError``."""

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        """See ``RouterRequests``."""

    async def stop(self, grace: float) -> None: ...


class GatewayPortRouter(Router):
    """The router behind one port of Gateways. Admits requests that match ``routes``."""

    routes = PortRoutes()

    def destination(self, method: bytes, target: bytes, headers: RequestHeaders, peer: Peer) -> Destination | None:
        if self.routes.routes is not None:
            path = comparable(target.partition(b"?")[0].decode("latin-1"))
            if not self.routes.admits(headers.text.get("host", ""), path):
                raise RequestRejected(404, "No HTTPRoute of the Gateway matches the request.")
        return super().destination(method, target, headers, peer)

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Host names of listeners and routes, for which clients send requests."""
        names = {listener.hostname for listener, _ in self.routes.routes or ()}
        names |= {name for _, route in self.routes.routes or () for name in route.hostnames}
        return super().allowed_hosts | (names - {""})


class LocalDataPlane:
    """A data plane in this process."""

    def __init__(
        self,
        client: Client,
        dial: Dial,
        clock: Clock,
        rng: Random,
        metrics: MetricsRegistry,
        *,
        authorizer: Authorizer = allow_all,
        trusts: TrustCheck = trust_none,
        options: RouterOptions | None = None,
        wake: Wake | None = None,
    ) -> None:
        self.targets = SandboxResolver(client, clock, rng)
        self.router = Router(
            self.targets,
            dial,
            clock,
            RouterMetrics(metrics),
            authorizer=authorizer,
            trusts=trusts,
            options=options,
            refresh=self.targets.refresh,
            wake=None if wake is None else RequestWaker(self.targets, wake, clock),
        )
        self._gateways: dict[int, GatewayPortRouter] = {}
        self._watching: asyncio.Task[None] | None = None
        self.targets.pods.subscribe(self._pod_changed, on_change_of=lambda pod: pod.uid)

    async def start(self, listening: Sequence[socket.socket]) -> None:
        """Clients that connect before the informers have synced wait in the sockets."""
        self._watching = asyncio.create_task(self.targets.run(), name="router: sandboxes")
        await self.targets.synced()
        for sock in listening:
            await self.router.listen_on(sock.dup())

    async def wait(self) -> None:
        assert self._watching is not None
        await asyncio.wait([self._watching])
        self._watching.result()

    async def set_gateway_ports(self, ports: Mapping[int, GatewayPort]) -> None:
        for number in self._gateways.keys() - ports.keys():
            await self.close_gateway_port(number)
        for number, port in ports.items():
            await self.set_gateway_port(number, port.listening, port.routes)

    async def set_gateway_port(self, number: int, listening: socket.socket, routes: PortRoutes) -> None:
        router = self._gateways.get(number)
        if router is None:
            base = self.router
            router = self._gateways[number] = GatewayPortRouter(
                base.targets,
                base.upstreams.dial,
                base.clock,
                base.metrics,
                authorizer=base.authorizer,
                trusts=base.trusts,
                options=base.options,
                refresh=base.refresh,
                wake=base.wake,
            )
            router.routes = routes
            await router.listen_on(listening.dup())
        router.routes = routes

    async def close_gateway_port(self, number: int) -> None:
        router = self._gateways.pop(number, None)
        if router is not None:
            await router.stop(_GRACE)

    async def connect_forwarded(self, granted: str) -> socket.socket:
        return await self.router.connect_forwarded(granted)

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        pools = [router.upstreams for router in self._routers]
        return {uid: min(pool.quiesce(uid, seconds) for pool in pools) for uid, seconds in pods.items()}

    @property
    def _routers(self) -> list[Router]:
        return [self.router, *self._gateways.values()]

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            for router in self._routers:
                router.upstreams.forget(old.uid)

    async def stop(self, grace: float) -> None:
        await asyncio.gather(self.router.stop(grace), *(each.stop(grace) for each in self._gateways.values()))
        self._gateways.clear()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
