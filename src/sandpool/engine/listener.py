"""Accepts connections and limits those of strangers: clients that have not authenticated yet.

A connection is a stranger from the moment it is accepted, through its TLS handshake and its first head, until a request
on it has been authenticated. A stranger costs memory and a descriptor, so their number is limited in all and per
address. When a limit is reached, the oldest stranger makes room: a client that means to authenticate does so within
milliseconds, and a flood from one address closes its own connections first.

``Gate`` accepts for HTTP servers of other libraries, before they see a byte. They accept whatever the kernel has,
complete every TLS handshake, and hold the head of a request for as long as its client likes. Behind the gate strangers
make room for others, all connections are limited in number, in all and per address, and the first head of a connection
is limited in bytes and in time.

The event loop's own ``create_server`` shows a connection only after its handshake, and accepts a whole backlog in one
turn. This listener accepts a few connections per turn.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

logger = logging.getLogger(__name__)

#: Connections that are accepted in one turn of the event loop.
ACCEPTED_PER_TURN: Final = 16
_BACKLOG: Final = 1024
# Pause after accepting failed for lack of descriptors or memory.
_PAUSE_SECONDS: Final = 1.0
# Of an address family that the machine does not have, or has switched off.
_NO_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepted(asyncio.Protocol):
    """The protocol of an accepted connection."""

    def abort(self) -> None: ...


class StrangerLimits(Protocol):
    """What a listener needs of the limits of a server."""

    @property
    def strangers(self) -> int: ...

    @property
    def strangers_per_address(self) -> int: ...

    @property
    def tls_handshake_seconds(self) -> float: ...

    @property
    def linger_seconds(self) -> float: ...


class ConnectionFactory(Protocol):
    def __call__(self, stranger: Stranger) -> Accepted: ...


class Stranger:
    """A connection that has not authenticated."""

    __slots__ = ("address", "connection", "socket")

    def __init__(self, address: str, socket: socket.socket) -> None:
        self.address = address
        self.socket = socket
        self.connection: Accepted | None = None  # once the handshake is done

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.abort()
        else:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # ends the handshake, whose task closes the socket


class Strangers:
    """The strangers of all addresses, oldest first."""

    def __init__(self, limits: StrangerLimits) -> None:
        self._limits = limits
        self._by_address: dict[str, dict[Stranger, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, stranger: Stranger) -> None:
        """Add a stranger; drops an older one if there are too many."""
        group = self._by_address.setdefault(stranger.address, {})
        group[stranger] = None
        self._count += 1
        if len(group) > self._limits.strangers_per_address:
            self._drop_oldest(group)
        elif self._count > self._limits.strangers:
            self._drop_oldest(max(self._by_address.values(), key=len))

    def remove(self, stranger: Stranger) -> None:
        group = self._by_address.get(stranger.address, {})
        if stranger in group:
            del group[stranger]
            self._count -= 1
            if not group:
                del self._by_address[stranger.address]

    def make_room(self) -> bool:
        """Drop the oldest stranger of the address that has the most; returns whether there was one."""
        if not self._count:
            return False
        self._drop_oldest(max(self._by_address.values(), key=len))
        return True

    def _drop_oldest(self, group: dict[Stranger, None]) -> None:
        oldest = next(iter(group))
        self.remove(oldest)
        oldest.drop()


class Listener:
    """Listens on one port, with or without TLS. ``start`` raises ``OSError`` if the port cannot be opened."""

    def __init__(
        self, factory: ConnectionFactory, *, host: str, port: int, tls: ssl.SSLContext | None, limits: StrangerLimits
    ) -> None:
        self._factory = factory
        self._host = host
        self.port = port  # the actual port, once started
        self.tls = tls  # of new connections
        self._limits = limits
        self.strangers = Strangers(limits)
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    sockets.append(_listening(family, kind, protocol, address))
                except OSError as error:
                    if error.errno not in _NO_FAMILY:
                        raise
                    missing = error
            if missing is not None and not sockets:
                raise missing
        except BaseException:
            for each in sockets:
                each.close()
            raise
        self.listen(sockets)

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept the connections of sockets that listen already. ``close`` closes them."""
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            listening.setblocking(False)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting, and end handshakes. Further calls change nothing."""
        self._closed = True
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            stranger = Stranger(peer[0] if isinstance(peer, tuple) else "", accepted)
            self.strangers.add(stranger)
            task = self._loop.create_task(self._open(stranger))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        dropped = self.strangers.make_room()
        logger.error("cannot accept a connection: %s%s", error, "; an idle one is closed" if dropped else "")
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)

    async def _open(self, stranger: Stranger) -> None:
        """Complete the handshake and hand the connection over."""
        seconds, tls = self._limits, self.tls

        def connected() -> Accepted:
            return self._factory(stranger)

        try:
            await self._loop.connect_accepted_socket(
                connected,
                stranger.socket,
                ssl=tls,
                ssl_handshake_timeout=seconds.tls_handshake_seconds if tls else None,
                ssl_shutdown_timeout=seconds.linger_seconds if tls else None,
            )
        except (OSError, asyncio.CancelledError) as error:  # a failed handshake concerns the client alone
            self.strangers.remove(stranger)
            stranger.socket.close()
            if isinstance(error, asyncio.CancelledError):
                raise


def _listening(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        set_options(listening)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException as error:
        listening.close()
        if isinstance(error, OSError):
            name = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
            raise OSError(error.errno, f"cannot listen at {name}:{address[1]}: {error.strerror}") from None
        raise
    return listening


def set_options(listener: socket.socket) -> None:
    """Set TCP options on the listener; accepted connections inherit them at no cost.

    Small responses must not wait for an acknowledgement, and keepalive probes end the watches of a peer that vanished.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


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
    head: int = 64 << 10
    head_seconds: float = 30.0
    tls_handshake_seconds: float = 10.0
    linger_seconds: float = 5.0  # after the end of a TLS connection


class Gate:
    """``factory`` makes the library's protocol for a connection that was admitted. ``start`` or ``listen`` begins,
    ``close`` ends accepting; the library closes the connections."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], limits: GateLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        self.factory = factory
        self.limits = limits
        self._tls = tls
        self._listener = self._listening_at("", 0)
        self._connections: set[_GatedConnection] = set()
        self._by_client: dict[object, _GatedConnection] = {}
        self._by_address: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """The actual port, once the gate listens."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen at an address; an empty host is all interfaces. Raises ``OSError``."""
        self._listener = self._listening_at(host, port)
        await self._listener.start()

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

    def _listening_at(self, host: str, port: int) -> Listener:
        return Listener(self._connection, host=host, port=port, tls=self._tls, limits=self.limits)

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
