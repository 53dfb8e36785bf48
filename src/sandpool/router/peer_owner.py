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
from typing import Any, Final

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
    """Trusts connections over the loopback interface whose client socket belongs to one of ``uids``."""

    def __init__(self, uids: Collection[int]) -> None:
        self.uids = frozenset(uids)

    def __call__(self, peer: tuple[Any, ...], local: tuple[Any, ...]) -> bool:
        client, router = _address(peer[0]), _address(local[0])
        if not (client.is_loopback and router.is_loopback):
            return False
        try:
            return socket_owner((client, peer[1]), (router, local[1])) in self.uids
        except OSError:
            return False  # no sock_diag here: every client needs a token


def socket_owner(
    source: tuple[IPv4Address | IPv6Address, int], destination: tuple[IPv4Address | IPv6Address, int]
) -> int | None:
    """Return the user of the established TCP socket between these addresses, None if there is none. Raises ``OSError``.

    The kernel answers with a listening socket where no connection matches, and with user 0 for a socket that no process
    holds any more, so the state, the addresses and the inode of the answer are checked."""
    family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
    identity = _PORTS.pack(source[1], destination[1])
    identity += source[0].packed.ljust(16, b"\0") + destination[0].packed.ljust(16, b"\0")
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity + _ANY
    message = _MESSAGE.pack(_MESSAGE.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0) + query
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as netlink:
        netlink.settimeout(_TIMEOUT)
        netlink.send(message)
        answer = netlink.recv(4096)
    if len(answer) < _OWNER_OFFSET + _OWNER.size or _MESSAGE.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    found = answer[_IDENTITY_OFFSET : _IDENTITY_OFFSET + len(identity)]
    uid, inode = _OWNER.unpack_from(answer, _OWNER_OFFSET)
    return int(uid) if found == identity and inode and answer[_STATE_OFFSET] == _ESTABLISHED else None


def _address(text: str) -> IPv4Address | IPv6Address:
    parsed = ip_address(text.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
