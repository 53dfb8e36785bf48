"""Where an API server is and how to talk to it."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from sandpool.kube.credentials import ANONYMOUS, Credentials


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything an HTTP transport needs to know. Made by hand, or from a kubeconfig by ``kube.kubeconfig``."""

    server: str  # "https://127.0.0.1:6443"; a path in it is kept in front of every request's
    tls: ssl.SSLContext | None = None  # None: the system's certificate authorities
    credentials: Credentials = ANONYMOUS
    namespace: str = "default"
    proxy: str | None = None
    tls_server_name: str | None = None  # the name the server's certificate must have, if not the host's

    def __post_init__(self) -> None:
        url = urlsplit(self.server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{self.server!r} is not the address of a server: expected https://HOST:PORT")
        if url.scheme == "http" and self.credentials is not ANONYMOUS and not is_loopback(url.hostname):
            raise ValueError(f"credentials would travel unencrypted to {self.server}: use https")


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
