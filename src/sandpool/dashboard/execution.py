"""Work in a sandbox: code, a terminal, uploads, and ports that are forwarded."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from sandpool.dashboard.guard import PROTOCOL
from sandpool.dashboard.inspection import file_path
from sandpool.dashboard.requests import EXPECTED, BadRequest, body, failure, sandbox_of, text
from sandpool.dashboard.target import DashboardTarget
from sandpool.kube.errors import ApiError
from sandpool.sdk.code import AsyncCodeSession, Execution
from sandpool.service.commands import Command, RunningCommand
from sandpool.service.errors import ServiceError
from sandpool.service.sandboxes import Sandbox

_RUN_SECONDS: Final = 120.0
_MAX_OUTPUT: Final = 256 << 10
_MAX_SESSIONS: Final = 32
_MAX_FORWARDS: Final = 64
#: The first shell that the image has.
_SHELL: Final = "for s in bash zsh ash sh; do command -v $s >/dev/null 2>&1 && exec $s -i; done; exec sh -i"
_TERMINAL: Final = {"TERM": "xterm-256color"}
_MAX_INPUT: Final = 1 << 20
_MAX_SIZE: Final = 1000


class Executions:
    """Handlers that run something in a sandbox. They keep Python sessions and forwarded ports until ``close``."""

    def __init__(self, target: DashboardTarget) -> None:
        self.target = target
        self.forwards = Forwards(target)
        self._sessions: dict[str, AsyncCodeSession] = {}  # by the UID of the sandbox, the last used at the end
        self._terminals: set[web.WebSocketResponse] = set()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        for terminal in list(self._terminals):
            await terminal.close(code=1001, message=b"the dashboard stops")
        await self.forwards.close()

    async def run(self, request: web.Request) -> Any:
        """Run a script of the shell, or Python code whose names stay until the next run."""
        sandbox = await sandbox_of(request, self.target)
        fields = await body(request)
        code, language = text(fields, "code"), text(fields, "language")
        if language == "python":
            return _executed(await (await self._session(sandbox)).run(code, timeout=_RUN_SECONDS))
        if language != "sh":
            raise BadRequest("language has to be python or sh")
        commands = self.target.service(sandbox.namespace).commands
        result = await commands.run(sandbox, Command(code), timeout=_RUN_SECONDS, max_output=_MAX_OUTPUT)
        return {
            "stdout": result.stdout.decode(errors="replace"),
            "stderr": result.stderr.decode(errors="replace"),
            "exitCode": result.exit_code,
            "timedOut": result.timed_out,
            "truncated": result.truncated,
            "results": [],
            "error": None,
        }

    async def upload(self, request: web.Request) -> Any:
        """Write the body of the request to a file."""
        sandbox = await sandbox_of(request, self.target)
        content = request.content.iter_any()
        await self.target.service(sandbox.namespace).filesystem.write(sandbox, file_path(request), content)
        return {}

    async def open_port(self, request: web.Request) -> Any:
        """Forward a port of a sandbox to this machine; returns its URL."""
        sandbox = await sandbox_of(request, self.target)
        port = request.match_info["port"]
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadRequest("this is not a port")
        if not self.target.loopback:
            raise ServiceError(
                "ports are forwarded only to browsers on the same machine",
                f"On your machine run: sandpool open {sandbox.shown_name} {port}",
            )
        return {"url": await self.forwards.open(sandbox, int(port))}

    async def terminal(self, request: web.Request) -> web.StreamResponse:
        """A shell in a terminal over a WebSocket: bytes are its input and output, text is its size as JSON."""
        try:
            sandbox = await sandbox_of(request, self.target)
        except EXPECTED as error:
            return failure(error)
        socket = web.WebSocketResponse(protocols=(PROTOCOL,), heartbeat=30.0, max_msg_size=_MAX_INPUT)
        await socket.prepare(request)
        self._terminals.add(socket)
        try:
            await self._shell(sandbox, socket)
        finally:
            self._terminals.discard(socket)
            await socket.close()
        return socket

    async def _shell(self, sandbox: Sandbox, socket: web.WebSocketResponse) -> None:
        command = Command(("sh", "-c", _SHELL), env=_TERMINAL, tty=True, stdin=True)
        commands = self.target.service(sandbox.namespace).commands
        try:
            async with commands.start(sandbox, command) as shell:
                reading = asyncio.create_task(_input(socket, shell), name="dashboard: terminal input")
                output = asyncio.create_task(_output(socket, shell), name="dashboard: terminal output")
                try:
                    await asyncio.wait((reading, output), return_when=asyncio.FIRST_COMPLETED)
                    if output.done():
                        output.result()
                        await socket.send_str(orjson.dumps({"exitCode": await shell.wait()}).decode())
                finally:
                    reading.cancel()
                    output.cancel()
                    await asyncio.gather(reading, output, return_exceptions=True)
        except (ServiceError, ApiError, OSError, TimeoutError) as error:
            with suppress(ConnectionError):
                await socket.send_str(orjson.dumps({"error": str(error)}).decode())

    async def _session(self, sandbox: Sandbox) -> AsyncCodeSession:
        key = str(sandbox.object["metadata"]["uid"])
        session = self._sessions.pop(key, None)
        if session is None:
            session = AsyncCodeSession(self.target.service(sandbox.namespace).commands, sandbox)
        while len(self._sessions) >= _MAX_SESSIONS:
            await self._sessions.pop(next(iter(self._sessions))).close()
        self._sessions[key] = session
        return session


class Forwards:
    """Ports of sandboxes on the loopback interface of this machine, each sandbox on an address of its own.

    Browsers keep cookies, storage and permissions by host, and share cookies between all ports of a host. A server in a
    sandbox must therefore not be on the host of the dashboard, nor on that of another sandbox."""

    def __init__(self, target: DashboardTarget) -> None:
        self.target = target
        self._open: dict[tuple[str, int], tuple[str, AsyncExitStack]] = {}  # by UID and port; the last used at the end

    async def open(self, sandbox: Sandbox, port: int) -> str:
        """Forward a port; returns the URL of it, which stays the same until it is closed."""
        key = (str(sandbox.object["metadata"]["uid"]), port)
        if (known := self._open.pop(key, None)) is not None:
            self._open[key] = known
            return known[0]
        stack = AsyncExitStack()
        host = loopback_address(key[0])
        local = await stack.enter_async_context(
            self.target.service(sandbox.namespace).ports.forward(sandbox, port, host=host)
        )
        self._open[key] = (f"http://{host}:{local}/", stack)
        while len(self._open) > _MAX_FORWARDS:
            _, oldest = self._open.pop(next(iter(self._open)))
            await oldest.aclose()
        return self._open[key][0]

    async def close(self) -> None:
        while self._open:
            _, (_, stack) = self._open.popitem()
            await stack.aclose()


def loopback_address(uid: str) -> str:
    """An address of the loopback interface for a sandbox, other than 127.0.0.1."""
    digest = sha256(uid.encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}.{1 + digest[2] % 254}"


async def _input(socket: web.WebSocketResponse, shell: RunningCommand) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await shell.send(message.data)
        elif message.type is WSMsgType.TEXT:
            size = _size(message.data)
            if size is not None:
                await shell.resize(*size)


async def _output(socket: web.WebSocketResponse, shell: RunningCommand) -> None:
    async for piece in shell.output():
        await socket.send_bytes(piece.data)


def _size(data: str) -> tuple[int, int] | None:
    """Columns and rows."""
    try:
        asked = orjson.loads(data)
        columns, rows = int(asked["columns"]), int(asked["rows"])
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError):
        return None
    return (columns, rows) if 0 < columns <= _MAX_SIZE and 0 < rows <= _MAX_SIZE else None


def _executed(execution: Execution) -> Any:
    results = [
        {
            "text": each.text[:_MAX_OUTPUT],
            "png": None if each.png is None else base64.b64encode(each.png).decode(),
            "jpeg": None if each.jpeg is None else base64.b64encode(each.jpeg).decode(),
        }
        for each in execution.results
    ]
    return {
        "stdout": execution.stdout[:_MAX_OUTPUT],
        "stderr": execution.stderr[:_MAX_OUTPUT],
        "exitCode": None,
        "timedOut": False,
        "truncated": execution.truncated or len(execution.stdout) > _MAX_OUTPUT,
        "results": results,
        "error": None if execution.error is None else execution.error.traceback[-_MAX_OUTPUT:],
    }
