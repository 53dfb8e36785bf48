"""Serves ``sandpool run`` in the process of a home, for clients at its Unix socket (``cli.run_client``).

A request is the arguments of the command. They are parsed by the command itself and performed by its own code
(``RunRequest.perform``) with a console that is the client's. Only the connection differs from the ordinary way: claims
and exec are requests to the API in this process, as the administrator of the home, whose kubeconfig the ordinary way
uses. The socket accepts the users who have that kubeconfig, and root.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import click

from sandpool import __version__
from sandpool.cli import run_frames as frames
from sandpool.cli.console import Messages
from sandpool.cli.main import as_click, is_no_text, main
from sandpool.cli.progress import Progress
from sandpool.cli.run import RunRequest, run
from sandpool.cli.sessions import Target
from sandpool.cli.streams import READ_AHEAD
from sandpool.kube.pod_client import CONNECTION_LOST, STDERR
from sandpool.service.commands import RunningCommand
from sandpool.service.service import Service

#: Makes the service for a namespace; None is the default one.
Services = Callable[["str | None"], Service]

logger = logging.getLogger(__name__)

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


class RunServer:
    """Serves the connections of ``users``, given by their ids. Cancelling a request releases its claim."""

    def __init__(self, services: Services, users: Collection[int]) -> None:
        self._services = services
        self._users = frozenset(users)
        self._requests: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, sockets: Iterable[socket.socket]) -> AsyncIterator[None]:
        """Accept connections at the sockets, which are closed at the end of the block; all requests end with it."""
        servers = [await asyncio.start_unix_server(self._accept, sock=each) for each in sockets]
        try:
            yield
        finally:
            for server in servers:
                server.close()
            requests = list(self._requests)
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            if _user_of(writer.get_extra_info("socket")) in self._users:
                await self._serve(reader, writer)
        except (OSError, EOFError, ValueError):
            pass  # the client is gone, or speaks another language
        except asyncio.CancelledError:
            pass  # the home stops, and all has been cleaned up
        finally:
            self._requests.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind, payload = await _read(reader)
        version, console, arguments, variables = frames.decode_request(payload)
        client = ClientConsole(reader, writer, console)
        if kind != frames.REQUEST or version != __version__ or (prepared := _prepare(arguments, variables)) is None:
            await client.send(frames.DECLINED)
            return
        context, request, namespace = prepared
        working = asyncio.create_task(request.perform(self._services(namespace), client), name="sandpool run")
        listening = asyncio.create_task(client.listen())
        stopped = False
        try:
            await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            stopped = True
        finally:
            for task in (working, listening):
                task.cancel()
            await asyncio.gather(working, listening, return_exceptions=True)
        with suppress(OSError):
            await client.send(frames.EXIT, bytes((_exit_code(working, context, client, stopped=stopped) & 255,)))


def _prepare(
    arguments: list[bytes], variables: dict[bytes, bytes]
) -> tuple[click.Context, RunRequest, str | None] | None:
    """Parse the arguments; None if only a process of the user's own can perform or refuse them."""
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    words = list(map(os.fsdecode, arguments))
    if any(map(is_no_text, words)):
        return None
    try:
        parent = click.Context(main, info_name="sandpool", **main.context_settings)
        context = run.make_context("run", words, parent=parent)
        options: dict[str, Any] = dict(context.params)
        target = Target(options.pop("kubeconfig"), options.pop("context"), options.pop("namespace"))
        if target.kubeconfig is not None or target.context is not None or options["volumes"]:
            return None  # files of the user, whom this process is not
        return context, RunRequest.of(environ=environ, **options), target.namespace
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        return None


def _exit_code(work: asyncio.Task[int], context: click.Context, client: ClientConsole, *, stopped: bool) -> int:
    """The exit code of a request that has ended. Its error is shown as the command line shows it."""
    if work.cancelled():
        if stopped:
            client.write_error(f"Error: {CONNECTION_LOST}\n")
        return 1
    error = work.exception()
    if error is None:
        return work.result()
    shown = as_click(error) if isinstance(error, Exception) else None
    if shown is None:
        logger.error("sandpool run failed", exc_info=error)
        client.write_error(f"Error: the home failed: {error!r}; its log has more\n")
        return 1
    if isinstance(shown, click.UsageError) and shown.ctx is None:
        shown.ctx = context
    text = io.StringIO()
    shown.show(text)
    client.write_error(text.getvalue())
    return shown.exit_code


class ClientConsole(Messages):
    """The console of the process at the other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, console: int) -> None:
        super().__init__()
        self.is_terminal = bool(console & frames.TERMINAL)
        self.has_piped_input = bool(console & frames.INTERACTIVE)
        self._has_messages_on_terminal = bool(console & frames.MESSAGES_ON_TERMINAL)
        self._reader = reader
        self._writer = writer
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def progress(self, *, in_terminal_only: bool = False) -> Progress:
        is_terminal = self._has_messages_on_terminal
        return Progress(in_terminal_only=in_terminal_only, is_terminal=is_terminal, write=self.write_error)

    def write_error(self, text: str) -> None:
        """Show text on standard error."""
        self._writer.write(frames.frame(frames.MESSAGE, text.encode(errors="replace")))

    async def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame. Waits while the client does not read."""
        self._writer.write(frames.frame(kind, payload))
        await self._writer.drain()

    async def listen(self) -> None:
        """Receive input, until the client disconnects or cancels its request."""
        with suppress(OSError, EOFError, ValueError):
            while True:
                kind, payload = await _read(self._reader)
                if kind == frames.INPUT:
                    self._input.put_nowait(payload)
                elif kind == frames.SIZE:
                    self._sizes.put_nowait((int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:], "big")))
                else:
                    return

    async def converse(self, running: RunningCommand, *, stdin: bool, tty: bool) -> int:
        await self.send(frames.STARTED, bytes((frames.INTERACTIVE * stdin | frames.TERMINAL * tty,)))
        helpers: list[asyncio.Task[None]] = []
        if stdin:
            helpers.append(asyncio.create_task(self._feed(running)))
        if tty:
            helpers.append(asyncio.create_task(self._follow_size(running)))
        try:
            async for piece in running.output():
                await self.send(frames.ERROR_OUTPUT if piece.stream == STDERR else frames.OUTPUT, piece.data)
            return await running.wait()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._writer.write(frames.frame(frames.ENDED))

    async def _feed(self, running: RunningCommand) -> None:
        await self.send(frames.WANT, bytes(READ_AHEAD))
        while piece := await self._input.get():
            await running.send(piece)
            await self.send(frames.WANT, bytes(1))
        await running.end_input()

    async def _follow_size(self, running: RunningCommand) -> None:
        while True:
            await running.resize(*await self._sizes.get())


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next frame. Raises ``EOFError``, ``OSError``, and ``ValueError`` for one that is too long."""
    kind, size = frames.head(await reader.readexactly(frames.HEAD))
    if size > frames.LONGEST:
        raise ValueError("the frame is too long")
    return kind, await reader.readexactly(size)


def _user_of(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)
