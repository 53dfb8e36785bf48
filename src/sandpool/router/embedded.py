"""The router of a home: in the process of its API server, with a Service, a pod and gateways to be found by."""

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
from sandpool.router.dialer import NodeDialer, connect
from sandpool.router.gateways import Gateways
from sandpool.router.metrics import RouterMetrics
from sandpool.router.pod_access import RouterPodAccess
from sandpool.router.registration import RouterRegistration
from sandpool.router.router import Authorizer, Router, allow_all
from sandpool.router.targets import SandboxResolver


class EmbeddedRouter:
    """``start`` returns when it serves, ``wait`` is for its failure, and after ``stop`` nothing of it can be seen but
    the Service. ``agent`` is of the node in this process, None if there is none."""

    def __init__(
        self,
        client: Client,
        agent: NodeAgent | None,
        clock: Clock,
        random: Random,
        metrics: MetricsRegistry,
        *,
        guard: Authorizer = allow_all,
    ) -> None:
        self.agent = agent
        self.targets = SandboxResolver(client, clock, random)
        self.router = Router(self.targets, NodeDialer(agent), clock, RouterMetrics(metrics), guard=guard)
        self.presence = RouterRegistration(client, clock)
        self.gateways = Gateways(client, self.router, clock, random)
        self._address = ("", 0)
        self._running: list[asyncio.Task[None]] = []
        self._keeping: list[asyncio.Task[None]] = []  # what it is seen by

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def door(self, other: PodAccess | None) -> RouterPodAccess:
        """A way into all pods, given the one into those of the node."""
        return RouterPodAccess(self.presence.uids, lambda: connect(*self._address), other)

    async def start(self, host: str, port: int) -> None:
        """Raises ``OSError`` if the address cannot be had."""
        await self.router.listen(host, port)
        self._address = (host, self.router.ports[0])
        self._begin(self.targets.run(), "what the router knows")
        await self.targets.synced()
        self.targets.pods.subscribe(self.presence.saw, on_change_of=lambda pod: (pod.uid, pod.deleting))
        await self.presence.show()
        self._keeping.append(asyncio.create_task(self.presence.keep(), name="presence of the router"))
        self._begin(self.gateways.run(), "gateways")

    async def wait(self) -> None:
        done, _ = await asyncio.wait([*self._running, *self._keeping], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, grace: float = 5.0) -> None:
        await self._end(self._keeping)  # first, or it would bring back what is hidden
        await self.presence.hide()
        await self.router.stop(grace)
        await self._end(self._running)
        await self.gateways.stop(grace)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._running.append(asyncio.create_task(work, name=name))
