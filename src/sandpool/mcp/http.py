"""Streamable HTTP: who may use the server, and the end of sessions.

Every request needs the bearer token. The SDK refuses other Host and Origin headers, so that a page on the internet
cannot reach the server through a browser, also not by DNS rebinding.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Iterable
from typing import Final

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sandpool.engine.listener import Gate, GateLimits
from sandpool.mcp.sessions import HTTP_IDLE, Sessions

PATH: Final = "/mcp"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_SCHEMES: Final = ("http", "https")
_SESSION_HEADER: Final = "mcp-session-id"
#: A session has a stream and some calls at once, so this is enough for hundreds.
LIMITS: Final = GateLimits()
_GRACE: Final = 2  # seconds for requests that run when the server stops


def application(server: MCPServer, sessions: Sessions, token: str, hosts: Iterable[str] = ()) -> Guard:
    """The ASGI application of a server. ``hosts`` are names, beside those of loopback, that clients may call it by."""
    names = [*_LOOPBACK, *hosts]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[f"{scheme}://{name}{port}" for name in names for scheme in _SCHEMES for port in ("", ":*")],
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, session_idle_timeout=HTTP_IDLE
    )
    return Guard(app, sessions, token)


class Guard:
    """Asks for the token, and releases the sandboxes of a session that its client ends. ``authenticated`` is called
    with the address of each client that has the token."""

    def __init__(self, app: ASGIApp, sessions: Sessions, token: str) -> None:
        self.authenticated: Callable[[object], None] = lambda client: None
        self._app = app
        self._sessions = sessions
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not hmac.compare_digest(headers.get("authorization", "").encode(), self._expected):
            refusal = PlainTextResponse(
                "a bearer token is needed: Authorization: Bearer TOKEN\n",
                401,
                {"WWW-Authenticate": "Bearer", "Connection": "close"},
            )
            await refusal(scope, receive, send)
            return
        self.authenticated(scope["client"])

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "DELETE" and message["status"] < 300:
                await self._sessions.end(headers.get(_SESSION_HEADER, ""))
            await send(message)

        await self._app(scope, receive, answer)


class _Server(uvicorn.Server):
    """Serves the connections that the gate admits."""

    def __init__(self, app: Guard, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            log_level="critical",  # warnings are of malformed requests, which must not fill the log
            access_log=False,
            timeout_graceful_shutdown=_GRACE,
            http=H11Protocol,  # it limits the heads of all requests
            proxy_headers=False,  # the gate knows the clients by the addresses of their connections
        )
        super().__init__(config)
        self._listening = listening
        self._gate = Gate(self._protocol, LIMITS)
        app.authenticated = self._gate.authenticated

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._gate.listen([self._listening])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gate.close()
        await super().shutdown([])

    def _protocol(self) -> asyncio.Protocol:
        return H11Protocol(self.config, self.server_state, self.lifespan.state)


async def serve(app: Guard, listening: socket.socket) -> None:
    """Serve at a listening socket until this is cancelled or the process is told to end."""
    server = _Server(app, listening)
    serving = asyncio.create_task(server.serve(sockets=[]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving
