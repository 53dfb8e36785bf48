"""Ports of sandboxes under the names that ``get_host`` returns: HTTP and WebSockets, through port-forward.

A forward of a port ends at a Unix socket in a directory that only the endpoint can enter. So no other user of this host
reaches the port past the token, and aiohttp speaks HTTP to it as to any server.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from sandpool.e2b.errors import Refusal, SandboxUnreachable
from sandpool.kube import late_binding
from sandpool.router.destination import DEFAULT_PORT

if TYPE_CHECKING:
    from sandpool.e2b.running import RunningSandbox

#: The ports of sandboxd, which runs commands for all that reach it. The token for ports does not open them.
SANDBOXD_PORTS: Final = frozenset({DEFAULT_PORT, late_binding.PORT})
_CHUNK: Final = 1 << 16
_MAX_MESSAGE: Final = 4 << 20
_CONNECTIONS: Final = 64
_CONNECT_SECONDS: Final = 30.0
_numbers: Final = count(1)  # of sockets in a directory that sandboxes share
#: Headers of one connection, and those that are for the endpoint.
_KEPT_HERE: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
        *("x-api-key", "x-access-token", "e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port"),
    }
)


@dataclass(slots=True)
class _ForwardedPort:
    """``users`` counts the requests that are under way."""

    session: aiohttp.ClientSession
    stack: AsyncExitStack
    users: int = 0


class ForwardedPorts:
    """The ports of one sandbox that clients use: at most ``most``. Another port takes the place of the one that was
    used least recently: visitors of public ports choose them, and must not use up those of others."""

    def __init__(self, running: RunningSandbox, most: int, directory: Path | None = None) -> None:
        self._sandbox = running
        self._most = most
        self._directory = directory
        self._ports: dict[int, _ForwardedPort] = {}  # the least recently used first
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def session(self, port: int) -> AsyncIterator[aiohttp.ClientSession]:
        """A client whose connections end at a port of the sandbox, for one request. Raises ``Refusal`` if requests to
        as many other ports as there may be are under way."""
        async with self._opening:
            found = self._ports.pop(port, None)
            if found is None:
                await self._make_room()
                found = await self._open(port)
            self._ports[port] = found
            found.users += 1
        try:
            yield found.session
        finally:
            found.users -= 1

    async def close(self) -> None:
        ports, self._ports = self._ports, {}
        for each in ports.values():
            await each.stack.aclose()

    async def _make_room(self) -> None:
        if len(self._ports) < self._most:
            return
        idle = next((port for port, each in self._ports.items() if not each.users), None)
        if idle is None:
            raise Refusal(429, f"{self._most} ports of the sandbox are in use, which is the limit")
        await self._ports.pop(idle).stack.aclose()

    async def _open(self, port: int) -> _ForwardedPort:
        async with AsyncExitStack() as stack:
            path = self._path(stack)
            with self._sandbox.reached():
                forward = self._sandbox.service.ports.forward_to_socket(await self._sandbox.sandbox(), port, path)
                await stack.enter_async_context(forward)
            session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(path), limit=_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            )
            return _ForwardedPort(await stack.enter_async_context(session), stack.pop_all())

    def _path(self, stack: AsyncExitStack) -> Path:
        if self._directory is None:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandpool-port-"))) / "socket"
        path = self._directory / f"port-{next(_numbers)}"
        stack.callback(path.unlink, missing_ok=True)
        return path


def check(request: web.Request, running: RunningSandbox, port: int) -> None:
    """Raise ``Refusal`` for a request without the token that the port needs."""
    if port in SANDBOXD_PORTS and not running.tokens.allows(request.headers):
        raise Refusal(403, f"port {port} runs commands: it needs the sandbox's token in the header X-Access-Token")
    if not running.request.public_ports and not running.tokens.allows(request.headers, traffic=True):
        raise Refusal(403, "the ports of this sandbox need its token, in the header E2B-Traffic-Access-Token")


async def forward(request: web.Request, running: RunningSandbox, port: int) -> web.StreamResponse:
    """Answer a request with what a server in the sandbox answers, after ``check``."""
    try:
        async with running.ports.session(port) as session:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await _forward_websocket(request, session)
            return await _forward_request(request, session, port)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise SandboxUnreachable(running.id, f"no server answers at port {port}") from error
    except aiohttp.ClientError as error:
        raise Refusal(502, f"the server at port {port} of the sandbox sent no valid answer: {error}") from error


async def _forward_request(request: web.Request, session: aiohttp.ClientSession, port: int) -> web.StreamResponse:
    headers = _forwarded(request.headers)
    if port in SANDBOXD_PORTS:
        headers.popall("Host", None)  # sandboxd takes a name with a domain for that of a web page
    if "Content-Encoding" in headers:  # the body has been unpacked here
        del headers["Content-Encoding"]
        headers.popall("Content-Length", None)
    body = request.content if request.can_read_body else None
    options: dict[str, Any] = {"headers": headers, "data": body, "allow_redirects": False}
    async with session.request(request.method, _url(request), **options) as answer:
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_forwarded(answer.headers))
        await response.prepare(request)
        async for piece in answer.content.iter_chunked(_CHUNK):
            await response.write(piece)
        await response.write_eof()
    return response


async def _forward_websocket(request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
    protocols = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if each.strip()]
    headers = _forwarded(request.headers)
    for name in [each for each in headers if each.lower().startswith("sec-websocket-")]:
        headers.popall(name, None)
    async with session.ws_connect(
        _url(request), headers=headers, protocols=protocols, max_msg_size=_MAX_MESSAGE
    ) as there:
        here = web.WebSocketResponse(protocols=[there.protocol] if there.protocol else (), max_msg_size=_MAX_MESSAGE)
        await here.prepare(request)
        relays = [asyncio.create_task(_relay(here, there)), asyncio.create_task(_relay(there, here))]
        try:
            await asyncio.wait(relays, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for relay in relays:
                relay.cancel()
            await asyncio.gather(*relays, return_exceptions=True)
        await here.close(code=there.close_code or aiohttp.WSCloseCode.OK)
    return here


async def _relay(
    source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
    sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
) -> None:
    async for message in source:
        if message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)


def _forwarded(headers: Any) -> CIMultiDict[str]:
    """The headers of a message without those of its connection."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in _KEPT_HERE and name.lower() not in named
    )


def _url(request: web.Request) -> URL:
    return URL(f"http://sandbox{request.rel_url.raw_path_qs}", encoded=True)
