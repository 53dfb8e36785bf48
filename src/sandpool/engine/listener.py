"""Accepts connections and limits those of strangers: clients that have not authenticated yet.

A connection is a stranger from the moment it is accepted, through its TLS handshake and its first head, until a request
on it has been authenticated. A stranger costs memory and a descriptor, so their number is limited in all and per
address. When a limit is reached, the oldest stranger makes room: a client that means to authenticate does so within
milliseconds, and a flood from one address closes its own connections first.

The event loop's own ``create_server`` shows a connection only after its handshake, and accepts a whole backlog in one
turn. This listener accepts a few connections per turn.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from sandpool.server.http.limits import HttpLimits

logger = logging.getLogger(__name__)

#: Connections that are accepted in one turn of the event loop.
ACCEPTED_PER_TURN: Final = 16
_BACKLOG: Final = 1024
# Pause after accepting failed for lack of descriptors or memory.
_PAUSE_SECONDS: Final = 1.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepted(asyncio.Protocol):
    """The protocol of an accepted connection."""

    def abort(self) -> None: ...


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

    def __init__(self, limits: HttpLimits) -> None:
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
        self, factory: ConnectionFactory, *, host: str, port: int, tls: ssl.SSLContext | None, limits: HttpLimits
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
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                sockets.append(_listening(family, kind, protocol, address))
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
    except BaseException:
        listening.close()
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
