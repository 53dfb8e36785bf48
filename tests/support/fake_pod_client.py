"""A pod client without pods: commands, ports and logs are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from sandpool.kube.byte_stream import ByteStream
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_access import Size
from sandpool.kube.pod_client import ExecError, ExecOptions, LogOptions, Output


@dataclass
class PlayedSession:
    """The session of one command. The play reads ``input`` (empty bytes are its end) and calls ``write``."""

    options: ExecOptions
    input: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    sizes: list[Size] = field(default_factory=list)
    closed: bool = False
    resized: Callable[[Size], None] | None = None  # is told the sizes
    playing: asyncio.Task[None] | None = None
    _output: asyncio.Queue[Output | None] = field(default_factory=asyncio.Queue)
    _code: int | str = "the connection to the sandbox ended before the command did"

    def write(self, data: bytes, stream: int = 1) -> None:
        self._output.put_nowait(Output(stream, data))

    def end(self, code: int | str) -> None:
        self._code = code
        self._output.put_nowait(None)

    async def output(self) -> AsyncIterator[Output]:
        while (piece := await self._output.get()) is not None:
            yield piece

    async def exit_code(self) -> int:
        if isinstance(self._code, str):
            raise ExecError(self._code)
        return self._code

    async def send(self, data: bytes) -> None:
        self.input.put_nowait(data)

    async def end_input(self) -> None:
        self.input.put_nowait(b"")

    async def resize(self, size: Size) -> None:
        self.sizes.append(size)
        if self.resized is not None:
            self.resized(size)

    async def close(self) -> None:
        self.closed = True
        self._output.put_nowait(None)
        if self.playing is not None and not self.playing.cancelling():  # a second time would interrupt its end
            self.playing.cancel()


#: Plays a command and returns its exit code, or a message of why it could not be run.
Play = Callable[[PlayedSession], Awaitable[int | str]]


class FakePodClient:
    """``refusal`` is raised instead of executing anything. ``log`` is the log of every pod; while ``following`` is a
    queue, a log that is followed goes on with what the test puts into it."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.refusal: ApiError | None = None
        self.sessions: list[PlayedSession] = []
        self.asked: list[tuple[str, str]] = []  # namespace and pod
        self.log: list[bytes] = []
        self.following: asyncio.Queue[bytes] | None = None
        self._plays: set[asyncio.Task[None]] = set()

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> PlayedSession:
        self.asked.append((namespace, pod))
        if self.refusal is not None:
            raise self.refusal
        session = PlayedSession(options)
        self.sessions.append(session)

        async def perform() -> None:
            session.end(await self.play(session))

        task = session.playing = asyncio.create_task(perform())
        self._plays.add(task)
        task.add_done_callback(self._plays.discard)
        return session

    async def close(self) -> None:
        """End all commands that still run."""
        plays = list(self._plays)
        for play in plays:
            if not play.cancelling():
                play.cancel()
        await asyncio.gather(*plays, return_exceptions=True)

    async def tunnel(self, namespace: str, pod: str) -> ByteStream:
        raise NotImplementedError

    async def logs(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        if self.refusal is not None:
            raise self.refusal
        for piece in self.log:
            yield piece
        while options.follow and self.following is not None:
            yield await self.following.get()
