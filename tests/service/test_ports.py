"""Local ports: the end of a forward ends its connections."""

from __future__ import annotations

import asyncio
from typing import cast

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.pod_client import PodClient
from sandpool.service.ports import Ports
from sandpool.service.sandboxes import Sandbox


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
