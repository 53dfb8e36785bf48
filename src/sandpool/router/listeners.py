"""Listening sockets, opened by a process that may open them and served by another."""

from __future__ import annotations

import asyncio
import socket

from sandpool.router.router import BACKLOG


async def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at all addresses of a host, on one port; port 0: the system chooses. Clients can connect
    at once and wait until the sockets are served. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    flags = socket.AI_PASSIVE
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            opened.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(BACKLOG)
            port = sock.getsockname()[1]
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened
