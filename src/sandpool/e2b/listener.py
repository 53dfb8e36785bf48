"""Listens for clients of an endpoint, behind the gate that limits connections before they have authenticated."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web

from sandpool.e2b.endpoint import Endpoint, Handler
from sandpool.engine.listener import Gate, GateLimits

# aiohttp logs malformed requests as errors. They are the clients', who must not fill the log; failures of the endpoint
# are logged where they are answered.
_http_log: Final = logging.getLogger("sandpool.e2b.http")
_http_log.setLevel(logging.CRITICAL)
_GRACE: Final = 5.0
_KEEPALIVE_SECONDS: Final = 75.0
_BACKLOG: Final = 1024


@asynccontextmanager
async def listening(
    endpoint: Endpoint, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serve an endpoint for the length of the block; yields the address it listens at. Raises ``OSError``."""
    opened = listen(host, port)
    address: tuple[str, int] = opened.getsockname()[:2]
    async with serving(endpoint, [opened], tls):
        yield address


def listen(host: str, port: int) -> socket.socket:
    """Open a socket for ``serving``. Raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


@asynccontextmanager
async def serving(
    endpoint: Endpoint, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve an endpoint at listening sockets for the length of the block, and close them."""
    options = endpoint.options

    @web.middleware
    async def end_strangers(request: web.Request, handler: Handler) -> web.StreamResponse:
        """A client that shows no credentials gets one answer for each connection."""
        response = await handler(request)
        if not response.prepared and gate.is_stranger(_client(request)):
            response.force_close()
        return response

    endpoint.application.middlewares.insert(0, end_strangers)  # around the one that answers errors
    runner = web.AppRunner(
        endpoint.application,
        access_log=None,
        logger=_http_log,
        handler_cancellation=True,  # a client that has gone no longer follows a process
        keepalive_timeout=_KEEPALIVE_SECONDS,
        shutdown_timeout=_GRACE,
    )
    await runner.setup()
    assert runner.server is not None
    limits = GateLimits(connections=options.max_connections, per_address=options.max_connections_per_address)
    gate = Gate(runner.server, limits, tls)
    endpoint.on_authenticated(lambda request: gate.authenticated(_client(request)))
    gate.listen(sockets)
    try:
        yield
    finally:
        await gate.close()
        await runner.cleanup()


def _client(request: web.Request) -> object:
    return None if request.transport is None else request.transport.get_extra_info("peername")


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS with a certificate and its key, in PEM files. Raises ``OSError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context
