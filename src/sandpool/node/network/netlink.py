"""A minimal rtnetlink client: links, addresses and routes, as far as pods need them.

Existing libraries cover all of rtnetlink; the best of them took 13 ms of CPU to connect a pod, mostly in event loops of
its own, where this takes a fifth of that, and pods are started by the dozen. A request is bytes (``up``, ``veth``,
``address``, ``route_by_link``, ``unreachable``, ``remove``). ``Netlink.execute`` sends any number of requests at once
and waits until the kernel has executed all of them. The layout is that of rtnetlink(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Final

#: The index of the loopback interface in every namespace.
LOOPBACK: Final = 1

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, number, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_LINK: Final = struct.Struct("=BxHiII")  # family, device type, index, flags, mask of the flags to change
_ADDRESS: Final = struct.Struct("=BBBBi")  # family, prefix, flags, scope, index
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # family, prefix of target and source, tos, table, protocol, scope, type
_ERROR: Final = struct.Struct("=i")

_NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _NEW_ROUTE, _OUTCOME = 16, 17, 20, 24, 2
_REQUEST, _ACKNOWLEDGE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_IS_UP: Final = 0x1
_IFNAME, _LINKINFO, _NET_NS_FD = 3, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_LOCAL, _IFADDRESS = 2, 1
_DESTINATION, _OUTGOING, _GATEWAY = 1, 4, 5
_MAIN_TABLE, _STATIC, _EVERYWHERE, _ON_LINK, _UNICAST, _UNREACHABLE = 254, 4, 0, 253, 1, 7
_WHOLE: Final = 32  # bits of an address
_LONGEST: Final = 1 << 16


def up(index: int) -> bytes:
    return _request(_NEW_LINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, index, _IS_UP, _IS_UP))


def veth(name: str, index: int, peer: str, peer_index: int, peer_netns: int) -> bytes:
    """Make a veth pair: one end in this namespace, which is up, and the other in another one. With indexes chosen by
    the caller, none has to be looked up."""
    other = _LINK.pack(socket.AF_UNSPEC, 0, peer_index, 0, 0) + _text(_IFNAME, peer)
    other += _attribute(_NET_NS_FD, struct.pack("=I", peer_netns))
    info = _text(_INFO_KIND, "veth") + _attribute(_INFO_DATA, _attribute(_VETH_PEER, other))
    body = _LINK.pack(socket.AF_UNSPEC, 0, index, _IS_UP, _IS_UP) + _text(_IFNAME, name) + _attribute(_LINKINFO, info)
    return _request(_NEW_LINK, _CREATE | _EXCLUSIVE, body)


def address(index: int, own: IPv4Address) -> bytes:
    """Add an address with a prefix of 32 bits: a route leads to the other end."""
    body = _ADDRESS.pack(socket.AF_INET, _WHOLE, 0, _EVERYWHERE, index)
    body += _attribute(_LOCAL, own.packed) + _attribute(_IFADDRESS, own.packed)
    return _request(_NEW_ADDRESS, _CREATE | _EXCLUSIVE, body)


def route_by_link(target: IPv4Address, index: int, *, on_link: bool = False) -> bytes:
    """``on_link``: the target is the other end of the link itself."""
    way = _attribute(_OUTGOING, struct.pack("=i", index))
    return _route(IPv4Network(target), way, scope=_ON_LINK if on_link else _EVERYWHERE)


def route_by_gateway(target: IPv4Network | None, gateway: IPv4Address) -> bytes:
    """To a network, or to all for which there is no other way."""
    return _route(target or IPv4Network((0, 0)), _attribute(_GATEWAY, gateway.packed))


def unreachable(target: IPv4Network) -> bytes:
    return _route(target, b"", kind=_UNREACHABLE)


def _route(target: IPv4Network, way: bytes, *, scope: int = _EVERYWHERE, kind: int = _UNICAST) -> bytes:
    body = _ROUTE.pack(socket.AF_INET, target.prefixlen, 0, 0, _MAIN_TABLE, _STATIC, scope, kind, 0)
    if target.prefixlen:
        body += _attribute(_DESTINATION, target.network_address.packed)
    return _request(_NEW_ROUTE, _CREATE | _EXCLUSIVE, body + way)


def remove(name: str) -> bytes:
    """Remove a link together with its other end."""
    return _request(_DELETE_LINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + _text(_IFNAME, name))


class Netlink:
    """An rtnetlink socket in the network namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)

    def execute(self, *requests: bytes) -> None:
        """Return when all requests are executed. Raises ``OSError`` for the first that failed; the others may have
        succeeded."""
        self._socket.send(b"".join(requests))
        failed = 0
        answers = 0
        while answers < len(requests):
            found = _outcomes(self._socket.recv(_LONGEST))
            answers += len(found)
            failed = failed or next(filter(None, found), 0)
        if failed:
            raise OSError(failed, os.strerror(failed))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_missing(error: OSError) -> bool:
    """Whether the error says that the link does not exist."""
    return error.errno in (errno.ENODEV, errno.ENXIO)


def _outcomes(data: bytes) -> Sequence[int]:
    """The error numbers of the acknowledged requests, 0 for success."""
    found: list[int] = []
    while data:
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind == _OUTCOME:
            found.append(-_ERROR.unpack_from(data, _HEADER.size)[0])
        data = data[_aligned(length) :]
    return found


def _request(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACKNOWLEDGE | flags, 0, 0) + body


def _attribute(kind: int, content: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(length, kind) + content + bytes(_aligned(length) - length)


def _text(kind: int, content: str) -> bytes:
    return _attribute(kind, content.encode() + b"\0")


def _aligned(length: int) -> int:
    return (length + 3) & ~3
