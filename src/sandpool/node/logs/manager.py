"""Reads the output of containers and stores it.

The rate per container is limited. A container that exceeds it blocks on its full FIFO, without any effect on other
containers or the agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandpool.engine.clock import Clock
from sandpool.node.descriptors import readable
from sandpool.node.logs.files import MAX_FILES, MAX_SIZE, LogFile
from sandpool.node.logs.reader import LogOptions, Snapshot, batch, parsed, selected, shown
from sandpool.node.logs.record import STDERR, STDOUT, Record, Splitter, stamp
from sandpool.node.runtimes.runtime import Container

_log = logging.getLogger(__name__)

# Bytes per second of one container, and its burst.
RATE: Final = 4 << 20
BURST: Final = 8 << 20
# The capacity of a FIFO.
_PIECE: Final = 65536
# Maximum backlog of a client that follows a log, in bytes. Beyond it lines are dropped.
MOST_BEHIND: Final = BURST

Listener = Callable[[str, bytes], None]


@dataclass(slots=True, eq=False)
class _Reader:
    """A client that follows a log at its own pace. Its backlog is bounded, so a client that stops reading does not fill
    memory."""

    lines: list[bytes] = field(default_factory=list)  # written and not yet taken
    size: int = 0
    missed: int = 0  # bytes dropped before them

    def add(self, lines: bytes) -> None:
        if self.size + len(lines) > MOST_BEHIND:
            self.missed += self.size
            self.lines.clear()
            self.size = 0
        self.lines.append(lines)
        self.size += len(lines)

    def take(self) -> tuple[int, bytes]:
        """Return the number of bytes dropped, and the lines after them."""
        taken = self.missed, b"".join(self.lines)
        self.lines.clear()
        self.size = self.missed = 0
        return taken


@dataclass(slots=True, eq=False)
class _Followed:
    """A run of a container whose output is being read."""

    container: Container
    directory: Path
    file: LogFile
    sources: dict[str, int]  # descriptors by stream
    splitters: dict[str, Splitter]
    pumps: list[asyncio.Task[None]] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)  # of raw pieces
    readers: list[_Reader] = field(default_factory=list)
    # Set and replaced at every change.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False
    allowance: float = BURST
    counted: float = 0.0  # when the allowance was computed


class LogManager:
    """Stores and serves the logs of all containers of a node."""

    def __init__(self, clock: Clock, *, max_size: int = MAX_SIZE, max_files: int = MAX_FILES, rate: int = RATE) -> None:
        self.clock = clock
        self.max_size = max_size
        self.max_files = max_files
        self.rate = rate
        # By state directory of the container; only containers that have not ended.
        self._followed: dict[Path, _Followed] = {}
        # Log directory and run of each, also after its end.
        self._places: dict[Path, tuple[Path, int]] = {}

    def follow(self, container: Container, directory: Path, restarts: int) -> None:
        """Read the output of a container from now on, into files in ``directory``, which all runs of the container
        share. Calling it again for the same run continues it."""
        self._places[container.directory] = (directory, restarts)
        if container.directory in self._followed:
            return
        followed = _Followed(
            container,
            directory,
            LogFile(directory, restarts, max_size=self.max_size, max_files=self.max_files),
            _sources(container),
            {},
            counted=self.clock.monotonic(),
        )
        followed.splitters = {stream: Splitter(stream) for stream in followed.sources}
        self._followed[container.directory] = followed
        followed.pumps = [
            asyncio.create_task(self._pump(followed, stream), name=f"{stream} of container {container.spec.name}")
            for stream in followed.sources
        ]

    async def finish(self, container: Container) -> None:
        """Read the remaining output of a container that has ended, and stop."""
        followed = self._followed.pop(container.directory, None)
        if followed is None:
            return
        for pump in followed.pumps:
            pump.cancel()
        await asyncio.gather(*followed.pumps, return_exceptions=True)
        for stream, descriptor in followed.sources.items():
            with suppress(BlockingIOError, OSError):
                while data := os.read(descriptor, _PIECE):
                    self._keep(followed, stream, data)
            os.close(descriptor)
            self._write(followed, followed.splitters[stream].finish(stamp(self.clock.now())))
        followed.file.close()
        followed.has_ended = True
        followed.changed.set()

    async def close(self) -> None:
        """Stop reading. Running containers block from now on when a FIFO is full."""
        for followed in list(self._followed.values()):
            await self.finish(followed.container)

    def listen(self, container: Container, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with the raw output of a container as it arrives. Returns a function that stops this."""
        followed = self._followed.get(container.directory)
        if followed is None:
            return lambda: None
        followed.listeners.append(listener)

        def stop() -> None:
            with suppress(ValueError):
                followed.listeners.remove(listener)

        return stop

    async def tail(self, container: Container, limit: int) -> bytes:
        """Return the last ``limit`` bytes of the output of the current run."""
        if (place := self._places.get(container.directory)) is None:
            return b""
        with closing(Snapshot(*place)) as snapshot:
            return await asyncio.to_thread(snapshot.end, limit)

    async def read(self, directory: Path, run: int, options: LogOptions) -> AsyncIterator[bytes]:
        """Yield the log of a run; with ``follow`` also what it writes until its end."""
        left = options.limit
        unfinished: set[str] = set()
        async for record in self._records(directory, run, options):
            data = shown(record, options, at_start=record.stream not in unfinished)
            (unfinished.discard if record.is_complete else unfinished.add)(record.stream)
            if left is not None:
                data = data[:left]
                left -= len(data)
            if data:
                yield data
            if left == 0:
                return

    async def _records(self, directory: Path, run: int, options: LogOptions) -> AsyncIterator[Record]:
        followed = next((f for f in self._followed.values() if (f.directory, f.file.run) == (directory, run)), None)
        reader = _Reader()
        # No await in between, so every line is either in the snapshot or passed to the reader.
        snapshot = Snapshot(directory, run)
        if followed is not None and options.follow:
            followed.readers.append(reader)
        try:
            found = snapshot.selected(options)
            while records := await asyncio.to_thread(batch, found):
                for record in records:
                    yield record
            if not options.follow or followed is None:
                return
            later = LogOptions(stream=options.stream)
            while True:
                changed, (missed, lines) = followed.changed, reader.take()
                if missed:
                    text = f"[{missed} bytes dropped: the client reads too slowly]"
                    yield Record(stamp(self.clock.now()), STDERR, True, text.encode())
                for record in selected(parsed(lines), later):
                    yield record
                if followed.has_ended and not reader.lines:
                    return
                if not reader.lines:
                    await changed.wait()
        finally:
            snapshot.close()
            if followed is not None and reader in followed.readers:
                followed.readers.remove(reader)

    async def _pump(self, followed: _Followed, stream: str) -> None:
        descriptor = followed.sources[stream]
        while True:
            await readable(descriptor)
            try:
                data = os.read(descriptor, _PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return  # the other end of the terminal is closed
            if not data:
                return
            try:
                self._keep(followed, stream, data)
            except OSError as error:  # most likely a full disk; the container must not block on it
                _log.warning("output of container %s is lost: %s", followed.container.spec.name, error)
            await self._pause(followed, len(data))

    async def _pause(self, followed: _Followed, size: int) -> None:
        now = self.clock.monotonic()
        followed.allowance = min(BURST, followed.allowance + (now - followed.counted) * self.rate) - size
        followed.counted = now
        if followed.allowance < 0:
            await self.clock.sleep(-followed.allowance / self.rate)

    def _keep(self, followed: _Followed, stream: str, data: bytes) -> None:
        for listener in list(followed.listeners):
            listener(stream, data)
        self._write(followed, followed.splitters[stream].feed(data, stamp(self.clock.now())))

    def _write(self, followed: _Followed, lines: bytes) -> None:
        if lines:
            followed.file.write(lines)
            for reader in followed.readers:
                reader.add(lines)
            followed.changed.set()
            followed.changed = asyncio.Event()


def _sources(container: Container) -> dict[str, int]:
    if container.terminal is not None:
        terminal = os.dup(container.terminal)
        os.set_blocking(terminal, False)
        return {STDOUT: terminal}
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return {stream: os.open(container.directory / stream, flags) for stream in (STDOUT, STDERR)}
