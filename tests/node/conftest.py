"""A node agent on an API server of its own, with a manual clock and containers that run nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import EVENT, POD
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.node.agent import AgentOptions, NodeAgent, Parts
from sandpool.node.pods.context import Runtimes
from sandpool.node.registration import RegistrationOptions
from sandpool.node.runtimes.runtime import Runtime
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import pod
from sandpool.testing.quiescence import settle
from sandpool.testing.waiting import WITHIN
from tests.support.fake_node_parts import FakeImages, FakeLogs, FakeNetwork, FakeVolumes
from tests.support.fake_runtime import FakeContainer, FakeRuntime
from tests.support.manual_time import pass_time

T = TypeVar("T")


class NodeRig:
    def __init__(self, server: ApiServer, clock: ManualClock, directory: Path) -> None:
        self.client = server.client(name="users")
        self.clock = clock
        self.directory = directory
        self.wire = FaultyTransport(server.client(name="node").transport)
        self.runtime = FakeRuntime()
        self.images, self.network, self.volumes, self.logs = FakeImages(), FakeNetwork(), FakeVolumes(), FakeLogs()
        self.unavailable: dict[str, str] = {}
        self.is_able = True  # the runtime has passed its self-test
        self.settings = AgentOptions(directory, RegistrationOptions("node-1"))
        self.agent = self.new_agent()

    def new_agent(self) -> NodeAgent:
        here, none = {"fake": self.runtime}, dict[str, Runtime]()
        runtimes = (
            Runtimes(here, "fake", self.unavailable)
            if self.is_able
            else Runtimes(none, "fake", {**self.unavailable, "fake": "it failed"}, failed=here)
        )
        parts = Parts(runtimes, self.images, self.network, self.volumes, self.logs)
        return NodeAgent(Client(self.wire), self.clock, Random(1), self.settings, parts)

    async def start(self) -> None:
        await self.agent.start()
        await self.settle()

    async def stop(self, *, keep: bool = True, grace: float = 10.0) -> None:
        await self._with_time(self.agent.stop(keep=keep, grace=grace))

    async def restart(self, *, keep: bool = True) -> None:
        """Replace the agent by another one."""
        await self.stop(keep=keep)
        self.agent = self.new_agent()
        await self.start()

    async def _with_time(self, work: Any) -> None:
        """Advance the clock: timeouts would never fire if time stood still."""
        task = asyncio.create_task(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.02)
            if not task.done() and not self.wire.busy:
                await self.clock.jump()
        await task

    async def settle(self) -> None:
        await settle(self.clock, self.wire)

    async def passes(self, seconds: float) -> None:
        await pass_time(self.clock, seconds, self.wire)

    async def create(self, name: str = "pod", *, spec: Object | None = None, **fields: Any) -> SharedObject:
        created = await self.client.create(
            POD, pod(name, spec={"nodeName": "node-1", **(spec or {})}, **fields), "default"
        )
        await self.settle()
        return created

    async def delete(self, name: str = "pod", grace: int | None = None) -> None:
        await self.client.delete(POD, name, "default", grace_period_seconds=grace)
        await self.settle()

    async def get(self, name: str = "pod") -> SharedObject:
        return await self.client.get(POD, name, "default")

    async def status(self, name: str = "pod") -> Object:
        return dict((await self.get(name))["status"])

    async def state(self, container: str = "main", name: str = "pod") -> Object:
        """The status of one container."""
        status = await self.status(name)
        every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return next(each for each in every if each["name"] == container)

    async def condition(self, type: str, name: str = "pod") -> Object:
        found = condition_of(await self.get(name), type)
        assert found is not None, f"there is no condition {type}"
        return found

    async def conditions(self, name: str = "pod") -> dict[str, str]:
        return {each["type"]: each["status"] for each in (await self.status(name)).get("conditions") or ()}

    async def gone(self, name: str = "pod") -> bool:
        """Wait until the pod is gone. Files are removed in a thread, which the manual clock does not drive."""

        async def is_gone() -> bool:
            await self.settle()
            try:
                await self.get(name)
            except NotFound:
                return True
            return False

        return await self.until(is_gone)

    async def until(self, probe: Callable[[], Awaitable[T]]) -> T:
        """Poll until the result is true, without advancing the clock."""
        async with asyncio.timeout(WITHIN):
            while not (answer := await probe()):  # noqa: ASYNC110 - threads have no event of ours
                await asyncio.sleep(0.01)
        return answer

    async def events(self, name: str = "pod") -> list[tuple[str, str]]:
        """Reasons and notes of a pod's events, in order."""
        await self.settle()
        found = (await self.client.list(EVENT, "default"))["items"]
        about = [each for each in found if each["regarding"]["name"] == name]
        return [(each["reason"], each["note"]) for each in sorted(about, key=lambda each: each["metadata"]["name"])]

    def container(self, name: str = "main") -> FakeContainer:
        return self.runtime.container(name)

    def holdings(self) -> list[object]:
        """Resources that pods hold on the machine besides their directories."""
        return [*self.runtime.containers, *self.runtime.open, *self.network.addresses, *self.volumes.prepared]

    def starts(self) -> list[str]:
        """The containers that were started, in order."""
        return [container.spec.name for container in self.runtime.started]

    def status_writes(self) -> list[Request]:
        """Writes of the node to pods."""
        return [
            request
            for request in self.wire.requests
            if request.method == "PATCH" and "/pods/" in request.path and request.path.endswith("/status")
        ]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[NodeRig]:
    """A started agent."""
    clock = ManualClock()
    server = ApiServer(tmp_path / "api", clock=clock)
    await server.start()
    rig = NodeRig(server, clock, tmp_path / "node")
    await rig.start()
    yield rig
    await rig.stop()
    rig.network.close()
    await server.stop()
