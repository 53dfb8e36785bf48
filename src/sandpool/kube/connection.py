"""Address, TLS settings and credentials of an API server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlsplit

from sandpool.kube import user_agent
from sandpool.kube.credentials import ANONYMOUS, Credentials


@dataclass(frozen=True, slots=True)
class Connection:
    """Parameters of an HTTP transport. ``kube.kubeconfig`` builds one from a kubeconfig."""

    server: str  # "https://127.0.0.1:6443"; a path is prepended to the path of every request
    tls: ssl.SSLContext | None = None  # None: the system's certificate authorities
    credentials: Credentials = ANONYMOUS
    namespace: str = "default"
    proxy: str | None = None
    tls_server_name: str | None = None  # expected name in the server's certificate; default: the host
    # Opens a connected, non-blocking socket to the server; default: TCP to the host and port of ``server``.
    connect: Callable[[], Awaitable[socket.socket]] | None = None
    user_agent: str = user_agent.DEFAULT

    def __post_init__(self) -> None:
        url = urlsplit(self.server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{self.server!r} is not a server address: expected https://HOST:PORT")
        if url.scheme == "http" and self.credentials is not ANONYMOUS and not is_loopback(url.hostname):
            raise ValueError(f"credentials would be sent unencrypted to {self.server}: use https")

    def of_program(self, name: str) -> Self:
        """The connection of one of our programs, such as ``dashboard``, which the audit log of the API names."""
        return replace(self, user_agent=user_agent.of_program(name))


def is_loopback(host: str) -> bool:
    """Whether a host name or address always refers to this machine."""
    if host in ("localhost", "127.0.0.1", "::1") or host.endswith(".localhost"):
        return True
    import ipaddress  # slow to import, and rarely needed

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def with_address(url: str) -> str:
    """A URL with the address of its host in place of a name, for a process that reads no file to resolve one. Raises
    ``OSError``."""
    parts = urlsplit(url)
    address = str(socket.getaddrinfo(parts.hostname, None, type=socket.SOCK_STREAM)[0][4][0])
    shown = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=shown if parts.port is None else f"{shown}:{parts.port}").geturl()
