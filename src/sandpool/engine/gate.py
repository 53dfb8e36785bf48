"""Limits the connections of an HTTP server of another library, before that library sees a byte.

Libraries accept whatever the kernel has, complete every TLS handshake, and hold the head of a request for as long as
its client likes. The gate accepts in their place: strangers, which are connections without an authenticated request,
make room for others (see ``listener``); all connections are limited in number, in all and per address; and the first
head of a connection is limited in bytes and in time.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from sandpool.server.http.limits import KIB, HttpLimits
from sandpool.server.http.listener import Accepted, Listener, Stranger

_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_OVERLAP: Final = 3  # bytes of the end of a head that may have come before the rest
_ANSWER: Final = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_MANY: Final = _ANSWER % b"503 Service Unavailable"
_TOO_LARGE: Final = _ANSWER % b"431 Request Header Fields Too Large"
_TOO_SLOW: Final = _ANSWER % b"408 Request Timeout"


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Numbers of connections; ``head`` is in bytes. The defaults of strangers are those of the API server."""

    connections: int = 2048
    per_address: int = 1024
    strangers: int = 1024
    strangers_per_address: int = 512
    head: int = 64 * KIB
    head_seconds: float = 30.0
    tls_handshake_seconds: float = 10.0


class Gate:
    """``factory`` makes the library's protocol for a connection that was admitted. ``listen`` begins, ``close`` ends
    accepting; the library closes the connections."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], limits: GateLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        self.factory = factory
        self.limits = limits
        accepting = HttpLimits(
            strangers=limits.strangers,
            strangers_per_address=limits.strangers_per_address,
            tls_handshake_seconds=limits.tls_handshake_seconds,
        )
        self._listener = Listener(self._connection, host="", port=0, tls=tls, limits=accepting)
        self._connections: set[_GatedConnection] = set()
        self._by_client: dict[object, _GatedConnection] = {}
        self._by_address: Counter[str] = Counter()

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept the connections of listening sockets, which this closes at the end."""
        self._listener.listen(sockets)

    async def close(self) -> None:
        self._listener.close()
        await self._listener.wait_closed()

    def is_stranger(self, client: object) -> bool:
        """Whether no request of the connection from this address, as in ``peername``, was authenticated."""
        found = self._by_client.get(client)
        return found is not None and found.is_stranger

    def authenticated(self, client: object) -> None:
        """A request on the connection from this address was authenticated: it makes no room for others any more."""
        found = self._by_client.get(client)
        if found is not None and found.is_stranger:
            found.is_stranger = False
            self._listener.strangers.remove(found.stranger)

    def admit(self, connection: _GatedConnection) -> bool:
        """Whether a connection is served. With all connections in use, an older stranger makes room."""
        strangers = self._listener.strangers
        if self._by_address[connection.stranger.address] >= self.limits.per_address:
            return False
        if len(self._connections) >= self.limits.connections and not (len(strangers) > 1 and strangers.make_room()):
            return False
        self._connections.add(connection)
        self._by_client[connection.client] = connection
        self._by_address[connection.stranger.address] += 1
        return True

    def ended(self, connection: _GatedConnection) -> None:
        self._listener.strangers.remove(connection.stranger)
        if connection not in self._connections:
            return  # it was not admitted
        self._connections.remove(connection)
        address = connection.stranger.address
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if self._by_client.get(connection.client) is connection:
            del self._by_client[connection.client]

    def _connection(self, stranger: Stranger) -> Accepted:
        return _GatedConnection(self, stranger)


class _GatedConnection(Accepted):
    """Passes everything on to the protocol of the library, once the connection is admitted."""

    def __init__(self, gate: Gate, stranger: Stranger) -> None:
        self.gate = gate
        self.stranger = stranger
        self.client: object = None
        self.is_stranger = True
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._head: bytearray | None = bytearray()  # of the first request, until it is complete
        self._deadline: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.stranger.connection = cast(asyncio.Transport, transport), self
        self.client = transport.get_extra_info("peername")
        if not self.gate.admit(self):
            self._refuse(_TOO_MANY)
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self.gate.limits.head_seconds, self._refuse, _TOO_SLOW)
        self._protocol = self.gate.factory()
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._head is not None and not self._takes(self._head, data):
            self._refuse(_TOO_LARGE)
        elif self._protocol is not None:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._protocol is None else self._protocol.eof_received()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.stranger.connection = None
        self.gate.ended(self)
        self._headed()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def _takes(self, head: bytearray, data: bytes) -> bool:
        """Add to the first head; returns False if it is too large."""
        searched = max(len(head) - _OVERLAP, 0)
        head += data if head else data.lstrip(b"\r\n")
        end = _END_OF_HEAD.search(head, searched)
        if (len(head) if end is None else end.end()) > self.gate.limits.head:
            return False
        if end is not None:
            self._headed()
        return True

    def _headed(self) -> None:
        self._head = None
        if self._deadline is not None:
            self._deadline.cancel()

    def _refuse(self, answer: bytes) -> None:
        """Answer in place of the library, which learns that the connection is lost."""
        assert self._transport is not None
        self._headed()
        protocol, self._protocol = self._protocol, None
        self._transport.write(answer)
        self._transport.close()
        if protocol is not None:
            protocol.connection_lost(None)
