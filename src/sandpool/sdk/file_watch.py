"""Changes of a tree in a sandbox, as they happen."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple, Self

import orjson

from sandpool.sdk import drivers
from sandpool.sdk.attached import AsyncCommand
from sandpool.service.commands import NOT_FOUND, Command
from sandpool.service.errors import FileError

#: Connects to a command in the sandbox.
Attach = Callable[[Command], AsyncCommand]

_READY: Final = "ready"
#: Bytes of events that wait for the end of a line. The sandbox is not trusted to send one.
_LONGEST: Final = 1 << 20


class FileEvent(NamedTuple):
    """A change of a tree. ``kind`` is created, modified, removed or moved; ``source`` is where it was before it was
    moved. Paths are relative to the root of the tree. The kind overflow says that there were too many changes at once
    and that some are not reported: list the tree again."""

    kind: str
    path: str
    is_directory: bool = False
    source: str | None = None

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Raises ``FileError`` for what is no event: the sandbox is not trusted to send one."""
        try:
            event = orjson.loads(line)
            source = _path(event["source"]) if "source" in event else None
            return cls(str(event["kind"]), _path(event["path"]), event["directory"] is True, source)
        except (ValueError, KeyError, TypeError):
            raise FileError("the watch in the sandbox sent something that is no event") from None


class AsyncFileWatch:
    """The changes of a tree since the beginning of the block: iterate over it. It ends when the tree is removed."""

    def __init__(self, attach: Attach, path: str) -> None:
        self._attach = attach
        self._path = path
        self._command: AsyncCommand | None = None
        self._buffer = b""

    async def start(self) -> Self:
        """Begin to watch: later changes are reported. Raises ``FileError``."""
        if self._command is None:
            driver = drivers.source(drivers.WATCH)
            self._command = await self._attach(Command(("python3", "-u", "-c", driver, self._path))).start()
            event = await self.read()
            if event is None or event.kind != _READY:
                await self.close()
                raise FileError(f"cannot watch {self._path} in the sandbox: it was removed")
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        while (event := await self.read()) is not None:
            yield event

    async def read(self, timeout: float | None = None) -> FileEvent | None:
        """The next change, None after the end. Raises ``TimeoutError`` if there is none within ``timeout`` seconds;
        nothing is lost by that."""
        command = self._command or (await self.start())._command
        assert command is not None
        while b"\n" not in self._buffer:
            piece = await command.read(timeout)
            if piece is None:
                await self._check_end(command)
                return None
            if piece.stream == "stdout":
                self._buffer += piece.data
            if len(self._buffer) > _LONGEST:
                raise FileError("the watch in the sandbox sent something that is no event")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return FileEvent.read(line)

    async def close(self) -> None:
        """Stop watching."""
        if self._command is not None:
            await self._command.close()

    async def _check_end(self, command: AsyncCommand) -> None:
        done = await command.wait()
        if done.exit_code in (NOT_FOUND, NOT_FOUND - 1):
            raise FileError(
                f"cannot watch {self._path}: the sandbox has no python3", "Use a template whose image has Python."
            )
        if done.exit_code > 0:
            raise FileError(f"cannot watch {self._path} in the sandbox: {done.stderr.strip()}")


def _path(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="surrogateescape") or "."
