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
from sandpool.node.network.dns import DnsServer, name_servers

BOX = "box.default.svc.cluster.local"


def known(name: str) -> list[str] | None:
    if not name.endswith("cluster.local."):
        raise OutsideClusterDomain(name)
    return ["10.0.0.1", "10.0.0.2"] if name == f"{BOX}." else None


@pytest_asyncio.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    server = DnsServer(known)
    datagrams = socket.create_server(("127.0.0.1", 0))
    host, port = datagrams.getsockname()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((host, port))
    await server.start(udp, datagrams)
    yield host, port
    await server.stop()


async def ask(name: str, type: str = "A") -> DNSRecord:
    reply = await DnsServer(known).answer(bytes(DNSRecord.question(name, type).pack()))
    assert reply is not None
    return DNSRecord.parse(reply)


async def test_addresses_of_a_service() -> None:
    reply = await ask(BOX)
    assert [str(answer.rdata) for answer in reply.rr] == ["10.0.0.1", "10.0.0.2"]
    assert reply.header.rcode == RCODE.NOERROR


async def test_a_name_that_is_not_there_does_not_exist() -> None:
    assert (await ask("nobody.default.svc.cluster.local")).header.rcode == RCODE.NXDOMAIN


async def test_a_name_without_an_address_of_that_kind_exists_all_the_same() -> None:
    reply = await ask(BOX, "AAAA")
    assert (reply.header.rcode, reply.rr) == (RCODE.NOERROR, [])


async def test_names_outside_do_not_exist_without_a_name_server() -> None:
    assert (await ask("example.com")).header.rcode == RCODE.NXDOMAIN


async def test_over_datagrams(address: tuple[str, int]) -> None:
    question = DNSRecord.question(BOX)
    reply = await asyncio.to_thread(lambda: question.send(*address, timeout=10))
    assert len(DNSRecord.parse(reply).rr) == 2


async def test_over_a_stream(address: tuple[str, int]) -> None:
    question = DNSRecord.question(BOX)
    reply = await asyncio.to_thread(lambda: question.send(*address, tcp=True, timeout=10))
    assert DNSRecord.parse(reply).q.qtype == QTYPE.A


async def test_names_outside_are_asked_of_the_nodes_name_server() -> None:
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


async def test_a_name_server_that_cannot_be_reached_is_said_so() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = nobody.getsockname()
    reply = await DnsServer(known, (closed,)).answer(bytes(DNSRecord.question("example.com").pack()))
    assert reply is not None
    assert DNSRecord.parse(reply).header.rcode == RCODE.SERVFAIL


@given(st.binary(max_size=64))
def test_nonsense_is_not_answered_and_hurts_nobody(message: bytes) -> None:
    reply = asyncio.run(DnsServer(known).answer(message))
    assert reply is None or isinstance(reply, bytes)


def test_the_name_servers_of_the_node(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# local\nnameserver 192.0.2.1\nsearch example.com\nnameserver 192.0.2.2\nnameserver\n")
    assert name_servers(file) == (("192.0.2.1", 53), ("192.0.2.2", 53))
    assert name_servers(tmp_path / "missing") == ()
