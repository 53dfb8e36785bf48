"""A way to a server that can be cut, held up and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandpool.testing.waiting import WITHIN
from tests.support.tcp_proxy import Strait


@pytest.fixture
async def strait() -> AsyncIterator[Strait]:
    """To a server that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with Strait("127.0.0.1", server.sockets[0].getsockname()[1]) as strait:
        yield strait
    server.close()
    await server.wait_closed()


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, strait: Strait) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", strait.port))

    async def says(self, text: bytes) -> bytes:
        """What comes back; nothing once the connection is lost."""
        self.writer.write(text + b"\n")
        try:
            async with asyncio.timeout(WITHIN):
                return await self.reader.readline()
        except ConnectionError:
            return b""

    def leave(self) -> None:
        self.writer.transport.abort()


async def test_bytes_pass_in_both_directions(strait: Strait) -> None:
    caller = await Caller.of(strait)
    assert await caller.says(b"hello") == b"hello\n"
    assert strait.passages == 1
    caller.leave()


async def test_cut_ends_existing_connections_only(strait: Strait) -> None:
    caller = await Caller.of(strait)
    assert await caller.says(b"hello") == b"hello\n"
    strait.cut()
    assert await caller.says(b"anybody?") == b""
    other = await Caller.of(strait)
    assert await other.says(b"hello") == b"hello\n"
    assert strait.passages == 2
    caller.leave()
    other.leave()


async def test_held_connection_waits_until_the_proxy_opens(strait: Strait) -> None:
    strait.hold()
    caller = await Caller.of(strait)
    saying = asyncio.create_task(caller.says(b"hello"))
    await asyncio.sleep(0)
    assert strait.passages == 0
    strait.open()
    assert await saying == b"hello\n"
    caller.leave()
