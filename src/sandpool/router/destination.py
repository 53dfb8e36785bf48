"""The destination of a request, read from the ``X-Sandbox-*`` headers that clients send.

The texts of the rejections are those that clients know. A header with the address of a pod is a hint that is verified,
never a destination: a client that could choose the address could reach whatever the router can reach.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

ID: Final = "x-sandbox-id"
NAMESPACE: Final = "x-sandbox-namespace"
PORT: Final = "x-sandbox-port"
POD_IP: Final = "x-sandbox-pod-ip"
UID: Final = "x-sandbox-uid"
TIMEOUT: Final = "x-sandbox-timeout"
ACCEPT_STATE_LOSS: Final = "x-sandbox-accept-state-loss"
AUTHORIZATION: Final = "authorization"

DEFAULT_NAMESPACE: Final = "default"
DEFAULT_PORT: Final = 8888
#: Seconds a request may take by default, which is also the most that a client may ask for.
DEFAULT_TIMEOUT: Final = 180.0

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]{1,5}")


class RequestRejected(Exception):
    """The router does not forward the request and responds with ``status`` and ``detail``."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Destination:
    """The sandbox and port a request names. ``hint`` is the address that the client believes the sandbox to have. With
    ``accepts_loss`` the client does not rely on what it did in the sandbox before. ``by_url`` is true if a signed URL
    named it, which is the authorization."""

    namespace: str
    sandbox: str
    port: int
    timeout: float
    hint: str = ""
    uid: str = ""
    accepts_loss: bool = False
    by_url: bool = False


def parse_destination(headers: Mapping[str, str], max_timeout: float = DEFAULT_TIMEOUT) -> Destination:
    """Read the headers, whose names are in lower case. Raises ``RequestRejected``."""
    sandbox = headers.get(ID, "")
    if not sandbox:
        raise RequestRejected(400, "X-Sandbox-ID header is required.")
    if not _LABEL.fullmatch(sandbox):
        raise RequestRejected(400, "Invalid sandbox ID format.")
    namespace = headers.get(NAMESPACE) or DEFAULT_NAMESPACE
    if not _LABEL.fullmatch(namespace):
        raise RequestRejected(400, "Invalid namespace format.")
    hint = headers.get(POD_IP, "")
    if hint and not _is_address(hint):
        raise invalid_address()
    timeout = _timeout(headers.get(TIMEOUT), max_timeout)
    accepts_loss = headers.get(ACCEPT_STATE_LOSS, "").lower() == "true"
    return Destination(namespace, sandbox, _port(headers.get(PORT)), timeout, hint, headers.get(UID, ""), accepts_loss)


def invalid_address() -> RequestRejected:
    return RequestRejected(400, "Invalid target IP address.")


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise RequestRejected(400, "Invalid port format.")
    return int(text)


def _timeout(text: str | None, max_timeout: float) -> float:
    """Ignore a value that is not a positive number, as the published routers do."""
    try:
        seconds = float(text or "")
    except ValueError:
        return max_timeout
    return min(seconds, max_timeout) if math.isfinite(seconds) and seconds > 0 else max_timeout


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
