from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest_asyncio
from dnslib import QTYPE, RCODE, DNSRecord
from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.network.cluster_dns import OutsideClusterDomain
from sandpool.node.network.dns import DnsLimits, DnsServer, name_servers

BOX = "box.default.svc.cluster.local"


def known(name: str) -> list[str] | None:
    if not name.endswith("cluster.local."):
        raise OutsideClusterDomain(name)
    return ["10.0.0.1", "10.0.0.2"] if name == f"{BOX}." else None


class TcpClient:
    """A DNS client over TCP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def query(self) -> bool:
        """Whether a query is answered. False if the server has closed the connection."""
        message = bytes(DNSRecord.question(BOX).pack())
        return await self.send(len(message).to_bytes(2) + message)

    async def send(self, data: bytes) -> bool:
        try:
            self.writer.write(data)
            await self.writer.drain()
            length = int.from_bytes(await self.reader.readexactly(2))
            return len(await self.reader.readexactly(length)) == length
        except (asyncio.IncompleteReadError, ConnectionError):
            return False


class RunningServer:
    """A DNS server with these limits, and its TCP clients at addresses of the loopback interface."""

    def __init__(self, limits: DnsLimits | None = None) -> None:
        self.server = DnsServer(known, limits=limits)
        self.clients: list[TcpClient] = []

    async def __aenter__(self) -> RunningServer:
        stream = socket.create_server(("127.0.0.1", 0))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.address: tuple[str, int] = stream.getsockname()
        datagrams.bind(self.address)
        await self.server.start(datagrams, stream)
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients:
            client.writer.close()
        await self.server.stop()

    async def connect(self, source: str = "127.0.0.1") -> TcpClient:
        client = TcpClient(*await asyncio.open_connection(*self.address, local_addr=(source, 0)))
        self.clients.append(client)
        return client


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with RunningServer() as running:
        yield running


async def ask(name: str, type: str = "A") -> DNSRecord:
    reply = await DnsServer(known).answer(bytes(DNSRecord.question(name, type).pack()))
    assert reply is not None
    return DNSRecord.parse(reply)


async def test_service_resolves_to_its_addresses() -> None:
    reply = await ask(BOX)
    assert [str(answer.rdata) for answer in reply.rr] == ["10.0.0.1", "10.0.0.2"]
    assert reply.header.rcode == RCODE.NOERROR


async def test_unknown_name_is_nxdomain() -> None:
    assert (await ask("missing.default.svc.cluster.local")).header.rcode == RCODE.NXDOMAIN


async def test_name_without_addresses_of_the_type_is_an_empty_answer() -> None:
    reply = await ask(BOX, "AAAA")
    assert (reply.header.rcode, reply.rr) == (RCODE.NOERROR, [])


async def test_outside_names_are_nxdomain_without_a_name_server() -> None:
    assert (await ask("example.com")).header.rcode == RCODE.NXDOMAIN


async def test_queries_are_answered_over_udp(server: RunningServer) -> None:
    question = DNSRecord.question(BOX)
    reply = await asyncio.to_thread(lambda: question.send(*server.address, timeout=10))
    assert len(DNSRecord.parse(reply).rr) == 2


async def test_queries_are_answered_over_tcp(server: RunningServer) -> None:
    question = DNSRecord.question(BOX)
    reply = await asyncio.to_thread(lambda: question.send(*server.address, tcp=True, timeout=10))
    assert DNSRecord.parse(reply).q.qtype == QTYPE.A


async def test_one_tcp_connection_answers_several_queries(server: RunningServer) -> None:
    client = await server.connect()
    assert [await client.query() for _ in range(3)] == [True, True, True]


async def test_tcp_connections_of_one_client_are_limited() -> None:
    async with RunningServer(DnsLimits(tcp_connections_per_client=2)) as server:
        first, second = [await server.connect() for _ in range(2)]
        assert await first.query() and await second.query()
        assert not await (await server.connect()).query()
        assert await (await server.connect("127.0.0.2")).query()
        assert await first.query()


async def test_tcp_connections_of_all_clients_are_limited() -> None:
    async with RunningServer(DnsLimits(tcp_connections=2, tcp_connections_per_client=1)) as server:
        first, second = [await server.connect(source) for source in ("127.0.0.1", "127.0.0.2")]
        assert await first.query() and await second.query()
        assert not await (await server.connect("127.0.0.3")).query()


async def test_closed_tcp_connection_makes_room_for_another() -> None:
    async with RunningServer(DnsLimits(tcp_connections_per_client=1)) as server:
        first = await server.connect()
        assert await first.query()
        first.writer.close()
        await first.writer.wait_closed()
        async with asyncio.timeout(10):
            while not await (await server.connect()).query():
                pass  # the server has not read the end of the first one yet


async def test_idle_tcp_connection_is_closed() -> None:
    async with RunningServer(DnsLimits(tcp_idle_seconds=0.05)) as server:
        client = await server.connect()
        assert await client.query()
        async with asyncio.timeout(10):
            assert await client.reader.read() == b""


async def test_slow_tcp_query_is_closed() -> None:
    async with RunningServer(DnsLimits(tcp_idle_seconds=0.05)) as server:
        client = await server.connect()
        async with asyncio.timeout(10):
            assert not await client.send(b"\x00\x20half of it")


async def test_busy_tcp_connection_is_closed_after_its_lifetime() -> None:
    async with RunningServer(DnsLimits(tcp_lifetime_seconds=0.2)) as server:
        client = await server.connect()
        async with asyncio.timeout(10):
            while await client.query():
                pass


async def test_overlong_tcp_query_closes_the_connection() -> None:
    async with RunningServer(DnsLimits(tcp_query_bytes=512)) as server:
        client = await server.connect()
        assert await client.query()
        assert not await client.send((513).to_bytes(2) + bytes(513))


async def test_open_tcp_connections_end_quietly_with_the_server() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with RunningServer() as server:
        client = await server.connect()
        assert await client.query()
        await server.server.stop()
        assert await client.reader.read() == b""
    assert errors == []


async def test_forwarded_queries_of_one_client_are_limited() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        server = DnsServer(known, (silent.getsockname(),), DnsLimits(forwarded_queries_per_client=1))
        query = bytes(DNSRecord.question("example.com").pack())
        waiting = asyncio.create_task(server.answer(query, "10.0.0.1"))
        await asyncio.sleep(0)
        refused = await server.answer(query, "10.0.0.1")
        assert refused is not None and DNSRecord.parse(refused).header.rcode == RCODE.SERVFAIL
        assert not waiting.done()
        other = asyncio.create_task(server.answer(query, "10.0.0.2"))
        await asyncio.sleep(0)
        assert not other.done()
        for task in (waiting, other):
            task.cancel()
        await asyncio.gather(waiting, other, return_exceptions=True)


async def test_outside_names_are_forwarded_to_the_name_server_of_the_node() -> None:
    asked = asyncio.get_running_loop().create_future()

    class Outside(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.DatagramTransport, transport)

        def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
            asked.set_result(data)
            self.transport.sendto(data[:2] + b"answer", addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Outside, local_addr=("127.0.0.1", 0))
    try:
        question = bytes(DNSRecord.question("example.com").pack())
        reply = await DnsServer(known, (transport.get_extra_info("sockname"),)).answer(question)
        assert reply == question[:2] + b"answer"
        assert (await asked)[2:] == question[2:]
    finally:
        transport.close()


async def test_unreachable_name_server_is_servfail() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        closed = placeholder.getsockname()
    reply = await DnsServer(known, (closed,)).answer(bytes(DNSRecord.question("example.com").pack()))
    assert reply is not None
    assert DNSRecord.parse(reply).header.rcode == RCODE.SERVFAIL


@given(st.binary(max_size=64))
def test_malformed_query_is_not_answered(message: bytes) -> None:
    reply = asyncio.run(DnsServer(known).answer(message))
    assert reply is None or isinstance(reply, bytes)


def test_name_servers_of_the_node_are_read(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# local\nnameserver 192.0.2.1\nsearch example.com\nnameserver 192.0.2.2\nnameserver\n")
    assert name_servers(file) == (("192.0.2.1", 53), ("192.0.2.2", 53))
    assert name_servers(tmp_path / "missing") == ()
