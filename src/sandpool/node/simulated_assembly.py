"""Simulated nodes with all that a cluster shows of its nodes: Node objects, leases, and a scheduler that binds pods.

A load tool that counts nodes, reads their capacity or drains one meets the same objects as in a cluster. Each node has
a ``SimulatedNode`` in place of a kubelet, and the heartbeat of a real one. The scheduler is the one of a real node, so
capacity, selectors, taints and cordons count. Pods of a claim cost the same writes as without Node objects: a binding
and a status.

The size of a node follows from the number of pods it may have, because a load test is rarely about CPU requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address
from random import Random
from typing import Final

from sandpool.api.kinds import NODE, RUNTIME_CLASS
from sandpool.api.labels import SIMULATED_NODE
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, NotFound
from sandpool.node.heartbeat import PERIOD, Heartbeat
from sandpool.node.machine import Machine, Remaining, architecture
from sandpool.node.registration import NodeCapabilities, RegistrationOptions
from sandpool.node.runtimes.handlers import ALIASES, SUPPORTED
from sandpool.node.scheduling.scheduler import Scheduler
from sandpool.node.simulated import SimulatedNode

#: Most nodes: their addresses are those of 192.0.2.0/24, which is reserved for documentation.
MAX_NODES: Final = 250
#: Pods of a node, unless the operator gives another number.
DEFAULT_PODS: Final = 10_000

_HOSTS: Final = IPv4Address("192.0.2.0")
# Pods get addresses of 10.0.0.0/8, of which each node has an equal part.
_PODS: Final = IPv4Address("10.0.0.0")
_POD_ADDRESSES: Final = 1 << 24
# What a node has for each of its pods.
_CPUS: Final = 1
_MEMORY: Final = 4 << 30
_STORAGE: Final = 10 << 30
_PLENTY: Final = 1 << 22  # process numbers left


def node_names(count: int) -> list[str]:
    return [f"simulated-{number}" for number in range(1, count + 1)]


async def remove_other_nodes(client: Client, names: list[str]) -> None:
    """Delete the simulated Nodes of an earlier run that are not in ``names``. Their pods are then garbage collected."""
    found = (await client.list(NODE, label_selector=SIMULATED_NODE))["items"]
    for node in found:
        if (name := node["metadata"]["name"]) not in names:
            with suppress(NotFound):
                await client.delete(NODE, name, uid=node["metadata"]["uid"])


class SimulatedNodes:
    """``start`` returns once the nodes are registered. ``client`` returns a client for the part that it is given the
    name of."""

    def __init__(
        self, client: Callable[[str], Client], clock: Clock, rng: Random, count: int, *, pods: int = DEFAULT_PODS
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.nodes: list[SimulatedNode] = []
        self.heartbeats: list[Heartbeat] = []
        for number, name in enumerate(node_names(count)):
            host = str(_HOSTS + number + 1)
            first = _PODS + number * (_POD_ADDRESSES // count) + 1
            self.nodes.append(
                SimulatedNode(
                    client(name),
                    clock,
                    name=name,
                    brief=True,
                    binding=False,
                    host_address=host,
                    first_address=str(first),
                )
            )
            self.heartbeats.append(_heartbeat(client(name), clock, name, host, pods))
        self.scheduler = Scheduler(client("simulated-scheduler"), clock, rng, simulated=True)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_classes())
            for heartbeat in self.heartbeats:
                group.create_task(heartbeat.register())
        for node, heartbeat in zip(self.nodes, self.heartbeats, strict=True):
            self._tasks.append(asyncio.create_task(node.run(), name=node.name))
            self._tasks.append(asyncio.create_task(self._beat(heartbeat), name=f"heartbeat of {node.name}"))
        await self.scheduler.start()

    async def wait(self) -> None:
        """Wait until stopped. Raises unexpected errors of background tasks."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop, and mark the Nodes as stopped."""
        await self.scheduler.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(heartbeat.stop() for heartbeat in self.heartbeats))

    async def _beat(self, heartbeat: Heartbeat) -> None:
        """Begin at a random time within a period, so that many nodes do not all write at once."""
        await self.clock.sleep(self.rng.uniform(0.0, PERIOD))
        await heartbeat.run()

    async def _publish_classes(self) -> None:
        """Create the RuntimeClasses that a real node has, so that its manifests can be used."""
        for handler in (*SUPPORTED, *ALIASES):
            body = {"apiVersion": RUNTIME_CLASS.api_version, "kind": RUNTIME_CLASS.kind, "handler": handler}
            with suppress(AlreadyExists):
                await self.scheduler.client.create(RUNTIME_CLASS, {**body, "metadata": {"name": handler}})


def _heartbeat(client: Client, clock: Clock, name: str, host: str, pods: int) -> Heartbeat:
    machine = Machine(
        hostname=name,
        cpus=pods * _CPUS,
        memory=pods * _MEMORY,
        storage=pods * _STORAGE,
        architecture=architecture(),
        kernel="simulated",
        os_image="simulated",
        machine_id=name,
        boot_id=name,
    )
    registration = RegistrationOptions(name, pods=pods, reserved_memory=0, labels={SIMULATED_NODE: "true"})
    capabilities = NodeCapabilities((), {}, {}, (host,), any_handler=True)
    remaining = Remaining(machine.memory, machine.storage, _PLENTY)
    return Heartbeat(client, clock, machine, registration, lambda: capabilities, lambda: remaining)
