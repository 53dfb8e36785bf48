"""Real sandboxes fall asleep, and a request through the router or a command wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.labels import IDLE_FREEZE_AFTER
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import MergePatch
from sandpool.kube.pod_access import Size
from sandpool.node.pods.worker import PodWorker
from sandpool.node.runtimes.runtime import Container
from sandpool.router.data_plane import LocalDataPlane
from sandpool.router.dialer import NodeDialer
from sandpool.router.listeners import open_listeners
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.support.api_objects import owner_reference
from tests.support.real_node import IMAGE, RealNode, real_node

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

#: Serves port 8080, and wakes up two hundred times a second, which is less than the CPU of a sandbox that is in use.
_TICKING_SERVER = """
import http.server, threading, time

def tick():
    while True:
        time.sleep(0.005)

threading.Thread(target=tick, daemon=True).start()
http.server.test(http.server.SimpleHTTPRequestHandler, port=8080)
"""
_TICKS_NANOSECONDS = 2_000_000


class Output:
    """The client of a command that only has output."""

    has_stdin = is_terminal = False
    has_stdout = has_stderr = True

    def __init__(self) -> None:
        self.text = b""

    async def receive(self) -> bytes:
        return b""

    async def write(self, data: bytes, *, error: bool = False) -> None:
        self.text += data

    async def next_size(self) -> Size | None:
        return None


@dataclass
class Rig:
    """A node with a router, and the sandbox ``box`` with a web server that ticks. The pod ``awake`` ticks as well, and
    never sleeps."""

    node: RealNode
    port: int

    async def awake_one_has_ticked(self) -> None:
        """Wait until the pod that never sleeps has used the CPU time of many ticks."""
        worker = self.node.node.agent.find("default", "awake")
        container = None if worker is None else worker.resources.running("main")
        assert container is not None
        before = (await container.usage()).cpu_nanoseconds

        async def has_ticked() -> bool:
            return (await container.usage()).cpu_nanoseconds - before > _TICKS_NANOSECONDS

        await until(has_ticked)

    @property
    def worker(self) -> PodWorker:
        worker = self.node.node.agent.find("default", "box")
        assert worker is not None
        return worker

    @property
    def container(self) -> Container:
        container = self.worker.resources.running("main")
        assert container is not None
        return container

    async def asleep(self) -> None:
        async def frozen() -> bool:
            return self.worker.state.frozen

        await until(frozen)
        assert await self.container.is_paused()

    async def sleeps_after(self, time: str) -> None:
        """Change the time after which the sandbox sleeps, and wait until the node knows."""
        body = MergePatch({"metadata": {"annotations": {IDLE_FREEZE_AFTER: time}}})
        await self.node.client.patch(POD, "box", body, "default")

        async def is_known() -> bool:
            return bool(self.worker.state.pod.object["metadata"]["annotations"][IDLE_FREEZE_AFTER] == time)

        await until(is_known)

    async def get(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Port: 8080\r\n")
        writer.write(b"Connection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def execute(self, *command: str) -> str:
        output = Output()
        pod = await self.node.get("box")
        assert await self.node.node.pod_access.execute(pod, "main", command, output) == 0
        return output.text.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with real_node(tmp_path_factory.mktemp("sleep")) as node:
        box = await node.client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
        await node.client.create(POD, _pod("box", owner=box), "default")
        await node.client.create(POD, _pod("awake"), "default")
        for name in ("box", "awake"):
            await node.ready(name)
        agent = node.node.agent
        plane = LocalDataPlane(
            node.server.client(name="router"), NodeDialer(agent), SystemClock(), Random(), MetricsRegistry()
        )
        agent.sleep.requests = plane
        (listening,) = await open_listeners("127.0.0.1", 0)
        with listening:
            await plane.start([listening])
            try:
                yield Rig(node, listening.getsockname()[1])
            finally:
                await plane.stop(0)


def _pod(name: str, *, owner: SharedObject | None = None) -> Object:
    main = {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-c", _TICKING_SERVER],
        "readinessProbe": {"tcpSocket": {"port": 8080}},
    }
    metadata: Object = {"name": name}
    if owner is not None:
        metadata["annotations"] = {IDLE_FREEZE_AFTER: "1s"}
        metadata["ownerReferences"] = [owner_reference(owner, controller=True)]
    spec = {"containers": [main], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def test_request_through_the_router_wakes_a_frozen_sandbox(rig: Rig) -> None:
    for _ in range(2):
        await rig.asleep()
        assert b" 200 " in (await rig.get()).partition(b"\r\n")[0]


async def test_storm_of_requests_wakes_it_once(rig: Rig) -> None:
    await rig.asleep()
    await rig.sleeps_after("1h")  # not again before all requests are answered
    resumed = 0
    resume = rig.container.resume

    async def counted() -> None:
        nonlocal resumed
        resumed += 1
        await resume()

    rig.container.resume = counted  # type: ignore[method-assign]
    answers = await asyncio.gather(*(rig.get() for _ in range(40)))
    del rig.container.resume
    assert all(b" 200 " in answer.partition(b"\r\n")[0] for answer in answers)
    assert resumed == 1
    await rig.sleeps_after("1s")


async def test_command_wakes_a_frozen_sandbox_that_uses_no_cpu(rig: Rig) -> None:
    await rig.asleep()
    before = (await rig.container.usage()).cpu_nanoseconds
    await rig.awake_one_has_ticked()
    assert rig.worker.state.frozen
    assert (await rig.container.usage()).cpu_nanoseconds == before
    assert await rig.execute("echo", "awake") == "awake\n"


async def test_forwarded_port_wakes_a_frozen_sandbox_and_keeps_it_awake(rig: Rig) -> None:
    await rig.asleep()
    connection = await rig.node.node.pod_access.dial(await rig.node.get("box"), 8080, {})
    assert not rig.worker.state.frozen
    assert rig.worker.clients.connected == 1
    connection.close()
    assert rig.worker.clients.connected == 0


async def test_process_that_a_command_leaves_behind_is_a_background_process(rig: Rig) -> None:
    assert rig.container.background_processes() == 0, "the server itself and its threads are none"
    await rig.execute("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/job")
    assert rig.container.background_processes() == 1
    await rig.execute("sh", "-c", "kill $(cat /tmp/job)")

    async def ended() -> bool:
        return rig.container.background_processes() == 0

    await until(ended)
    await rig.asleep()
