"""The TCP proxy cuts, holds and opens connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandpool.testing.waiting import WITHIN
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """A proxy to an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, proxy: TcpProxy) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", proxy.port))

    async def says(self, text: bytes) -> bytes:
        """Return the echo; nothing once the connection is lost."""
        self.writer.write(text + b"\n")
        try:
            async with asyncio.timeout(WITHIN):
                return await self.reader.readline()
        except ConnectionError:
            return b""

    def leave(self) -> None:
        self.writer.transport.abort()


async def test_bytes_pass_in_both_directions(proxy: TcpProxy) -> None:
    caller = await Caller.of(proxy)
    assert await caller.says(b"hello") == b"hello\n"
    assert proxy.passages == 1
    caller.leave()


async def test_cut_ends_existing_connections_only(proxy: TcpProxy) -> None:
    caller = await Caller.of(proxy)
    assert await caller.says(b"hello") == b"hello\n"
    proxy.cut()
    assert await caller.says(b"hello?") == b""
    other = await Caller.of(proxy)
    assert await other.says(b"hello") == b"hello\n"
    assert proxy.passages == 2
    caller.leave()
    other.leave()


async def test_held_connection_waits_until_the_proxy_opens(proxy: TcpProxy) -> None:
    proxy.hold()
    caller = await Caller.of(proxy)
    saying = asyncio.create_task(caller.says(b"hello"))
    await asyncio.sleep(0)
    assert proxy.passages == 0
    proxy.open()
    assert await saying == b"hello\n"
    caller.leave()
