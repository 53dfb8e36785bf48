"""Streamable HTTP: who may use the server, and the end of sessions.

Every request needs the bearer token. The SDK refuses other Host and Origin headers, so that a page on the internet
cannot reach the server through a browser, also not by DNS rebinding.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Iterable
from typing import Final

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandpool.mcp.sessions import HTTP_IDLE, Sessions

PATH: Final = "/mcp"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_SCHEMES: Final = ("http", "https")
_SESSION_HEADER: Final = "mcp-session-id"
_GRACE: Final = 2  # seconds for requests that run when the server stops


def application(server: MCPServer, sessions: Sessions, token: str, hosts: Iterable[str] = ()) -> ASGIApp:
    """The ASGI application of a server. ``hosts`` are names, beside those of loopback, that clients may call it by."""
    names = [*_LOOPBACK, *hosts]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[f"{scheme}://{name}{port}" for name in names for scheme in _SCHEMES for port in ("", ":*")],
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, session_idle_timeout=HTTP_IDLE
    )
    return _Guard(app, sessions, token)


class _Guard:
    """Asks for the token, and releases the sandboxes of a session that its client ends."""

    def __init__(self, app: ASGIApp, sessions: Sessions, token: str) -> None:
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
                "a bearer token is needed: Authorization: Bearer TOKEN\n", 401, {"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "DELETE" and message["status"] < 300:
                await self._sessions.end(headers.get(_SESSION_HEADER, ""))
            await send(message)

        await self._app(scope, receive, answer)


async def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve at a listening socket until this is cancelled or the process is told to end."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving
