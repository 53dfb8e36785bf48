"""Performs the actions of probes and hooks: a command in a container, a connection to it, or an HTTP request.

A result is good or bad and carries a message in kubelet's words. A container that cannot be reached is a bad result and
never an exception.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from typing import Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, within
from sandpool.node.pods.interfaces import Network
from sandpool.node.pods.spec import Container
from sandpool.node.runtimes.runtime import Command, RuntimeFailure, Stdio
from sandpool.node.runtimes.runtime import Container as Running

# Bytes kept of the output of a command.
_LONGEST: Final = 10 << 10
_LONGEST_LINE: Final = 16 << 10
_SIGKILL: Final = 9


class ProbeResult(NamedTuple):
    good: bool
    message: str


class Prober:
    """Probes the containers of one pod."""

    def __init__(self, uid: str, network: Network, clock: Clock) -> None:
        self.uid = uid
        self.network = network
        self.clock = clock

    async def run(self, action: Object, container: Container, running: Running, seconds: float | None) -> ProbeResult:
        """Perform the action of a probe or hook, within ``seconds`` unless that is None."""
        work = self._run_probe(action, container, running)
        try:
            return await (work if seconds is None else within(self.clock, seconds, work))
        except TimeoutError:
            return ProbeResult(False, f"timed out after {seconds:g}s")
        except (OSError, EOFError, ValueError, RuntimeFailure) as error:
            return ProbeResult(False, str(error) or type(error).__name__)

    async def _run_probe(self, action: Object, container: Container, running: Running) -> ProbeResult:
        if "exec" in action:
            return await self._execute(tuple(action["exec"].get("command") or ()), running)
        if "httpGet" in action:
            return await self._get(action["httpGet"], container)
        if "tcpSocket" in action:
            where = action["tcpSocket"]
            sock = await self.network.dial(self.uid, _port(where["port"], container), where.get("host") or "")
            sock.close()
            return ProbeResult(True, "")
        if "sleep" in action:
            await self.clock.sleep(float(action["sleep"].get("seconds") or 0))
            return ProbeResult(True, "")
        return ProbeResult(False, f"{', '.join(action) or 'nothing'} is not a supported action")

    async def _execute(self, argv: tuple[str, ...], running: Running) -> ProbeResult:
        reader, writer = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            process = await running.execute(Command(argv), Stdio(nothing, writer, writer))
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(nothing)
            os.close(writer)
        output = asyncio.create_task(_read(reader))
        try:
            code = await process.wait()
            return ProbeResult(code == 0, (await output).decode(errors="replace").strip())
        finally:
            # After a timeout the command must end. A child that holds the pipe open is not waited for.
            with suppress(RuntimeFailure):
                await process.signal(_SIGKILL)
            output.cancel()
            await asyncio.gather(output, return_exceptions=True)

    async def _get(self, get: Object, container: Container) -> ProbeResult:
        port = _port(get["port"], container)
        secure = (get.get("scheme") or "HTTP") == "HTTPS"
        sock = await self.network.dial(self.uid, port, get.get("host") or "")
        reader, writer = await asyncio.open_connection(
            sock=sock,
            limit=_LONGEST_LINE,
            ssl=_unverified() if secure else None,
            server_hostname="" if secure else None,
        )
        try:
            writer.write(_request(get, port))
            await writer.drain()
            code = _status_code(await reader.readline())
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
        return ProbeResult(200 <= code < 400, f"HTTP probe failed with statuscode: {code}")


def _request(get: Object, port: int) -> bytes:
    headers = {"Host": f"{get.get('host') or 'localhost'}:{port}", "User-Agent": "kube-probe/1.36", "Accept": "*/*"}
    for header in get.get("httpHeaders") or ():
        headers[header["name"]] = header.get("value") or ""
    lines = [f"GET {get.get('path') or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def _status_code(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/") or not rest[:3].isdigit():
        raise ValueError("the response is not HTTP")
    return int(rest[:3])


def _unverified() -> ssl.SSLContext:
    """A probe checks that a server answers, not which one, so its certificate is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _port(port: int | str, container: Container) -> int:
    """Return the number of a port, which may be given by name."""
    if isinstance(port, int):
        return port
    for each in container.spec.get("ports") or ():
        if each.get("name") == port:
            return int(each["containerPort"])
    if port.isdecimal():
        return int(port)
    raise ValueError(f"couldn't find port: {port}")


async def _read(descriptor: int) -> bytes:
    """Read a pipe until it is closed and return the first bytes of it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    file = os.fdopen(descriptor, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    kept = b""
    try:
        while chunk := await reader.read(_LONGEST):
            kept = (kept + chunk)[:_LONGEST]
        return kept
    finally:
        transport.close()
