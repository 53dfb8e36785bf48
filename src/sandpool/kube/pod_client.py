"""Exec, port-forward and logs of pods through the API server, for clients.

Everything goes through WebSockets: ``v5.channel.k8s.io`` for exec, which can end standard input, and SPDY tunnelled
through a WebSocket for port-forward. Servers have both since Kubernetes 1.31. With an older server exec falls back to
``v4.channel.k8s.io``, in which a client cannot end standard input.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import orjson

from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.connection import Connection
from sandpool.kube.errors import ApiError, from_status
from sandpool.kube.http_stream import StreamedResponse, open_stream
from sandpool.kube.pod_access import Size
from sandpool.kube.websocket import ClientWebSocket, WebSocketBytes, accept_token, new_key

STDOUT: Final = 1
STDERR: Final = 2

#: What is said of a command whose end is unknown.
CONNECTION_LOST: Final = "the connection to the sandbox ended before the command did"

_STDIN, _STATUS, _RESIZE, _CLOSE = 0, 3, 4, 255
#: In order of preference.
EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
TUNNEL_PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
_PIECE: Final = 1 << 15
_HEAD_SECONDS: Final = 60.0


class Output(NamedTuple):
    """A piece of output: ``stream`` is STDOUT or STDERR."""

    stream: int
    data: bytes


class ExecError(Exception):
    """The command could not be started or its session broke; the message is the server's."""


class ExecOptions(NamedTuple):
    """A command to run, in which container ("" is the default one), with which streams."""

    command: Sequence[str]
    container: str = ""
    stdin: bool = False
    tty: bool = False

    def query(self) -> list[tuple[str, str]]:
        """The parameters of the request."""
        wanted = {"container": self.container, "stdin": self.stdin, "stdout": True, "tty": self.tty}
        wanted["stderr"] = not self.tty
        return [("command", word) for word in self.command] + [
            (name, "true" if value is True else str(value)) for name, value in wanted.items() if value
        ]


class LogOptions(NamedTuple):
    """The part of a log to read."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    tail: int | None = None

    def query(self) -> list[tuple[str, str]]:
        """The parameters of the request."""
        wanted = {
            "container": self.container,
            "follow": self.follow,
            "previous": self.previous,
            "timestamps": self.timestamps,
            "sinceSeconds": self.since_seconds,
            "tailLines": self.tail,
        }
        return [
            (name, "true" if value is True else str(value))
            for name, value in wanted.items()
            if value is not None and value is not False and value != ""
        ]


class ExecSession(Protocol):
    """A running command. Closing the session kills the command."""

    def output(self) -> AsyncIterator[Output]:
        """Yield output as it arrives, until the command has ended."""
        ...

    async def exit_code(self) -> int:
        """The exit code. Call it after ``output`` has ended; raises ``ExecError``."""
        ...

    async def send(self, data: bytes) -> None:
        """Send to standard input. Waits while the command does not read."""
        ...

    async def end_input(self) -> None:
        """End standard input."""
        ...

    async def resize(self, size: Size) -> None:
        """Change the size of the terminal."""
        ...

    async def close(self) -> None: ...


class PodClient(Protocol):
    """Access to pods. Every method raises ``ApiError`` for a refusal and ``OSError`` if there is no answer."""

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> ExecSession: ...

    async def tunnel(self, namespace: str, pod: str) -> ByteStream:
        """Open a port-forward: a byte stream that carries SPDY."""
        ...

    def logs(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]: ...


class HttpPodClient:
    """Access to the pods of one API server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> WebSocketExec:
        socket, protocol = await self._websocket(namespace, pod, "exec", options.query(), EXEC_PROTOCOLS)
        return WebSocketExec(socket, can_end_input=protocol == EXEC_PROTOCOLS[0])

    async def tunnel(self, namespace: str, pod: str) -> ByteStream:
        socket, _ = await self._websocket(namespace, pod, "portforward", [], (TUNNEL_PROTOCOL,))
        return WebSocketBytes(socket)

    async def logs(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        headers = {"Accept": "application/json, */*"}
        response = await self._open(_target(namespace, pod, "log", options.query()), headers)
        try:
            async with aclosing(response.body()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            response.abort()

    async def _websocket(
        self, namespace: str, pod: str, subresource: str, query: list[tuple[str, str]], protocols: tuple[str, ...]
    ) -> tuple[ClientWebSocket, str]:
        key = new_key()
        headers = upgrade_headers(key, protocols)
        response = await self._open(_target(namespace, pod, subresource, query), headers)
        chosen = response.headers.get("sec-websocket-protocol", "")
        if response.status != 101 or response.headers.get("sec-websocket-accept") != accept_token(key):
            response.abort()
            raise ConnectionError(f"{self.connection.server} did not switch to a WebSocket")
        if chosen not in protocols:
            response.abort()
            raise ConnectionError(f"{self.connection.server} speaks none of {', '.join(protocols)}")
        return ClientWebSocket(response.byte_stream()), chosen

    async def _open(self, target: str, headers: Mapping[str, str]) -> StreamedResponse:
        """Send a request; with refused credentials once more, after renewing them."""
        credentials = self.connection.credentials
        renewed = False
        while True:
            auth = await credentials.auth()
            async with asyncio.timeout(_HEAD_SECONDS):
                response = await open_stream(self.connection, auth, "GET", target, headers)
                if response.status < 300:
                    return response
                error = await _error_of(response)
            if error.code == 401 and not renewed and (renewed := await credentials.renew(auth)):
                continue
            raise error


class WebSocketExec:
    """A command over a WebSocket whose messages begin with a channel number."""

    def __init__(self, socket: ClientWebSocket, *, can_end_input: bool) -> None:
        self.socket = socket
        self.can_end_input = can_end_input
        self._status: Object | None = None

    async def output(self) -> AsyncIterator[Output]:
        while (message := await self.socket.receive()) is not None:
            channel = message[0] if message else -1
            if channel in (STDOUT, STDERR):
                if len(message) > 1:
                    yield Output(channel, message[1:])
            elif channel == _STATUS:
                self._status = _decoded(message[1:])
                return

    async def exit_code(self) -> int:
        status = self._status
        if status is None:
            raise ExecError(CONNECTION_LOST)
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise ExecError(str(status.get("message") or "the command failed for an unknown reason"))

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            await self.socket.send(bytes([_STDIN]) + data[start : start + _PIECE])

    async def end_input(self) -> None:
        if self.can_end_input:
            await self.socket.send(bytes([_CLOSE, _STDIN]))

    async def resize(self, size: Size) -> None:
        await self.socket.send(bytes([_RESIZE]) + orjson.dumps({"Width": size.columns, "Height": size.rows}))

    async def close(self) -> None:
        await self.socket.close()
        await self.socket.byte_stream.close()


def _target(namespace: str, pod: str, subresource: str, query: Sequence[tuple[str, str]]) -> str:
    path = POD.path(namespace, pod, subresource)
    return f"{path}?{encode_query(query)}" if query else path


def encode_query(query: Sequence[tuple[str, str]]) -> str:
    """A query string; spaces are not encoded as plus signs."""
    return urlencode(query, quote_via=quote)


def upgrade_headers(key: str, protocols: Sequence[str]) -> dict[str, str]:
    """Headers of a request to switch to a WebSocket with one of the protocols."""
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }


def _decoded(body: bytes) -> Object:
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    return status if isinstance(status, dict) else {"message": body.decode(errors="replace")}


async def _error_of(response: StreamedResponse) -> ApiError:
    body = b"".join([piece async for piece in response.body()])
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    return from_status(status, response.status)
