"""Listens for clients of an endpoint, with a limit on their connections."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from sandpool.e2b.endpoint import Endpoint, Handler

# aiohttp logs malformed requests as errors. They are the clients', who must not fill the log; failures of the endpoint
# are logged where they are answered.
_http_log: Final = logging.getLogger("sandpool.e2b.http")
_http_log.setLevel(logging.CRITICAL)
_GRACE: Final = 5.0
_HEAD_SECONDS: Final = 30.0
_KEEPALIVE_SECONDS: Final = 75.0


@asynccontextmanager
async def listening(
    endpoint: Endpoint, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serve an endpoint for the length of the block; yields the address it listens at. Raises ``OSError``."""
    silent: set[object] = set()  # connections on which no request has begun

    @web.middleware
    async def hear(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.discard(request.protocol)
        return await handler(request)

    endpoint.application.middlewares.append(hear)
    runner = web.AppRunner(
        endpoint.application,
        access_log=None,
        logger=_http_log,
        handler_cancellation=True,  # a client that has gone no longer follows a process
        keepalive_timeout=_KEEPALIVE_SECONDS,
        shutdown_timeout=_GRACE,
    )
    await runner.setup()
    server = None
    try:
        assert runner.server is not None
        gate = _Gate(runner.server, endpoint.options.max_connections, silent)
        server = await asyncio.get_running_loop().create_server(gate, host, port, ssl=tls)
        yield server.sockets[0].getsockname()[:2]
    finally:
        if server is not None:
            server.close()
        await runner.cleanup()


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS with a certificate and its key, in PEM files. Raises ``OSError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Gate:
    """Makes the protocol of each connection, and turns away those that are too many."""

    def __init__(self, server: web.Server, most: int, silent: set[object]) -> None:
        self.server = server
        self.most = most
        self.silent = silent

    def __call__(self) -> asyncio.Protocol:
        if len(self.server.connections) >= self.most:
            return _Refused()
        protocol = self.server()
        self.silent.add(protocol)
        # The server has no limit of its own on the time until the first request.
        asyncio.get_running_loop().call_later(_HEAD_SECONDS, self._end_if_silent, protocol)
        return protocol

    def _end_if_silent(self, protocol: RequestHandler) -> None:
        """Close a connection on which no request has begun. Later requests of a connection have the keep-alive time."""
        if protocol in self.silent:
            self.silent.discard(protocol)
            protocol.force_close()


class _Refused(asyncio.Protocol):
    """Closes its connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        transport.close()
