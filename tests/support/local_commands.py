"""Commands of sandboxes, run as processes of this machine, with terminals."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from contextlib import suppress
from pathlib import Path

from sandpool.kube.pod_access import Size
from tests.support.fake_pod_client import PlayedSession


class LocalCommands:
    """Runs the commands of sandboxes as processes of this machine, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def play(self, session: PlayedSession) -> int | str:
        if session.options.tty:
            return await Terminal(self.directory).play(session)
        pipe = asyncio.subprocess.PIPE
        creating = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *session.options.command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=self.directory,
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(creating)
        except asyncio.CancelledError:  # the session was closed at once
            process = await creating
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.communicate()
            raise
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        tasks = [
            asyncio.create_task(self._copy(process.stdout, session, 1)),
            asyncio.create_task(self._copy(process.stderr, session, 2)),
        ]
        feeding = asyncio.create_task(self._feed(process.stdin, session))
        try:
            await asyncio.gather(*tasks)
            code = await process.wait()
            return code if code >= 0 else 128 - code
        finally:
            feeding.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()

    async def _copy(self, reader: asyncio.StreamReader, session: PlayedSession, stream: int) -> None:
        while data := await reader.read(1 << 16):
            session.write(data, stream)

    async def _feed(self, writer: asyncio.StreamWriter, session: PlayedSession) -> None:
        with suppress(ConnectionError):
            while data := await session.input.get():
                writer.write(data)
                await writer.drain()
        writer.close()


class Terminal:
    """Runs a command in a terminal of this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor = -1

    async def play(self, session: PlayedSession) -> int:
        self._descriptor, terminal = os.openpty()
        session.resized = self._resize
        for size in session.sizes:
            self._resize(size)
        process = await asyncio.create_subprocess_exec(
            *session.options.command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=self.directory,
            env={**os.environ, "HOME": str(self.directory)},  # no profile of the user
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        ended = asyncio.Event()

        def readable() -> None:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:  # the last process has closed it
                data = b""
            if data:
                session.write(data)
            else:
                ended.set()
                loop.remove_reader(self._descriptor)

        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, readable)
        feeding = asyncio.create_task(self._feed(session))
        try:
            await ended.wait()
            code = await process.wait()
            return code if code >= 0 else 128 - code
        finally:
            feeding.cancel()
            loop.remove_reader(self._descriptor)
            session.resized = None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
            os.close(self._descriptor)

    async def _feed(self, session: PlayedSession) -> None:
        while data := await session.input.get():
            os.write(self._descriptor, data)

    def _resize(self, size: Size) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
