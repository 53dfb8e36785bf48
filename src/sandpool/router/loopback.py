"""Protection of routers on the loopback interface against web pages in a browser of the same machine.

A page can have its own name resolve to 127.0.0.1 (DNS rebinding); to the browser the router is then part of the page's
site. The name stays in the Host header, so only names of the loopback interface are accepted there. A page that sends
requests to 127.0.0.1 itself is recognized by its Origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from sandpool.router.destination import RequestRejected

_LOCALHOST: Final = "localhost"


def check_loopback_request(headers: Mapping[str, str], allowed_hosts: frozenset[str]) -> None:
    """Raise ``RequestRejected`` unless Host and Origin, where present, name the loopback interface or an allowed host.
    Header names are in lower case."""
    host = headers.get("host")
    if host is not None and not _is_allowed(f"//{host}", allowed_hosts):
        raise RequestRejected(403, "The Host header names another machine. Address the router by IP address.")
    origin = headers.get("origin")
    if origin is not None and not _is_allowed(origin, allowed_hosts):
        raise RequestRejected(403, "Requests of web pages from other sites are not accepted.")


def _is_allowed(url: str, allowed_hosts: frozenset[str]) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == _LOCALHOST or host.endswith(f".{_LOCALHOST}"):
        return True
    if any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in allowed_hosts):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
