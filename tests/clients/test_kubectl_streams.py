"""kubectl exec, attach, logs and port-forward through the embedded API, to a pod that the test plays."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.kinds import NODE, POD
from sandpool.api.resource import Object
from sandpool.kube.client import MergePatch
from sandpool.kube.pod_access import StreamClient
from sandpool.node.kubelet.kubelet import Kubelet, KubeletOptions
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.fake_kubelet import node_at, started
from tests.support.fake_pod_access import FakePodAccess
from tests.support.kubectl import Kubectl, find_kubectls

KUBECTLS = find_kubectls()
pytestmark = pytest.mark.skipif(not KUBECTLS, reason="no kubectl: install the Debian package kubectl")
# Where the pod is: in the process of the API server, or behind a kubelet, whose API it is reached through.
HERE, THERE = "here", "there"


async def play(command: tuple[str, ...], client: StreamClient) -> int:
    match command:
        case ("echo", *words):
            await client.write(" ".join(words).encode() + b"\n")
        case ("warn", word):
            await client.write(word.encode() + b"\n", error=True)
        case ("cat",):
            while data := await client.receive():
                await client.write(data)
        case ("exit", code):
            return int(code)
        case ("flood", size):
            await client.write(b"x" * int(size))
        case ("size",):
            await client.write(f"{await client.next_size()}\r\n".encode())
        case ("attach", container):
            await client.write(f"attached to {container}\n".encode())
        case ("wait",):
            await asyncio.get_running_loop().create_future()
    return 0


class Rig:
    def __init__(self, daemon: Daemon, pod_access: FakePodAccess, kubectl: Kubectl) -> None:
        self.daemon = daemon
        self.pod_access = pod_access
        self.kubectl = kubectl

    async def run(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.kubectl, *arguments, stdin=stdin)

    async def fails(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.kubectl.fails, *arguments)


@pytest_asyncio.fixture(params=[(kubectl, place) for kubectl in KUBECTLS for place in (HERE, THERE)], ids="-".join)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    kubectl, place = request.param
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0))
    await daemon.start()
    pod_access = FakePodAccess(play)
    client = daemon.server.client()
    spec: Object = {"nodeName": "node", "containers": [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]}
    await client.create(POD, new(POD, "box", spec=spec), "default")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    pod = await client.patch(POD, "box", MergePatch({"status": status}), "default", subresource="status")
    found = Rig(daemon, pod_access, Kubectl(KUBECTLS[kubectl], daemon.kubeconfig, tmp_path / "cache"))
    if place == HERE:
        daemon.server.pod_access = pod_access
        yield found
    else:
        own = KubeletOptions(address="127.0.0.1", port=0)
        kubelet = Kubelet(client, daemon.clock, own, "node", tmp_path / "kubelet", lambda *_: pod, pod_access)
        node = node_at(await started(kubelet), "node")
        await client.create(NODE, node)
        await client.patch(NODE, "node", MergePatch({"status": node["status"]}), subresource="status")
        yield found
        await kubelet.stop()
    await daemon.stop(0)


async def test_exec_prints_the_output(rig: Rig) -> None:
    assert await rig.run("exec", "box", "-c", "main", "--", "echo", "hello", "world") == "hello world\n"


async def test_exec_returns_the_exit_code(rig: Rig) -> None:
    answer = await rig.fails("exec", "box", "-c", "main", "--", "exit", "42")
    assert "command terminated with exit code 42" in answer


async def test_exec_forwards_stdin(rig: Rig) -> None:
    assert await rig.run("exec", "-i", "box", "-c", "main", "--", "cat", stdin="typed\n") == "typed\n"


async def test_exec_forwards_large_input_and_output(rig: Rig) -> None:
    text = "0123456789" * 100_000
    assert await rig.run("exec", "-i", "box", "-c", "main", "--", "cat", stdin=text) == text
    assert len(await rig.run("exec", "box", "-c", "main", "--", "flood", "5000000")) == 5_000_000


async def test_exec_separates_stderr(rig: Rig) -> None:
    assert await rig.run("exec", "box", "-c", "main", "--", "warn", "careful") == ""


async def test_exec_reports_errors(rig: Rig) -> None:
    assert "container main is not running" in await rig.fails("exec", "box", "-c", "main", "--", "impossible")
    assert "not found" in await rig.fails("exec", "missing", "--", "echo")
    assert "container other" in await rig.fails("exec", "box", "-c", "other", "--", "echo")
    rig.daemon.server.pod_access = rig.daemon.server.kubelet_client = None
    assert "cannot be reached: no node of this server runs it" in await rig.fails(
        "exec", "box", "-c", "main", "--", "a"
    )


async def test_exec_ends_the_command_with_its_client(rig: Rig) -> None:
    process = rig.kubectl.start("exec", "box", "-c", "main", "--", "wait")

    async def running() -> bool:
        return rig.pod_access.running == 1

    await until(running)
    process.terminate()
    await asyncio.to_thread(process.communicate)

    async def ended() -> bool:
        return rig.pod_access.running == 0

    await until(ended)


async def test_attach_connects_to_the_container(rig: Rig) -> None:
    assert "attached to side" in await rig.run("attach", "box", "-c", "side")


async def test_logs_are_printed(rig: Rig) -> None:
    rig.pod_access.log = [b"one\n", b"two\n"]
    assert await rig.run("logs", "box", "-c", "main") == "one\ntwo\n"
    await rig.run("logs", "box", "-c", "side", "--previous", "--timestamps", "--tail=5", "--limit-bytes=100")
    query = rig.pod_access.queries[-1]
    assert (query.container, query.previous, query.timestamps, query.tail, query.limit) == ("side", True, True, 5, 100)


async def test_logs_are_followed(rig: Rig) -> None:
    rig.pod_access.log, rig.pod_access.more = [b"first\n"], asyncio.Event()
    process = rig.kubectl.start("logs", "-f", "box", "-c", "main")
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "first\n"
    rig.pod_access.more.set()
    rest, _ = await asyncio.to_thread(process.communicate)
    assert rest == "the last\n"


async def test_port_forward_serves_many_connections(rig: Rig) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(echo, "127.0.0.1", 0) for _ in range(2)]
    for number, server in enumerate(servers):
        rig.pod_access.ports[8080 + number] = server.sockets[0].getsockname()[1]
    process = rig.kubectl.start("port-forward", "pod/box", ":8080", ":8081", ":9999")
    try:
        ports = await _forwarded(process, 3)

        async def talk(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[8080 + number % 2])
            message = f"message {number} ".encode() * 5000
            writer.write(message)
            writer.write_eof()
            assert await reader.read() == message
            writer.close()

        await asyncio.gather(*map(talk, range(50)))
        # A connection that only tests whether the port is open, as the SDK does, disturbs no other.
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", ports[8080])
            writer.close()
        await talk(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[9999])
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert process.stdout is not None
        while "error" not in (line := await asyncio.to_thread(process.stdout.readline)):
            assert line, "kubectl has ended without a word"
        assert "an error occurred forwarding port 9999: nothing listens on it" in line
    finally:
        process.terminate()
        await asyncio.to_thread(process.communicate)
        for server in servers:
            server.close()


async def _forwarded(process: subprocess.Popen[str], count: int) -> dict[int, int]:
    """Port of the pod -> port of this machine, as kubectl announces them."""
    assert process.stdout is not None
    found: dict[int, int] = {}
    while len(found) < count:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, "kubectl has ended"
        if match := re.search(r"127\.0\.0\.1:(\d+) -> (\d+)", line):
            found[int(match[2])] = int(match[1])
    return found
