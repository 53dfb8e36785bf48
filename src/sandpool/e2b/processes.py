"""Processes that clients started in a sandbox: output for any number of followers, input, signals, size of a terminal.

Each is one exec session that the endpoint holds. A process goes on when the client that started it disconnects, and
others follow it by its PID; it ends with its time limit, its sandbox, or the endpoint. Output without a follower is
dropped, as in E2B. A follower that does not read stops the output of the process, as a full pipe does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from sandpool.e2b.rpc import Code, RpcError
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_client import STDERR, Output
from sandpool.service.commands import Command, RunningCommand
from sandpool.service.errors import CommandFailed, ServiceError

if TYPE_CHECKING:
    from sandpool.e2b.running import RunningSandbox

_QUEUE: Final = 64
_MAX_FIRST_LINE: Final = 4096
_MAX_EARLY_BYTES: Final = 1 << 20  # of standard error before the PID
_SIGNALLING_SECONDS: Final = 10.0

# The working directory and the command. Says its PID before it becomes the command. Clients ask for bash, and images
# without it have their own sh.
_START: Final = """
[ -z "$1" ] || cd -- "$1" 2>/dev/null || { echo "!cwd"; exit 126; }
shift
if [ "$1" = /bin/bash ] && [ ! -x /bin/bash ]; then
    shift
    if command -v bash >/dev/null; then set -- bash "$@"; else set -- sh "$@"; fi
