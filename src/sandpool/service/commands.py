"""Commands in sandboxes, through ``pods/exec`` of the API server.

Exec was chosen over the HTTP API of the sandbox's own daemon behind the router: it works for every image and on every
Kubernetes, has standard input, terminals and output as it comes, and needs no second address and token. Environment
and working directory are not part of exec, so ``env`` and ``sh`` of the image set them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from sandpool.kube.errors import BadRequest, InternalError, NotFound, ServiceUnavailable
from sandpool.kube.pod_access import Size
from sandpool.kube.pod_client import STDERR, STDOUT, ExecError, ExecOptions, ExecSession, Output, PodClient
from sandpool.service.errors import CommandFailed
from sandpool.service.sandboxes import Sandbox, Wake, not_running

# Exit code of a shell for a command that does not exist.
NOT_FOUND = 127
#: The first interactive shell that the image has.
SHELL = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash -il; else exec sh -il; fi")


class Command(NamedTuple):
    """A command. Text is run by the image's ``sh``, a sequence of words directly."""

    words: str | Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    tty: bool = False
    stdin: bool = False
    container: str = ""  # default: the sandbox's main container

    def arguments(self) -> tuple[str, ...]:
        """The words to execute, with what sets the environment and the working directory before them."""
        words = ("sh", "-c", self.words) if isinstance(self.words, str) else tuple(self.words)
        if not words or not words[0]:
            raise CommandFailed("the command is empty")
        for word in (*words, *(self.env or {}).values()):
            if not word.isascii():
                _check_text(word)
        if self.env:
            words = ("env", *(f"{name}={value}" for name, value in self.env.items()), *words)
        if self.cwd is not None:
            words = ("sh", "-c", 'cd "$0" && exec "$@"', self.cwd, *words)
        return words


def _check_text(word: str) -> None:
    """Raise ``CommandFailed`` for an argument of a process that is not UTF-8: Python has its bytes as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise CommandFailed(
            f"the argument {word!r} is not UTF-8 text; write such bytes to a file or pipe them in"
        ) from None


class KeptOutput:
    """The first ``limit`` bytes of an output stream, and the size of all of it."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.size = 0
        self._content = bytearray()

    @property
    def content(self) -> bytes:
        return bytes(self._content)

    @property
    def dropped(self) -> int:
        """The number of bytes beyond the limit."""
        return self.size - len(self._content)

    def add(self, data: bytes) -> bytes:
        """Count a piece, and return the part of it that is kept."""
        self.size += len(data)
        kept = data if self.limit is None else data[: max(self.limit - len(self._content), 0)]
        self._content += kept
        return kept


class Result(NamedTuple):
    """The outcome of a finished command. Output beyond the limit was dropped and counted."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    stdout_dropped: int = 0  # bytes
    stderr_dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether output is missing."""
        return bool(self.stdout_dropped or self.stderr_dropped)

    @property
    def stdout_size(self) -> int:
        """The number of bytes that the command wrote to standard output."""
        return len(self.stdout) + self.stdout_dropped

    @property
    def stderr_size(self) -> int:
        """The number of bytes that the command wrote to standard error."""
        return len(self.stderr) + self.stderr_dropped


class RunningCommand:
    """A command that runs. ``output`` ends when the command has ended; ``wait`` then returns its exit code."""

    def __init__(self, session: ExecSession) -> None:
        self._session = session

    async def output(self) -> AsyncIterator[Output]:
        """Yield pieces of standard output and standard error as they arrive."""
        async for piece in self._session.output():
            yield piece

    async def wait(self) -> int:
        """Return the exit code. Raises ``CommandFailed`` if the command was not started or was lost."""
        try:
            return await self._session.exit_code()
        except ExecError as error:
            raise CommandFailed(str(error)) from None

    async def send(self, data: bytes) -> None:
        """Send to standard input."""
        await self._session.send(data)

    async def end_input(self) -> None:
        """End standard input."""
        await self._session.end_input()

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        await self._session.resize(Size(columns, rows))

    async def kill(self) -> None:
        """Kill the command by closing its session."""
        await self._session.close()


class Commands:
    """Runs commands in sandboxes."""

    def __init__(self, pods: PodClient, wake: Wake | None = None) -> None:
        self.pods = pods
        self.wake = wake

    @asynccontextmanager
    async def start(self, sandbox: Sandbox, command: Command) -> AsyncIterator[RunningCommand]:
        """Start a command. Leaving the block kills it if it still runs."""
        container = command.container or sandbox.container
        options = ExecOptions(command.arguments(), container, command.stdin, command.tty)
        try:
            session = await self._execute(sandbox, options)
        except (NotFound, ServiceUnavailable, BadRequest, InternalError) as error:
            raise not_running(sandbox, error) from error
        running = RunningCommand(session)
        try:
            yield running
        finally:
            with suppress(OSError):
                await running.kill()

    async def _execute(self, sandbox: Sandbox, options: ExecOptions) -> ExecSession:
        """The API server of the local home resumes a sandbox that sleeps; for others that is done here."""
        try:
            return await self.pods.execute(sandbox.namespace, sandbox.pod, options)
        except NotFound:
            if self.wake is None or not sandbox.asleep:
                raise
        await self.wake(sandbox.namespace, sandbox.name)
        return await self.pods.execute(sandbox.namespace, sandbox.pod, options)

    async def run(
        self,
        sandbox: Sandbox,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] | AsyncIterable[bytes] | None = None,
        timeout: float | None = None,
        max_output: int | None = None,
        stream: Callable[[Output], None] | None = None,
    ) -> Result:
        """Run a command to its end and return its output. After ``timeout`` seconds the command is killed, and the
        result has the output so far, exit code -1 and ``timed_out``. ``max_output`` limits the bytes that are kept of
        each of standard output and standard error. ``stream`` receives all output as it arrives."""
        kept = {STDOUT: KeptOutput(max_output), STDERR: KeptOutput(max_output)}
        code, timed_out = -1, False
        async with self.start(sandbox, command._replace(stdin=stdin is not None)) as running:
            feeding = asyncio.create_task(_feed(running, stdin))
            try:
                async with asyncio.timeout(timeout):
                    async for piece in running.output():
                        kept[piece.stream].add(piece.data)
                        if stream is not None:
                            stream(piece)
                    if feeding.done():
                        feeding.result()  # an error of the source of the input is an error of the call
                    code = await running.wait()
            except TimeoutError:
                timed_out = True
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        out, err = kept[STDOUT], kept[STDERR]
        return Result(code, out.content, err.content, timed_out, out.dropped, err.dropped)


async def _feed(running: RunningCommand, stdin: bytes | Iterable[bytes] | AsyncIterable[bytes] | None) -> None:
    if stdin is None:
        return
    try:
        if isinstance(stdin, AsyncIterable):
            async for piece in stdin:
                await running.send(piece)
        else:
            for piece in (stdin,) if isinstance(stdin, bytes) else stdin:
                await running.send(piece)
        await running.end_input()
    except Exception:
        await running.kill()  # it would wait for the rest of its input
        raise
