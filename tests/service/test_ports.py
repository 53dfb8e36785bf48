"""Local ports: the end of a forward ends its connections, and a refusal is told to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD
from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound
from sandpool.kube.pod_access import StreamClient
from sandpool.kube.pod_client import PodClient
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.service.ports import Ports
from sandpool.service.sandboxes import Sandbox
from sandpool.testing.objects import new
from tests.support.fake_pod_access import FakePodAccess

GET = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"
WHY = (
    "an error occurred forwarding port 8124: nothing listens on it. "
    "A server in box has to listen on port 8124 of 0.0.0.0"
)


class SilentPods:
    """Pods whose ports accept everything and never answer."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def tunnel(self, namespace: str, pod: str) -> ByteStream:
        return self

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def send(self, data: bytes) -> None:
        self.reached.set()

    async def close(self) -> None:
        pass


def sandbox() -> Sandbox:
    return Sandbox._make("" for _ in Sandbox._fields)._replace(name="box", namespace="default", pod="box")


BOX = sandbox()._replace(ready=True)


async def test_the_end_of_a_forward_ends_its_connections_quietly() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    pods = SilentPods()
    async with Ports(cast(PodClient, pods)).forward(sandbox(), 8123) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await pods.reached.wait()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert errors == []


async def no_commands(command: tuple[str, ...], client: StreamClient) -> int:
    raise NotImplementedError


@pytest_asyncio.fixture
async def ports(tmp_path: Path) -> AsyncIterator[Ports]:
    """Ports of a pod in which nothing listens on any port."""
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0))
    await daemon.start()
    daemon.server.pod_access = FakePodAccess(no_commands)
    client = daemon.server.client()
    spec = {"nodeName": "node", "containers": [{"name": "main", "image": "a"}]}
    await client.create(POD, new(POD, "box", spec=spec), "default")
    await client.patch(POD, "box", MergePatch({"status": {"phase": "Running"}}), "default", subresource="status")
    pods = daemon.server.pod_client()
    yield Ports(pods)
    await pods.close()
    await daemon.stop(0)


async def answer(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    return received


async def test_a_request_to_a_port_without_a_server_is_answered_with_what_to_do(ports: Ports) -> None:
    told: list[str] = []
    async with ports.forward(BOX, 8124, problem=told.append) as port:
        head, _, body = (await answer(port, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 502 ")
        assert body.decode() == f"{WHY}\n"
        assert told == [WHY]


async def test_a_large_upload_to_a_port_without_a_server_gets_its_answer(ports: Ports) -> None:
    body = b"x" * (4 << 20)
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with ports.forward(BOX, 8124) as port:
        assert WHY.encode() in await answer(port, head + body)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 a handshake of TLS\n", b"SELECT 1;\n"])
async def test_other_protocols_get_no_answer_of_http(ports: Ports, sent: bytes) -> None:
    told: list[str] = []
    async with ports.forward(BOX, 8124, problem=told.append) as port:
        assert await answer(port, sent) == b""
        assert told == [WHY]


class EndedPods:
    """A pod that has ended: the port-forward to it breaks, and there is no other."""

    def __init__(self) -> None:
        self.exists = True

    async def tunnel(self, namespace: str, pod: str) -> ByteStream:
        if not self.exists:
            raise NotFound(f'pods "{pod}" not found')
        self.exists = False
        return self

    async def receive(self) -> bytes:
        return b""

    async def send(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_the_end_of_the_sandbox_is_told_to_the_client() -> None:
    box = sandbox()._replace(claim="mine", ready=True)
    async with Ports(cast(PodClient, EndedPods())).forward(box, 8124) as port:
        received = (await answer(port, GET)).decode()
    assert received.startswith("HTTP/1.1 502 ")
    assert 'sandbox "mine" cannot be reached: ' in received
    assert "Find out more with: sandpool why mine" in received
