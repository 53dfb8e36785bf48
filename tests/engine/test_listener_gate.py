"""The gate before HTTP servers of other libraries: numbers of connections, and their first heads."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from sandpool.engine.listener import Gate, GateLimits

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Library(asyncio.Protocol):
    """The protocol of a library: it answers whatever comes with a line, and keeps what it was told."""

    made: list[Library]

    def __init__(self) -> None:
        self.received = b""
        self.lost = asyncio.get_running_loop().create_future()
        Library.made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.transport.write(b"served\n")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


@pytest.fixture(autouse=True)
def made() -> list[Library]:
    Library.made = []
    return Library.made


class Gated:
    def __init__(self, gate: Gate, port: int) -> None:
        self.gate = gate
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, address: str = "127.0.0.1") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._writers.append(writer)
        return reader, writer

    async def served(self, address: str = "127.0.0.1") -> Connection:
        """A connection with a first request."""
        reader, writer = await self.connect(address)
        writer.write(GET)
        assert await reader.readline() == b"served\n"
        return reader, writer

    async def known(self, address: str = "127.0.0.1") -> Connection:
        """A connection with a request that was authenticated."""
        reader, writer = await self.served(address)
        self.gate.authenticated(writer.get_extra_info("sockname"))
        return reader, writer

    async def close(self) -> None:
        await self.gate.close()
        for writer in self._writers:
            writer.transport.abort()
        for each in Library.made:
            if not each.lost.done():
                await each.lost


@asynccontextmanager
async def gated(limits: GateLimits, tls: ssl.SSLContext | None = None) -> AsyncIterator[Gated]:
    listening = socket.create_server(("127.0.0.1", 0))
    gate = Gate(Library, limits, tls)
    gate.listen([listening])
    made = Gated(gate, listening.getsockname()[1])
    try:
        yield made
    finally:
        await made.close()


async def test_connections_beyond_the_limit_are_answered_and_closed() -> None:
    async with gated(GateLimits(connections=2)) as server:
        for _ in range(2):
            await server.known()
        reader, _ = await server.connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        assert len(Library.made) == 2, "the library sees no more than the limit"


async def test_an_ended_connection_makes_room() -> None:
    async with gated(GateLimits(connections=1, per_address=1)) as server:
        _, writer = await server.known()
        writer.close()
        await Library.made[0].lost
        await server.known()


async def test_the_oldest_stranger_makes_room_and_known_clients_stay() -> None:
    async with gated(GateLimits(connections=3)) as server:
        known, known_writer = await server.known()
        stranger, _ = await server.served()
        younger, younger_writer = await server.served()
        await server.served()
        assert await stranger.read() == b""
        for reader, writer in ((known, known_writer), (younger, younger_writer)):
            writer.write(GET)
            assert await reader.readline() == b"served\n"


async def test_one_address_cannot_take_the_places_of_others() -> None:
    async with gated(GateLimits(per_address=2)) as server:
        for _ in range(2):
            await server.known()
        reader, _ = await server.connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        await server.known("127.0.0.2")


async def test_silent_connections_of_an_address_push_out_each_other() -> None:
    async with gated(GateLimits(strangers_per_address=2)) as server:
        other, other_writer = await server.served("127.0.0.2")
        first, _ = await server.connect()
        for _ in range(2):
            await server.connect()
        assert await first.read() == b""
        other_writer.write(GET)
        assert await other.readline() == b"served\n"


async def test_handshakes_count_before_they_end() -> None:
    """Silent connections to a port with TLS cost a descriptor each, and never reach the library."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with gated(GateLimits(strangers=2), context) as server:
        first, _ = await server.connect()
        for _ in range(2):
            await server.connect()
        assert await first.read() == b""
        assert not Library.made


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_a_first_head_is_bounded_in_bytes(size: int) -> None:
    head = (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000)[:2001]
    async with gated(GateLimits(head=2000)) as server:
        reader, writer = await server.connect()
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(head), size):
            writer.write(head[start : start + size])
            await asyncio.sleep(0)
        assert b"HTTP/1.1 431" in await reader.read()
        assert len(Library.made[0].received) <= 2000
        await Library.made[0].lost


async def test_a_body_is_no_part_of_the_head() -> None:
    async with gated(GateLimits(head=100)) as server:
        reader, writer = await server.connect()
        writer.write(b"\r\n" + GET + b"x" * 10_000)
        assert await reader.readline() == b"served\n"
        writer.write(b"x" * 10_000)
        assert await reader.readline() == b"served\n"


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_first_head_is_bounded_in_time(sent: bytes) -> None:
    async with gated(GateLimits(head_seconds=0.05)) as server:
        reader, writer = await server.connect()
        writer.write(sent)
        assert b"HTTP/1.1 408" in await reader.read()


async def test_a_connection_with_a_complete_head_may_last() -> None:
    async with gated(GateLimits(head_seconds=0.05)) as server:
        reader, writer = await server.connect()
        writer.write(GET[:-2])
        writer.write(GET[-2:])
        late, _ = await server.connect()
        assert b"408" in await late.read()
        writer.write(GET)
        assert await reader.readline() == b"served\n"
        assert not Library.made[0].lost.done()


async def test_closing_twice_is_closing_once() -> None:
    async with gated(GateLimits()) as server:
        await server.gate.close()
