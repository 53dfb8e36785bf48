"""The router of ``sandpool up``: in the process of the API server, with the Service, pods and Gateways to find it
by."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from sandpool.engine.clock import Clock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import Client
from sandpool.kube.pod_access import PodAccess
from sandpool.node.agent import NodeAgent
from sandpool.router.authorization import Authorizer, allow_all
from sandpool.router.dialer import NodeDialer
from sandpool.router.gateways import GatewayController
from sandpool.router.metrics import RouterMetrics
from sandpool.router.pod_access import RouterPodAccess
from sandpool.router.registration import RouterRegistration
from sandpool.router.router import Router, RouterOptions, TrustCheck, trust_none
from sandpool.router.targets import SandboxResolver


class EmbeddedRouter:
    """``start`` returns when it serves, ``wait`` returns or raises when a part of it ends, ``stop`` removes everything
    but the Service. ``agent`` is the node agent in this process, None if there is none."""

    def __init__(
        self,
        client: Client,
        agent: NodeAgent | None,
        clock: Clock,
        rng: Random,
        metrics: MetricsRegistry,
        *,
        authorizer: Authorizer = allow_all,
        trusts: TrustCheck = trust_none,
        options: RouterOptions | None = None,
    ) -> None:
        self.agent = agent
        self.targets = SandboxResolver(client, clock, rng)
        self.router = Router(
            self.targets,
            NodeDialer(agent),
            clock,
            RouterMetrics(metrics),
            authorizer=authorizer,
            trusts=trusts,
            options=options,
        )
        self.registration = RouterRegistration(client, clock)
        self.gateways = GatewayController(client, self.router, clock, rng)
        self._address = ("", 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._registering: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def pod_access(self, other: PodAccess | None) -> RouterPodAccess:
        """Extend access to the pods of the node by the router's own. The API server has authorized port-forwards."""
        return RouterPodAccess(self.registration.uids, self.router.connect_trusted, other)

    async def start(self, host: str, port: int) -> None:
        """Raises ``OSError`` if the address is not available."""
        await self.router.listen(host, port)
        self._address = (host, self.router.ports[0])
        self._start_task(self.targets.run(), "router: sandboxes")
        await self.targets.synced()
        self.targets.pods.subscribe(self.registration.pod_changed, on_change_of=lambda pod: (pod.uid, pod.deleting))
        await self.registration.register()
        self._registering.append(asyncio.create_task(self.registration.run(), name="router: registration"))
        self._start_task(self.gateways.run(), "router: gateways")

    async def wait(self) -> None:
        done, _ = await asyncio.wait([*self._tasks, *self._registering], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, grace: float = 5.0) -> None:
        await self._cancel(self._registering)  # first, or it would recreate the pods
        await self.registration.deregister()
        await self.router.stop(grace)
        await self._cancel(self._tasks)
        await self.gateways.stop(grace)

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))
