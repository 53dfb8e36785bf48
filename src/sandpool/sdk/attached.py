"""Commands and terminals that run while this program is connected to them, with their output as it arrives.

A task of its own reads the output. A caller can therefore stop waiting for it, after a timeout or a cancellation, and
the next read continues where the last one ended. The task stops reading while too much output waits to be read, and
that stops the command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Self

from sandpool.sdk.errors import Diagnosis
from sandpool.sdk.results import Output, Result
from sandpool.service.commands import Command, Commands, KeptOutput, RunningCommand
from sandpool.service.sandboxes import Sandbox

#: Pieces of output that wait to be read.
_WAITING: Final = 64
#: Bytes of output that are kept of a command whose output is only of interest if it fails.
ERROR_OUTPUT: Final = 1 << 12

#: Is told the exit code of a command that has ended, and may raise ``SandboxLost``.
Ended = Callable[[int], Awaitable[None]]


async def ignore_end(code: int) -> None:
    """An ``Ended`` that does nothing."""


class _Attached:
    """A command with its connection. ``start`` it once, and ``close`` it."""

    def __init__(
        self,
        commands: Commands,
        sandbox: Sandbox,
        diagnosed: Diagnosis,
        ended: Ended,
        command: Command,
        timeout: float | None,
        max_output: int,
    ) -> None:
        self._commands = commands
        self._sandbox = sandbox
        self._diagnosed = diagnosed
        self._ended = ended
        self._command = command
        self._timeout = timeout
        self._stack = AsyncExitStack()
        self._running: RunningCommand | None = None
        self._pieces: asyncio.Queue[Output | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._kept = {"stdout": KeptOutput(max_output), "stderr": KeptOutput(max_output)}
        self._timed_out = False
        self._reading: asyncio.Task[int] | None = None

    async def start(self) -> Self:
        """Start the command. Called by the sandbox that makes this object."""
        if self._running is None:
            async with self._diagnosed():
                self._running = await self._stack.enter_async_context(
                    self._commands.start(self._sandbox, self._command)
                )
            self._reading = asyncio.create_task(self._read(self._running), name="output of a command")
            self._reading.add_done_callback(lambda _: self._pieces.put_nowait(None))
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, data: str | bytes) -> None:
        """Write to its standard input. Waits while it does not read."""
        running = await self._started()
        async with self._diagnosed():
            await running.send(data.encode() if isinstance(data, str) else data)

    async def kill(self) -> None:
        """Kill it. ``wait`` then returns."""
        await self.close()

    async def close(self) -> None:
        """Kill it if it still runs, and close the connection. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._stack.aclose()

    async def _started(self) -> RunningCommand:
        await self.start()
        assert self._running is not None
        return self._running

    async def _next(self, timeout: float | None) -> Output | None:
        """The next piece of output, None at the end. Raises ``TimeoutError`` if there is none in time."""
        await self._started()
        async with asyncio.timeout(timeout):
            piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)  # for the next caller
        self._room.set()
        return piece

    async def _finish(self) -> Result:
        """Discard the output that was not read, and wait for the end."""
        while await self._next(None) is not None:
            pass
        assert self._reading is not None
        await asyncio.wait((self._reading,))
        # A command that was killed here has no exit code.
        code = -1
        if not self._reading.cancelled():
            async with self._diagnosed():
                code = self._reading.result()
                await self._ended(code)
        return Result.of(code, self._kept["stdout"], self._kept["stderr"], self._timed_out)

    async def _read(self, running: RunningCommand) -> int:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                async for piece in running.output():
                    output = Output.of(piece)
                    self._kept[output.stream].add(output.data)
                    self._pieces.put_nowait(output)
                    while self._pieces.qsize() >= _WAITING:
                        self._room.clear()
                        await self._room.wait()
                return await running.wait()
        except TimeoutError:
            if not limit.expired():
                raise  # of the connection
            self._timed_out = True
            await self._stack.aclose()
            return -1


class AsyncCommand(_Attached):
    """A command that runs: iterate over it for its output, then ``wait`` for the outcome. It ends with its connection;
    ``AsyncSandbox.start`` makes processes that do not."""

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (piece := await self._next(None)) is not None:
            yield piece

    async def read(self, timeout: float | None = None) -> Output | None:
        """The next piece of output, None at the end. Raises ``TimeoutError`` if there is none within ``timeout``
        seconds; nothing is lost by that."""
        return await self._next(timeout)

    async def end_input(self) -> None:
        """End its standard input."""
        running = await self._started()
        async with self._diagnosed():
            await running.end_input()

    async def wait(self) -> Result:
        """Wait for the end and return the outcome. The exit code of a command that was killed is -1."""
        return await self._finish()


class AsyncShell(_Attached):
    """A terminal in a sandbox. Iterate over it for what it shows, as bytes; ``close`` it, or use it as a context
    manager. It starts with the first call."""

    size = (80, 24)

    async def start(self) -> Self:
        """Start the shell. A second call has no effect."""
        if self._running is None:
            await super().start()
            await self.resize(*self.size)
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def read(self, timeout: float | None = None) -> bytes:
        """What the terminal shows next, empty after its end. Raises ``TimeoutError`` if it shows nothing within
        ``timeout`` seconds; nothing is lost by that."""
        piece = await self._next(timeout)
        return b"" if piece is None else piece.data

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal. Its programs are told (SIGWINCH)."""
        running = await self._started()
        async with self._diagnosed():
            await running.resize(columns, rows)

    async def wait(self) -> int:
        """Wait for the end of the shell and return its exit code, -1 if it was killed."""
        return (await self._finish()).exit_code
