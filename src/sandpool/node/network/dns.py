"""Answers questions of sandboxes about names; what is not of the cluster is asked of the node's own name servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Final, cast

from dnslib import QTYPE, RCODE, RR, A, DNSError, DNSRecord

from sandpool.node.network.cluster_dns import OutsideClusterDomain

_log = logging.getLogger(__name__)

#: Seconds an answer may be kept. Sandboxes come and go.
TTL: Final = 5
#: Seconds a name server outside may take.
_PATIENCE: Final = 2.0
_TCP_LENGTH: Final = 2
_PORT: Final = 53
#: Questions under way to the outside at once; more are refused, so that no sandbox can make us a flood.
_UNDER_WAY: Final = 256

Address = tuple[str, int]
Resolve = Callable[[str], list[str] | None]


class DnsServer:
    """``upstream`` are addresses of name servers; without any, names outside do not exist."""

    def __init__(self, resolve: Resolve, upstream: tuple[Address, ...] = ()) -> None:
        self.resolve = resolve
        self.upstream = upstream
        self._asking = asyncio.Semaphore(_UNDER_WAY)
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def start(self, datagrams: socket.socket, stream: socket.socket) -> None:
        """On sockets that are bound already, in whatever network they are."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=datagrams)
        self._server = await asyncio.start_server(self._converse, sock=stream)

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def answer(self, message: bytes) -> bytes | None:
        """The answer to a message; None for what is not a question at all."""
        try:
            question = DNSRecord.parse(message)
        except (DNSError, ValueError, IndexError):
            return None
        if question.header.qr or not question.questions:
            return None
        name = str(question.q.qname)
        reply = question.reply(ra=1, aa=1)
        try:
            addresses = self.resolve(name)
        except OutsideClusterDomain:
            return await self._ask(message, question)
        if addresses is None:
            reply.header.rcode = RCODE.NXDOMAIN
        elif question.q.qtype in (QTYPE.A, QTYPE.ANY):
            for address in addresses:
                reply.add_answer(RR(name, QTYPE.A, rdata=A(address), ttl=TTL))
        return bytes(reply.pack())

    def take(self, message: bytes, send: Callable[[bytes], None]) -> None:
        """Answer in the background."""

        async def work() -> None:
            reply = await self.answer(message)
            if reply is not None:
                send(reply)

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a question about a name was not answered", exc_info=error)

    async def _ask(self, message: bytes, question: DNSRecord) -> bytes:
        if not self._asking.locked():
            async with self._asking:
                for server in self.upstream:
                    with contextlib.suppress(OSError, TimeoutError):
                        return await _forward(message, server)
        refusal = question.reply()
        refusal.header.rcode = RCODE.SERVFAIL if self.upstream else RCODE.NXDOMAIN
        return bytes(refusal.pack())

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(30):
                while True:
                    length = int.from_bytes(await reader.readexactly(_TCP_LENGTH))
                    reply = await self.answer(await reader.readexactly(length))
                    if reply is None:
                        break
                    writer.write(len(reply).to_bytes(_TCP_LENGTH) + reply)
                    await writer.drain()
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self.server.take(data, lambda reply: self.transport.sendto(reply, addr))


class _Reply(asyncio.DatagramProtocol):
    def __init__(self, id: int) -> None:
        self.id = id
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.message.done() and int.from_bytes(data[:2]) == self.id:
            self.message.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.message.done():
            self.message.set_exception(exc)


async def _forward(message: bytes, server: Address) -> bytes:
    """Under a number of our own: the sandbox's could be guessed by whoever wants to answer in the server's place."""
    number = SystemRandom().randrange(1 << 16)
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_datagram_endpoint(lambda: _Reply(number), remote_addr=server)
    try:
        transport.sendto(number.to_bytes(2) + message[2:])
        async with asyncio.timeout(_PATIENCE):
            answer = await reply.message
    finally:
        transport.close()
    return message[:2] + answer[2:]


def name_servers(path: Path = Path("/etc/resolv.conf")) -> tuple[Address, ...]:
    """Those the node itself asks."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ()
    return tuple((line.split()[1], _PORT) for line in lines if line.startswith("nameserver") and len(line.split()) > 1)
