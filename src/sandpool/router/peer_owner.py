"""The user who owns the client's end of a loopback connection, from the kernel's socket table (``sock_diag(7)``).

``sandpool up`` writes its router token to a file that only its own user can read. A connection from a socket of that
user proves as much as the token does, and clients that cannot send a token keep working: the SDK in its gateway mode,
or with nothing but a URL. Other users of the machine, and sandboxes, need a token.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Self

_SOCK_DIAG: Final = 4  # the netlink family
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ESTABLISHED: Final = 1
_MESSAGE: Final = struct.Struct("=IHHII")  # nlmsghdr
_QUERY: Final = struct.Struct("=BBBBI")  # inet_diag_req_v2, before the socket's identity
_PORTS: Final = struct.Struct("!HH")
_IDENTITY_END: Final = struct.Struct("=III")  # interface and cookie
_ANY: Final = _IDENTITY_END.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
_STATE_OFFSET: Final = _MESSAGE.size + 1
_IDENTITY_OFFSET: Final = _MESSAGE.size + 4
_OWNER: Final = struct.Struct("=II")  # uid and inode
_OWNER_OFFSET: Final = _IDENTITY_OFFSET + 48 + 12
_TIMEOUT: Final = 1.0


class LoopbackOwner:
    """Trusts connections over the loopback interface whose client socket belongs to one of ``uids``. ``table`` is the
    socket for queries, for a process that may not open one; by default every query opens its own."""

    def __init__(self, uids: Collection[int], table: SocketTable | None = None) -> None:
        self.uids = frozenset(uids)
        self.table = table

    def __call__(self, peer: tuple[Any, ...], local: tuple[Any, ...]) -> bool:
        client, router = _address(peer[0]), _address(local[0])
        if not (client.is_loopback and router.is_loopback):
            return False
        try:
            if self.table is not None:
                return self.table.owner((client, peer[1]), (router, local[1])) in self.uids
            return socket_owner((client, peer[1]), (router, local[1])) in self.uids
        except OSError:
            return False  # no sock_diag here: every client needs a token


Endpoint = tuple[IPv4Address | IPv6Address, int]


def socket_owner(source: Endpoint, destination: Endpoint) -> int | None:
    """Ask a socket table that is closed afterwards; see ``SocketTable.owner``."""
    with SocketTable() as table:
        return table.owner(source, destination)


class SocketTable:
    """The TCP sockets of the network namespace in which it is made. Raises ``OSError`` where there is no sock_diag."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
        self._netlink.settimeout(_TIMEOUT)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._netlink.close()

    def owner(self, source: Endpoint, destination: Endpoint) -> int | None:
        """Return the user of the established TCP socket between these addresses, None if there is none. Raises
        ``OSError``.

        The kernel answers with a listening socket where no connection matches, and with user 0 for a socket that no
        process holds any more, so the state, the addresses and the inode of the answer are checked."""
        family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
        identity = _PORTS.pack(source[1], destination[1])
        identity += source[0].packed.ljust(16, b"\0") + destination[0].packed.ljust(16, b"\0")
        answer = self._ask(_QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity + _ANY)
        if len(answer) < _OWNER_OFFSET + _OWNER.size or _MESSAGE.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        found = answer[_IDENTITY_OFFSET : _IDENTITY_OFFSET + len(identity)]
        uid, inode = _OWNER.unpack_from(answer, _OWNER_OFFSET)
        return int(uid) if found == identity and inode and answer[_STATE_OFFSET] == _ESTABLISHED else None

    def _ask(self, query: bytes) -> bytes:
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        self._netlink.send(_MESSAGE.pack(_MESSAGE.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, number, 0) + query)
        while True:  # an answer that came too late for its query may be first
            answer = self._netlink.recv(4096)
            if len(answer) < _MESSAGE.size or _MESSAGE.unpack_from(answer)[3] == number:
                return answer


def _address(text: str) -> IPv4Address | IPv6Address:
    parsed = ip_address(text.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
