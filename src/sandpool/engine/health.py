"""The pages a process shows to whoever watches over it: ``/metrics``, ``/healthz`` and ``/readyz``.

They have addresses of their own, in plain HTTP, because kubelets and Prometheus come without credentials and from
another network than users do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from sandpool.engine.metrics.registry import MetricsRegistry

_log = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"

# Why something is not well; empty if it is.
Check = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    content_type: str = _TEXT
    status: int = 200


# From a request to the answer, for one path.
Page = Callable[[web.BaseRequest], Awaitable[Answer]]


@dataclass(slots=True)
class Checks:
    """Named checks behind one path, ``/healthz`` or ``/readyz``, in the manner of Kubernetes components.

    The answer says which check failed; why is only in the log, because these pages are open to everybody. A single
    check is asked at ``/readyz/<name>``, and ``?verbose`` lists the good ones too. Without any check, answering at all
    is the answer.
    """

    name: str  # healthz or readyz
    checks: dict[str, Check] = field(default_factory=dict)
    _complaints: dict[str, str] = field(default_factory=dict)  # what was logged, so that it is logged once

    def pages(self) -> dict[str, Page]:
        async def all_checks(request: web.BaseRequest) -> Answer:
            return self._answer(self.checks, "verbose" in request.query)

        return {f"/{self.name}": all_checks, f"/{self.name}/": self._one}

    async def _one(self, request: web.BaseRequest) -> Answer:
        name = request.path.removeprefix(f"/{self.name}/")
        if name not in self.checks:
            return Answer(b"404 page not found\n", status=404)
        return self._answer({name: self.checks[name]}, "verbose" in request.query)

    def _answer(self, checks: Mapping[str, Check], verbose: bool) -> Answer:
        failed = [name for name, check in checks.items() if not self._is_well(name, check)]
        if not failed and not verbose:
            return Answer(b"ok")
        lines = [f"[-]{name} failed: reason withheld" if name in failed else f"[+]{name} ok" for name in checks]
        lines.append(f"{self.name} check {'failed' if failed else 'passed'}")
        return Answer("".join(f"{line}\n" for line in lines).encode(), status=500 if failed else 200)

    def _is_well(self, name: str, check: Check) -> bool:
        try:
            complaint = check()
        except Exception as error:  # noqa: BLE001 - a check that breaks is the last one to be believed
            complaint = f"{type(error).__name__}: {error}"
        if complaint != self._complaints.get(name, ""):
            _log.log(logging.WARNING if complaint else logging.INFO, "%s %s: %s", self.name, name, complaint or "ok")
            self._complaints[name] = complaint
        return not complaint


def metrics_page(metrics: MetricsRegistry) -> dict[str, Page]:
    async def show(request: web.BaseRequest) -> Answer:
        return Answer(*await metrics.render(request.headers.get("Accept", "")))

    return {"/metrics": show}


def parse_address(address: str) -> tuple[str | None, int] | None:
    """``:8080`` is that port of every interface, ``127.0.0.1:8080`` or ``[::1]:8080`` of one; ``0`` is no address."""
    if address == "0":
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host) != host.startswith("["):
        raise ValueError(f"{address!r} is not an address: it should look like :8080, 127.0.0.1:8080 or [::1]:8080")
    return host.strip("[]") or None, int(port)


class Endpoint:
    """Pages at one address. A page whose path ends with a slash answers for everything below it."""

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        self.address = address
        self.pages = pages
        self.port = 0  # once started; of interest if the system was to choose
        self._where = parse_address(address)
        self._web: web.Server | None = None
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        if self._where is None:
            return
        self._web = web.Server(self._handle, access_log=None, keepalive_timeout=30.0)
        self._listening = await asyncio.get_running_loop().create_server(self._web, *self._where)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self, seconds: float = 1.0) -> None:
        """Stop listening, and give answers under way this much time."""
        if self._listening is not None and self._web is not None:
            self._listening.close()
            await self._web.shutdown(seconds)
            await self._listening.wait_closed()
            self._listening = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._answer(request)
        return web.Response(body=answer.body, status=answer.status, headers={"Content-Type": answer.content_type})

    async def _answer(self, request: web.BaseRequest) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(b"405 method not allowed\n", status=405)
        path = request.path
        page = self.pages.get(path) or self.pages.get(path[: path.rfind("/") + 1])
        if page is None:
            return Answer(b"404 page not found\n", status=404)
        try:
            return await page(request)
        except Exception as error:  # noqa: BLE001 - one page that is broken does not take the others with it
            _log.error("%s failed", path, exc_info=error)
            return Answer(b"500 internal error\n", status=500)
