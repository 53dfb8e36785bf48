"""A scheduler at work on an API server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import EVENT, NODE, POD
from sandpool.kube.client import Client, MergePatch
from sandpool.node.scheduling.scheduler import Scheduler
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod
from sandpool.testing.quiescence import settle

ROOMY = {"cpu": "4", "memory": "8Gi", "pods": "100"}


class SchedulerRig:
    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.client = server.client(name="users")
        self.clock = clock
        self.wire = FaultyTransport(server.client(name="scheduler").transport)
        self.scheduler = Scheduler(Client(self.wire), clock, Random(1))

    async def settle(self) -> None:
        await settle(self.clock, self.wire)

    async def node(
        self,
        name: str = "node-1",
        amounts: Mapping[str, str] = ROOMY,
        *,
        handlers: tuple[str, ...] = (),
        ready: str = "True",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        metadata = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
        await self.client.create(NODE, new(NODE, name, metadata=metadata, spec=spec))
        status = {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "runtimeHandlers": [{"name": handler} for handler in handlers],
            "conditions": [{"type": "Ready", "status": ready}],
        }
        await self.client.patch(NODE, name, MergePatch({"status": status}), subresource="status")
        await self.settle()

    async def pod(self, name: str, *, requests: Mapping[str, str] | None = None, **spec: Any) -> None:
        container = {"name": "main", "image": "i", "resources": {"requests": dict(requests or {})}}
        await self.client.create(POD, pod(name, spec={"containers": [container], **spec}), "default")
        await self.settle()

    async def topologies(self, name: str) -> str:
        return str((await self.client.get(POD, name, "default"))["spec"].get("nodeName") or "")

    async def why(self, name: str) -> str:
        """The message of the condition of an unschedulable pod."""
        condition = condition_of(await self.client.get(POD, name, "default"), "PodScheduled")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
        return str(condition["message"])

    async def events(self) -> list[tuple[str, str]]:
        found = (await self.client.list(EVENT, "default"))["items"]
        return [(each["reason"], each["note"]) for each in found]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[SchedulerRig]:
    clock = ManualClock()
    server = ApiServer(tmp_path, clock=clock)
    await server.start()
    rig = SchedulerRig(server, clock)
    await rig.scheduler.start()
    await rig.settle()
    yield rig
    await rig.scheduler.stop()
    await server.stop()
