"""A node on a manual clock with pods that may sleep, and a router of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.kube.pod_access import Size
from sandpool.node.logs.manager import LogManager
from sandpool.node.pod_access import NodePodAccess
from sandpool.node.pods.worker import PodWorker
from sandpool.node.runtimes.runtime import Command, Stdio
from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig


def _nothing() -> None:
    pass


class FakeRouter:
    """A router: ``quiet`` has the seconds since the last request by UID, for ever by default. ``asked`` records the
    questions. ``failure`` is raised instead of an answer; ``on_ask`` runs while the node waits for one."""

    def __init__(self) -> None:
        self.quiet: dict[str, float] = {}
        self.asked: list[Mapping[str, float]] = []
        self.failure: Exception | None = None
        self.on_ask: Callable[[], None] = _nothing

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        self.asked.append(dict(pods))
        self.on_ask()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return {uid: self.quiet.get(uid, float("inf")) for uid in pods}


class QuietClient:
    """The client of an exec session: no input, and no reader of the output."""

    has_stdin = has_stdout = has_stderr = is_terminal = False

    async def receive(self) -> bytes:
        return b""

    async def write(self, data: bytes, *, error: bool = False) -> None:
        pass

    async def next_size(self) -> Size | None:
        return None


class SleepRig:
    """``node`` with one router. Commands run until they are killed or ``end`` is called."""

    def __init__(self, node: NodeRig) -> None:
        self.node = node
        self.clock = node.clock
        self.router = FakeRouter()
        self.access = NodePodAccess(node.agent, LogManager(node.clock))
        self.use(node)
        node.runtime.on_execute = self._execute

    def use(self, node: NodeRig) -> None:
        node.agent.sleep.requests = self.router
        self.access.agent = node.agent

    def _execute(self, container: FakeContainer, command: Command, stdio: Stdio) -> int | None:
        assert not container.paused, "a command met a frozen container"
        return None

    async def create(self, annotations: Mapping[str, str], name: str = "pod", **fields: Any) -> PodWorker:
        await self.node.create(name, metadata={"annotations": dict(annotations), **fields})
        return self.worker(name)

    def worker(self, name: str = "pod") -> PodWorker:
        worker = self.node.agent.find("default", name)
        assert worker is not None
        return worker

    def container(self, name: str = "pod") -> FakeContainer:
        return self.node.runtime.container("main", self.worker(name).state.pod.uid)

    async def begin_exec(self, name: str = "pod") -> asyncio.Task[int]:
        """Start a command, and return when it runs."""
        running = asyncio.create_task(self.access.execute(await self.node.get(name), "main", ("work",), QuietClient()))
        await self.node.settle()
        return running

    async def end_exec(self, running: asyncio.Task[int], name: str = "pod") -> None:
        self.container(name).processes[-1].end(0)
        await self.node.settle()
        assert await running == 0


@pytest.fixture
async def sleepy(rig: NodeRig) -> AsyncIterator[SleepRig]:
    yield SleepRig(rig)
