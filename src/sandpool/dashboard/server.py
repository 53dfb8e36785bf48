"""The dashboard's HTTP server: routes, and the tasks behind them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from aiohttp import web

from sandpool import __version__
from sandpool.dashboard.access import LoginCheck, Sessions
from sandpool.dashboard.actions import Actions
from sandpool.dashboard.board import Board
from sandpool.dashboard.controller_metrics import ControllerMetrics
from sandpool.dashboard.execution import Executions
from sandpool.dashboard.guard import Guard, GuardOptions, Handler, client_of, refusal
from sandpool.dashboard.history import History, UsageSampler
from sandpool.dashboard.inspection import Inspections
from sandpool.dashboard.pages import Pages
from sandpool.dashboard.requests import answered, body, text
from sandpool.dashboard.stream import LiveStream
from sandpool.dashboard.target import DashboardTarget
from sandpool.engine.clock import Clock
from sandpool.engine.listener import Gate, GateLimits
from sandpool.kube.errors import ApiError
from sandpool.service.usage import Usage

_log = logging.getLogger(__name__)

# aiohttp logs malformed requests as errors. They are the clients', who must not fill the log.
_http_log: Final = logging.getLogger("sandpool.dashboard.http")
_http_log.setLevel(logging.CRITICAL)
# A browser has six connections to a server, and a person a few browsers.
_LIMITS: Final = GateLimits(connections=512, per_address=256, strangers=256, strangers_per_address=128)
#: First segments of the paths of pages. The modules in the browser decide what they show.
_PAGES: Final = ("pools", "claims", "sandboxes", "nodes", "controllers")
_STOP_SECONDS: Final = 1.0
_FOREVER: Final = "public, max-age=31536000, immutable"
_OBJECT: Final = "{namespace}/{name}"


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """``token`` logs in; see ``access`` for ``not_before``."""

    token: str
    not_before: float = 0.0
    guard: GuardOptions = field(default_factory=GuardOptions)
    tls: ssl.SSLContext | None = None


class Dashboard:
    """Serves the dashboard of one API. ``start`` listens, ``stop`` ends everything."""

    def __init__(self, target: DashboardTarget, options: DashboardOptions, clock: Clock, rng: Random) -> None:
        self.target = target
        self.options = options
        self.clock = clock
        self.port = 0
        self.board = Board(target.client, clock, rng, target.namespace)
        self.metrics = ControllerMetrics(target.metrics_url)
        self.history = History(self.board, self.metrics, clock)
        usage = UsageSampler(self.board, Usage(target.client))
        self.stream = LiveStream(self.board, self.history, usage, clock)
        self.login = LoginCheck(options.token, clock, options.not_before)
        self.guard = Guard(Sessions(clock), options.guard, lambda: self.port)
        self.pages = Pages()
        self.executions = Executions(target)
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._gate: Gate | None = None

    async def start(self, listening: Sequence[socket.socket]) -> None:
        """Serve on listening sockets."""
        self.port = listening[0].getsockname()[1]
        self._tasks = [
            asyncio.create_task(self.board.run(), name="dashboard: board"),
            asyncio.create_task(self._sample(), name="dashboard: history"),
        ]
        self._runner = web.AppRunner(self._application(), access_log=None, logger=_http_log, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server is not None
        self._gate = gate = Gate(self._runner.server, _LIMITS, self.options.tls)
        self.guard.on_session(lambda request: gate.authenticated(client_of(request)))
        gate.listen(listening)

    async def wait(self) -> None:
        """Wait until something that never ends has ended, and raise its failure."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        for task in (*self._tasks, *self._streams):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._streams, return_exceptions=True)
        await self.stream.close()
        await self.executions.close()
        if self._gate is not None:
            await self._gate.close()
        if self._runner is not None:
            await self._runner.shutdown()
            await self._runner.cleanup()
        await self.metrics.close()

    async def _sample(self) -> None:
        await self.board.attempted()
        await self.history.run()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self.guard.checked, _surprises])
        application.add_routes(
            [
                web.get("/", self._page),
                *(web.get(f"/{page}{{rest:(/.*)?}}", self._page) for page in _PAGES),
                web.get("/login", self._login_page),
                web.get(f"/static/{self.pages.version}/{{name}}", self._static),
                web.post("/api/login", answered(self._log_in)),
                web.post("/api/logout", self._log_out),
                *self._reading(),
                *self._changing(),
            ]
        )
        return application

    def _reading(self) -> list[web.RouteDef]:
        look = Inspections(self.target, self.guard, self.clock)
        sandbox = f"/api/sandboxes/{_OBJECT}"

        def get(path: str, handler: Handler) -> web.RouteDef:
            return web.get(path, self.guard.authorized(handler))

        return [
            get("/api/live", self._endless(self._live)),
            get(f"/api/why/{{kind}}/{_OBJECT}", answered(look.why)),
            get(f"/api/trace/{_OBJECT}", answered(look.trace)),
            get(f"{sandbox}/activity", answered(look.activity)),
            get(f"{sandbox}/directory", answered(look.directory)),
            get(f"{sandbox}/preview", answered(look.preview)),
            get(f"{sandbox}/download", self._endless(look.download)),
            get(f"{sandbox}/logs", self._endless(look.logs)),
        ]

    def _changing(self) -> list[web.RouteDef]:
        act, run = Actions(self.target, self.clock), self.executions
        claim, sandbox, pool = (f"/api/{kind}/{_OBJECT}" for kind in ("claims", "sandboxes", "pools"))

        def changes(handler: Handler) -> Handler:
            return self.guard.authorized(handler, changes=True)

        return [
            web.post("/api/claims", changes(answered(act.claim))),
            web.delete(claim, changes(answered(act.release))),
            web.post(f"{sandbox}/mode", changes(answered(act.set_mode))),
            web.post(f"{sandbox}/run", changes(answered(run.run))),
            web.put(f"{sandbox}/file", changes(answered(run.upload))),
            web.post(f"{sandbox}/ports/{{port}}", changes(answered(run.open_port))),
            web.get(f"{sandbox}/terminal", changes(run.terminal)),
            web.post(f"{pool}/scale", changes(answered(act.scale))),
            web.post(f"{pool}/rollout", changes(answered(act.roll_out))),
            web.post(f"{pool}/undo", changes(answered(act.undo))),
        ]

    async def _page(self, request: web.Request) -> web.StreamResponse:
        session = self.guard.session(request)
        if session is None:
            raise web.HTTPSeeOther("/login")
        settings = {
            "session": session.csrf,
            "readOnly": self.options.guard.read_only,
            "title": self.target.title,
            "namespace": self.target.namespace,
            "version": __version__,
            "loopback": self.target.loopback,
            "metrics": self.target.metrics_url is not None,
        }
        return web.Response(text=self.pages.app(settings), content_type="text/html")

    async def _login_page(self, request: web.Request) -> web.StreamResponse:
        page = self.pages.login({"title": self.target.title, "version": __version__})
        return web.Response(text=page, content_type="text/html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = self.pages.files.get(request.match_info["name"])
        if found is None:
            return refusal(404, "there is no such file")
        headers = {"Content-Type": found.type, "Cache-Control": _FOREVER}
        return web.Response(body=found.content, headers=headers)

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if not self.login.accepts(text(await body(request), "code").strip()):
            return refusal(
                401,
                "this link was used already, has expired or belongs to another dashboard",
                "Get a new one with: sandpool dashboard",
            )
        response = web.json_response({})
        self.guard.begin(response)
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        response = web.json_response({})
        self.guard.end(request, response)
        return response

    async def _live(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self.guard.add_headers(response)
        await response.prepare(request)
        with suppress(ConnectionError):
            await self.stream.serve(response.write)
        return response

    def _endless(self, handler: Handler) -> Handler:
        """A handler that may never end by itself. ``stop`` ends it, and would otherwise wait a minute for it."""

        async def serve(request: web.Request) -> web.StreamResponse:
            task = asyncio.current_task()
            assert task is not None
            self._streams.add(task)
            try:
                return await handler(request)
            finally:
                self._streams.discard(task)

        return serve


@web.middleware
async def _surprises(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn everything unexpected into an answer that tells nothing, and log it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status == 303:
            return web.Response(status=303, headers={"Location": error.headers["Location"]})
        return refusal(error.status, error.reason)
    except ApiError as error:
        return refusal(502, str(error))
    except Exception as error:  # noqa: BLE001 - one broken page must not break the others
        _log.error("%s %s failed", request.method, request.path, exc_info=error)
        return refusal(500, "internal error", "The log of the dashboard has the details.")
