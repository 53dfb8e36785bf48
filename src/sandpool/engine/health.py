"""HTTP pages for probes and monitoring: ``/metrics``, ``/healthz`` and ``/readyz``.

They have addresses of their own, in plain HTTP, because kubelets and Prometheus connect without credentials and from
another network than users. Connections and first heads are limited (``listener.Gate``), and an address on this machine
alone is served to its own names, not to a web page that has its name resolve there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from sandpool.engine.listener import Gate, GateLimits
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.connection import is_loopback

_log = logging.getLogger(__name__)

# aiohttp logs malformed requests as errors. They are the clients', who must not fill the log.
_http_log: Final = logging.getLogger("sandpool.engine.health.http")
_http_log.setLevel(logging.CRITICAL)
_TEXT = "text/plain; charset=utf-8"
# A few monitors and kubelets, with a connection each.
_LIMITS: Final = GateLimits(
    connections=256, per_address=128, strangers=256, strangers_per_address=128, head=16 << 10, head_seconds=10.0
)

# Returns why a component is unhealthy; empty if it is healthy.
Check = Callable[[], str]


@dataclass(frozen=True, slots=True)
class PageResponse:
    body: bytes
    content_type: str = _TEXT
    status: int = 200


# Handles the requests for one path.
Page = Callable[[web.BaseRequest], Awaitable[PageResponse]]


@dataclass(slots=True)
class Checks:
    """Named checks behind one path, ``/healthz`` or ``/readyz``, in the manner of Kubernetes components.

    The response names the checks that failed. The reasons are in the log only, because these pages need no
    authentication. ``/readyz/<name>`` evaluates a single check, and ``?verbose`` lists the healthy ones too. Without
    any check a response proves only that the process serves requests.
    """

    name: str  # healthz or readyz
    checks: dict[str, Check] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)  # last reason logged per check, to log each once

    def pages(self) -> dict[str, Page]:
        async def all_checks(request: web.BaseRequest) -> PageResponse:
            return self._answer(self.checks, "verbose" in request.query)

        return {f"/{self.name}": all_checks, f"/{self.name}/": self._one}

    async def _one(self, request: web.BaseRequest) -> PageResponse:
        name = request.path.removeprefix(f"/{self.name}/")
        if name not in self.checks:
            return PageResponse(b"404 page not found\n", status=404)
        return self._answer({name: self.checks[name]}, "verbose" in request.query)

    def _answer(self, checks: Mapping[str, Check], verbose: bool) -> PageResponse:
        failed = [name for name, check in checks.items() if not self._is_healthy(name, check)]
        if not failed and not verbose:
            return PageResponse(b"ok")
        lines = [f"[-]{name} failed: reason withheld" if name in failed else f"[+]{name} ok" for name in checks]
        lines.append(f"{self.name} check {'failed' if failed else 'passed'}")
        return PageResponse("".join(f"{line}\n" for line in lines).encode(), status=500 if failed else 200)

    def _is_healthy(self, name: str, check: Check) -> bool:
        try:
            reason = check()
        except Exception as error:  # noqa: BLE001 - a check that raises has failed
            reason = f"{type(error).__name__}: {error}"
        if reason != self._reasons.get(name, ""):
            _log.log(logging.WARNING if reason else logging.INFO, "%s %s: %s", self.name, name, reason or "ok")
            self._reasons[name] = reason
        return not reason


def metrics_page(metrics: MetricsRegistry) -> dict[str, Page]:
    async def show(request: web.BaseRequest) -> PageResponse:
        return PageResponse(*await metrics.render(request.headers.get("Accept", "")))

    return {"/metrics": show}


def parse_address(address: str) -> tuple[str | None, int] | None:
    """Parse ``:8080`` (all interfaces), ``127.0.0.1:8080`` or ``[::1]:8080``; ``0`` disables the address."""
    if address == "0":
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host) != host.startswith("["):
        raise ValueError(f"{address!r} is not an address: it should look like :8080, 127.0.0.1:8080 or [::1]:8080")
    return host.strip("[]") or None, int(port)


class HealthServer:
    """Serves pages at one address. A page with a path that ends with a slash serves everything below it."""

    def __init__(self, address: str, pages: Mapping[str, Page], limits: GateLimits = _LIMITS) -> None:
        self.address = address
        self.pages = pages
        self.limits = limits
        self.port = 0  # set by ``start``; needed if the system chooses the port
        self._where = parse_address(address)
        self._web: web.Server | None = None
        self._gate: Gate | None = None

    async def start(self) -> None:
        if self._where is None:
            return
        self._web = web.Server(self._handle, access_log=None, logger=_http_log, keepalive_timeout=30.0)
        gate = Gate(self._web, self.limits)
        await gate.start(self._where[0] or "", self._where[1])
        self._gate = gate
        self.port = gate.port

    async def stop(self, seconds: float = 1.0) -> None:
        """Stop listening and wait up to ``seconds`` for responses in progress."""
        gate, self._gate = self._gate, None
        if gate is not None and self._web is not None:
            await gate.close()
            await self._web.shutdown(seconds)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._respond(request)
        return web.Response(body=response.body, status=response.status, headers={"Content-Type": response.content_type})

    def _is_addressed(self, host: str | None) -> bool:
        """Whether a request means this machine, if only clients of this machine can reach the address."""
        if host is None or self._where is None or not is_loopback(self._where[0] or ""):
            return True
        try:
            return is_loopback(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False

    async def _respond(self, request: web.BaseRequest) -> PageResponse:
        if not self._is_addressed(request.headers.get("Host")):
            return PageResponse(b"421 this address is served to names of this machine\n", status=421)
        if request.method not in ("GET", "HEAD"):
            return PageResponse(b"405 method not allowed\n", status=405)
        path = request.path
        page = self.pages.get(path) or self.pages.get(path[: path.rfind("/") + 1])
        if page is None:
            return PageResponse(b"404 page not found\n", status=404)
        try:
            return await page(request)
        except Exception as error:  # noqa: BLE001 - one broken page must not break the others
            _log.error("%s failed", path, exc_info=error)
            return PageResponse(b"500 internal error\n", status=500)