fi
command -v -- "$1" >/dev/null || { echo "!cmd"; exit 126; }
echo $$
exec "$@"
"""
_SIGNAL: Final = 'kill -"$1" -"$2" 2>/dev/null || kill -"$1" "$2" 2>/dev/null || exit 1'


class ProcessSpec(NamedTuple):
    """A process to start. ``terminal`` is columns and rows; None is no terminal."""

    command: str
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    directory: str = ""
    tag: str = ""
    stdin: bool = True
    terminal: tuple[int, int] | None = None


class Exit(NamedTuple):
    """The end of a process; ``error`` says why it has no exit code of its own."""

    code: int
    error: str = ""
    timed_out: bool = False


Event = Output | Exit


class Follower:
    """Receives the output of a process from now on, and its end. Close it."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue(_QUEUE)
        self.closed = False

    async def events(self) -> AsyncIterator[Event]:
        """Yield what the process does until its end."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, Exit):
                return

    async def put(self, event: Event) -> None:
        if not self.closed:
            await self._events.put(event)

    def close(self) -> None:
        """Stop following; a process that waits for this follower goes on."""
        self.closed = True
        while not self._events.empty():
            self._events.get_nowait()


@dataclass
class Process:
    """A process that runs."""

    spec: ProcessSpec
    pid: int = 0
    running: RunningCommand | None = None
    followers: set[Follower] = field(default_factory=set)
    input_ended: bool = False

    def follow(self) -> Follower:
        follower = Follower()
        self.followers.add(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        self.followers.discard(follower)
        follower.close()

    async def publish(self, event: Event) -> None:
        for follower in tuple(self.followers):
            await follower.put(event)

    async def send(self, data: bytes) -> None:
        """Write to standard input, or type into the terminal."""
        if self.spec.terminal is None and not self.spec.stdin:
            raise RpcError(Code.FAILED_PRECONDITION, "the process was started without standard input")
        if self.input_ended:
            raise RpcError(Code.FAILED_PRECONDITION, "standard input of the process has ended")
        if self.running is not None:
            with _broken_connections():
                await self.running.send(data)

    async def end_input(self) -> None:
        if self.spec.terminal is not None:
            raise RpcError(Code.FAILED_PRECONDITION, "the input of a terminal has no end; send it Ctrl-D")
        self.input_ended = True
        if self.running is not None:
            with _broken_connections():
                await self.running.end_input()

    async def resize(self, columns: int, rows: int) -> None:
        if self.spec.terminal is None:
            raise RpcError(Code.FAILED_PRECONDITION, "the process has no terminal")
        if self.running is not None:
            with _broken_connections():
                await self.running.resize(columns, rows)


class ProcessTable:
    """The processes of one sandbox that clients started."""

    def __init__(self, running: RunningSandbox, most: int) -> None:
        self._sandbox = running
        self._most = most
        self._by_pid: dict[int, Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def list(self) -> list[Process]:
        return list(self._by_pid.values())

    def get(self, *, pid: int = 0, tag: str = "") -> Process:
        """Raises ``RpcError`` if no such process runs."""
        if tag:
            found = next((each for each in self._by_pid.values() if each.spec.tag == tag), None)
        else:
            found = self._by_pid.get(pid)
        if found is None:
            raise RpcError(Code.NOT_FOUND, f"there is no process with {f'tag {tag}' if tag else f'PID {pid}'}")
        return found

    async def start(self, spec: ProcessSpec, timeout: float | None) -> tuple[Process, Follower]:
        """Start a process and follow it. After ``timeout`` seconds it is killed."""
        if len(self._tasks) >= self._most:
            raise RpcError(
                Code.RESOURCE_EXHAUSTED, f"the sandbox runs {self._most} processes of clients, which is the limit"
            )
        process = Process(spec)
        follower = process.follow()
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(process, timeout, started), name=f"process in {self._sandbox.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await started
        except asyncio.CancelledError:
            task.cancel()
            raise
        return process, follower

    async def signal(self, process: Process, name: str) -> None:
        """Send a signal to a process and its group. Raises ``RpcError`` if it has ended."""
        command = Command(("sh", "-c", _SIGNAL, "sh", name, str(process.pid)))
        with self._sandbox.reached():
            done = await self._sandbox.service.commands.run(
                await self._sandbox.sandbox(), command, max_output=_MAX_FIRST_LINE
            )
        if done.exit_code != 0:
            raise RpcError(Code.NOT_FOUND, f"there is no process with PID {process.pid}")

    async def close(self) -> None:
        """End all processes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, process: Process, timeout: float | None, started: asyncio.Future[None]) -> None:
        end = Exit(-1, "the connection to the sandbox ended before the process did")
        try:
            async with asyncio.timeout(timeout):
                end = Exit(await self._attend(process, started))
        except TimeoutError:
            end = Exit(-1, "the process took longer than allowed and was killed", timed_out=True)
            with suppress(RpcError, ServiceError, ApiError, OSError, TimeoutError):
                async with asyncio.timeout(_SIGNALLING_SECONDS):
                    await self.signal(process, "KILL")
        except Exception as error:  # noqa: BLE001 - raised to the caller of start or to the followers
            if not started.done():
                started.set_exception(error)
                return
            end = Exit(-1, str(error))
        finally:
            if self._by_pid.get(process.pid) is process:
                del self._by_pid[process.pid]
            if not started.done():
                started.set_exception(RpcError(Code.DEADLINE_EXCEEDED, "the process did not start in time"))
        await process.publish(end)

    async def _attend(self, process: Process, started: asyncio.Future[None]) -> int:
        spec, sandbox = process.spec, await self._sandbox.sandbox()
        variables = {**await self._sandbox.variables(), **spec.variables}
        words = ("sh", "-c", _START, "sh", spec.directory, spec.command, *spec.arguments)
        tty = spec.terminal is not None
        command = Command(words, env=variables or None, tty=tty, stdin=spec.stdin or tty)
        with self._sandbox.reached():
            async with self._sandbox.service.commands.start(sandbox, command) as running:
                process.running = running
                if spec.terminal is not None:
                    await running.resize(*spec.terminal)
                output = aiter(running.output())
                early = await self._first_line(process, running, output)
                self._by_pid[process.pid] = process
                started.set_result(None)
                for piece in early:
                    await process.publish(piece)
                async for piece in output:
                    await process.publish(piece)
                return await running.wait()

    async def _first_line(
        self, process: Process, running: RunningCommand, output: AsyncIterator[Output]
    ) -> Sequence[Output]:
        """Read the PID; returns the output that came with it. kube-apiserver passes on standard output and standard
        error independently, so errors of the process may come before its PID."""
        buffer, errors, early = bytearray(), bytearray(), list[Output]()
        async for piece in output:
            if piece.stream == STDERR:
                errors += piece.data[: _MAX_FIRST_LINE - len(errors)]
                early.append(piece)
                if sum(len(each.data) for each in early) > _MAX_EARLY_BYTES:
                    break
                continue
            buffer += piece.data
            line, newline, rest = bytes(buffer).partition(b"\n")
            if newline:
                reply = line.strip().decode(errors="replace")
                if reply.isascii() and reply.isdecimal():
                    process.pid = int(reply)
                    return (*early, Output(piece.stream, rest)) if rest else early
                raise _not_started(process.spec, reply)
            if len(buffer) > _MAX_FIRST_LINE:
                break
        with suppress(CommandFailed):
            await running.wait()
        raise RpcError(Code.INTERNAL, f"the process could not be started: {errors.decode(errors='replace').strip()}")


def _not_started(spec: ProcessSpec, reply: str) -> RpcError:
    if reply == "!cwd":
        return RpcError(Code.INVALID_ARGUMENT, f"cannot change to the directory {spec.directory!r}")
    if reply == "!cmd":
        return RpcError(Code.INVALID_ARGUMENT, f"there is no program {spec.command!r} in the sandbox")
    return RpcError(Code.INTERNAL, "the process could not be started")


@contextmanager
def _broken_connections() -> Iterator[None]:
    """Answer with UNAVAILABLE if the connection to a process broke."""
    try:
        yield
    except OSError as error:
        raise RpcError(Code.UNAVAILABLE, "the connection to the process ended") from error
