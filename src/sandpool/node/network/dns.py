"""DNS server for sandboxes: answers names of the cluster, forwards all others to the node's name servers.

Sandboxes are hostile clients, so everything a client can hold has a limit (``DnsLimits``): TCP connections in total and
per client address, their idle time, lifetime and query size, and queries under way to name servers outside. The limits
per client keep one sandbox from using up what others need.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, cast

from dnslib import QTYPE, RCODE, RR, A, DNSError, DNSRecord
from dnslib.label import DNSBuffer, DNSLabelError

from sandpool.node.network.cluster_dns import OutsideClusterDomain

_log = logging.getLogger(__name__)

#: Seconds a client may cache an answer. Sandboxes come and go.
TTL: Final = 5
_UPSTREAM_TIMEOUT: Final = 2.0  # seconds
_TCP_LENGTH_BYTES: Final = 2
_PORT: Final = 53

ServerAddress = tuple[str, int]
#: Resolves a name to addresses; None if the name does not exist. Raises ``OutsideClusterDomain``.
ResolveName = Callable[[str], list[str] | None]


@dataclass(frozen=True, slots=True)
class DnsLimits:
    """Limits of clients. Connections and queries beyond a limit are refused at once, never queued."""

    tcp_connections: int = 256
    tcp_connections_per_client: int = 8
    tcp_idle_seconds: float = 10.0  # for one query to arrive
    tcp_lifetime_seconds: float = 30.0
    tcp_query_bytes: int = 4096  # more than a query with every extension needs
    forwarded_queries: int = 256
    forwarded_queries_per_client: int = 64


class _ClientQuota:
    """Counts what clients hold, against a limit for all and a limit for each."""

    def __init__(self, total: int, per_client: int) -> None:
        self.total = total
        self.per_client = per_client
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[bool]:
        """Take one for the duration of the block. Yields False if a limit is reached."""
        if self._held.total() >= self.total or self._held[client] >= self.per_client:
            yield False
            return
        self._held[client] += 1
        try:
            yield True
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]


class DnsServer:
    """``upstream`` are the name servers to forward to; without any, names outside the cluster do not exist."""

    def __init__(
        self, resolve: ResolveName, upstream: tuple[ServerAddress, ...] = (), limits: DnsLimits | None = None
    ) -> None:
        self.resolve = resolve
        self.upstream = upstream
        self.limits = limits or DnsLimits()
        self._connections = _ClientQuota(self.limits.tcp_connections, self.limits.tcp_connections_per_client)
        self._forwards = _ClientQuota(self.limits.forwarded_queries, self.limits.forwarded_queries_per_client)
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def start(self, datagrams: socket.socket, stream: socket.socket) -> None:
        """Serve on bound sockets, which may be in another network namespace."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: _UdpProtocol(self), sock=datagrams)
        self._server = await asyncio.start_server(self._accept, sock=stream, limit=self.limits.tcp_query_bytes)

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def answer(self, message: bytes, client: str = "") -> bytes | None:
        """Return the reply to a query of the client with this address; None if the message is not a query."""
        try:
            query = DNSRecord.parse(message)
        except (DNSError, ValueError, IndexError):
            return None
        if query.header.qr or not query.questions or not _is_valid(query):
            return None
        name = str(query.q.qname)
        reply = query.reply(ra=1, aa=1)
        try:
            addresses = self.resolve(name)
        except OutsideClusterDomain:
            return await self._forward(message, query, client)
        if addresses is None:
            reply.header.rcode = RCODE.NXDOMAIN
        elif query.q.qtype in (QTYPE.A, QTYPE.ANY):
            for address in addresses:
                reply.add_answer(RR(name, QTYPE.A, rdata=A(address), ttl=TTL))
        return bytes(reply.pack())

    def answer_in_background(self, message: bytes, client: str, send: Callable[[bytes], None]) -> None:
        async def work() -> None:
            reply = await self.answer(message, client)
            if reply is not None:
                send(reply)

        self._start(work())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a DNS query was not answered", exc_info=error)

    async def _forward(self, message: bytes, query: DNSRecord, client: str) -> bytes:
        with self._forwards.hold(client) as is_within_limits:
            if is_within_limits:
                for server in self.upstream:
                    with contextlib.suppress(OSError, TimeoutError):
                        return await _ask_upstream(message, server)
        refusal = query.reply()
        refusal.header.rcode = RCODE.SERVFAIL if self.upstream else RCODE.NXDOMAIN
        return bytes(refusal.pack())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio reports the cancellation of a task that it made itself as an error.
        self._start(self._serve_tcp(reader, writer)).add_done_callback(lambda _: _close(writer))

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = str((writer.get_extra_info("peername") or ("",))[0])
        with self._connections.hold(client) as is_within_limits:
            if is_within_limits:
                await self._answer_stream(reader, writer, client)

    async def _answer_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str) -> None:
        limits = self.limits
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(limits.tcp_lifetime_seconds):
                while True:
                    async with asyncio.timeout(limits.tcp_idle_seconds):
                        length = int.from_bytes(await reader.readexactly(_TCP_LENGTH_BYTES))
                        if length > limits.tcp_query_bytes:
                            return
                        message = await reader.readexactly(length)
                    reply = await self.answer(message, client)
                    if reply is None:
                        return
                    writer.write(len(reply).to_bytes(_TCP_LENGTH_BYTES) + reply)
                    await writer.drain()


def _close(writer: asyncio.StreamWriter) -> None:
    # close() would keep the connection of a client that does not read its replies.
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()
    else:
        writer.close()


def _is_valid(query: DNSRecord) -> bool:
    """Return whether the reply can repeat the questions. dnslib reads names that it refuses to write."""
    try:
        for question in query.questions:
            question.pack(DNSBuffer())
    except DNSLabelError:
        return False
    return True


class _UdpProtocol(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self.server.answer_in_background(data, str(addr[0]), lambda reply: self.transport.sendto(reply, addr))


class _UpstreamReply(asyncio.DatagramProtocol):
    def __init__(self, number: int) -> None:
        self.number = number
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.message.done() and int.from_bytes(data[:2]) == self.number:
            self.message.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.message.done():
            self.message.set_exception(exc)


async def _ask_upstream(message: bytes, server: ServerAddress) -> bytes:
    """Forward a query under a random number of our own: an attacker who forges replies could guess the sandbox's."""
    number = SystemRandom().randrange(1 << 16)
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_datagram_endpoint(lambda: _UpstreamReply(number), remote_addr=server)
    try:
        transport.sendto(number.to_bytes(2) + message[2:])
        async with asyncio.timeout(_UPSTREAM_TIMEOUT):
            answer = await reply.message
    finally:
        transport.close()
    return message[:2] + answer[2:]


def name_servers(path: Path = Path("/etc/resolv.conf")) -> tuple[ServerAddress, ...]:
    """Return the name servers that the node itself uses."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ()
    return tuple((line.split()[1], _PORT) for line in lines if line.startswith("nameserver") and len(line.split()) > 1)
