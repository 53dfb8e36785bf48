"""The router of ``sandpool up``: its control plane, in the process of the API server.

It opens the sockets, creates the Service and pods by which clients find the router, and reconciles Gateways. The data
plane, which reads bytes of clients and sandboxes, is another process (``process``).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from random import Random
from typing import Any

from sandpool.api.kinds import POD
from sandpool.api.views import pod_view
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.pod_access import PodAccess
from sandpool.router.data_plane import DataPlane
from sandpool.router.gateways import GatewayController
from sandpool.router.listeners import open_listeners
from sandpool.router.pod_access import PortForwardGrants, RouterPodAccess
from sandpool.router.registration import SELECTOR, RouterRegistration


class EmbeddedRouter:
    """``start`` returns when it serves, ``wait`` returns or raises when a part of it ends, ``stop`` removes everything
    but the Service."""

    def __init__(self, client: Client, data_plane: DataPlane, clock: Clock, rng: Random) -> None:
        self.client = client
        self.data_plane = data_plane
        self.registration = RouterRegistration(client, clock)
        self.gateways = GatewayController(client, data_plane, clock, rng)
        self._pods = Cache(pod_view, name="router pods")
        self._pods.subscribe(self.registration.pod_changed, on_change_of=lambda pod: (pod.uid, pod.deleting))
        self._reflector = Reflector(client, POD, self._pods, clock, rng, label_selector=SELECTOR)
        self._address = ("", 0)
        self._listening: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._registering: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def pod_access(self, other: PodAccess | None) -> RouterPodAccess:
        """Extend access to the pods of the node by the router's own."""
        grants = PortForwardGrants(self.client)
        return RouterPodAccess(self.registration.uids, grants, self.data_plane.connect_forwarded, other)

    async def start(self, host: str, port: int) -> None:
        """Raises ``OSError`` if the address is not available."""
        self._listening = await open_listeners(host, port)
        self._address = (host, self._listening[0].getsockname()[1])
        try:
            await self.data_plane.start(self._listening)
        except BaseException:
            self._close_listeners()
            raise
        await self.registration.register()
        self._registering.append(asyncio.create_task(self._reflector.run(), name="router: own pods"))
        self._registering.append(asyncio.create_task(self.registration.run(), name="router: registration"))
        self._start_task(self.data_plane.wait(), "router: data plane")
        self._start_task(self.gateways.run(), "router: gateways")

    async def wait(self) -> None:
        done, _ = await asyncio.wait([*self._tasks, *self._registering], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, grace: float = 5.0) -> None:
        await self._cancel(self._registering)  # first, or it would recreate the pods
        await self.registration.deregister()
        await self._cancel(self._tasks)
        self._close_listeners()
        self.gateways.close()
        await self.data_plane.stop(grace)

    def _close_listeners(self) -> None:
        for sock in self._listening:
            sock.close()

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))
