"""Files of one sandbox: read, write, list, copy."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from sandpool.sdk.attached import ERROR_OUTPUT, AsyncCommand, ignore_end
from sandpool.sdk.errors import Diagnosis
from sandpool.sdk.file_watch import AsyncFileWatch, Attach
from sandpool.service.commands import Command, Commands
from sandpool.service.errors import FileError
from sandpool.service.files import Files
from sandpool.service.sandboxes import Sandbox

if TYPE_CHECKING:
    from sandpool.service.filesystem import Entry

    Entries = list[Entry]

_READ: Final = 'exec cat -- "$0"'
_WRITE: Final = 'd=$(dirname -- "$0") && mkdir -p -- "$d" && cat > "$0"'
# Names may hold every character but NUL, so they are separated by it.
_LIST: Final = (
    'cd -- "$0" && for f in * .[!.]* ..?*; do [ -e "$f" ] || [ -L "$f" ] || continue; printf "%s\\0" "$f"; done'
)
# Mode, size, time, user, group, and the target of a link.
_STAT: Final = 'stat -c "%f %s %Y %u %g" -- "$0" || exit 1; [ ! -L "$0" ] || exec readlink -- "$0"'
_TYPES: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_SHOWN: Final = 2000  # bytes of errors
#: Bytes of the names in a directory, and of what other operations answer. The sandbox is not trusted to stop.
MAX_LISTING: Final = 16 << 20
_MAX_ANSWER: Final = 1 << 16


class FileStatus(NamedTuple):
    """What ``stat`` tells of a file. ``type`` is file, directory, link or other; ``mode`` has the permissions;
    ``target`` is where a link leads."""

    type: str
    size: int
    mode: int
    modified: datetime
    user: int
    group: int
    target: str | None = None


class AsyncFiles:
    """Relative paths are relative to the working directory of the image. Every method raises ``FileError``."""

    def __init__(
        self,
        commands: Commands,
        files: Files,
        sandbox: Sandbox,
        diagnosed: Diagnosis = nullcontext,
        attach: Attach | None = None,
    ) -> None:
        self._diagnosed = diagnosed
        self._attach = attach or self._connect
        self._commands = commands
        self._files = files
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """The content of a file."""
        return await self._shell(_READ, path, "cannot read", most=None)

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The content of a text file."""
        return (await self.read(path)).decode(encoding)

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces, as they arrive. A file of any size needs little memory."""
        reading = self._attach(Command(("sh", "-c", _READ, path)))
        errors = bytearray()
        async with reading:
            async for piece in reading:
                if piece.stream == "stdout":
                    yield piece.data
                else:
                    errors += piece.data[: _SHOWN - len(errors)]
            code = (await reading.wait()).exit_code
        if code != 0:
            raise _failed("cannot read", path, code, bytes(errors))

    async def write(self, path: str, content: str | bytes | Iterable[bytes] | AsyncIterable[bytes]) -> None:
        """Write a file. Missing parent directories are made; an existing file is replaced. Content that comes in
        pieces, such as an open file, is sent as it comes."""
        await self._shell(_WRITE, path, "cannot write", content.encode() if isinstance(content, str) else content)

    async def stat(self, path: str) -> FileStatus:
        """Type, size, permissions and time of a file, a directory or a link."""
        lines = (await self._shell(_STAT, path, "cannot read the status of")).decode(errors="surrogateescape")
        numbers, _, target = lines.partition("\n")
        try:
            mode, size, modified, user, group = (
                int(word, 16 if not index else 10) for index, word in enumerate(numbers.split())
            )
            moment = datetime.fromtimestamp(modified, UTC)
        except (ValueError, OverflowError, OSError):
            raise FileError(f"cannot read the status of {path}: stat of the sandbox answered something else") from None
        kind = _TYPES.get(stat.S_IFMT(mode), "other")
        link = target.removesuffix("\n") if kind == "link" else None
        return FileStatus(kind, size, stat.S_IMODE(mode), moment, user, group, link)

    def watch(self, path: str = ".") -> AsyncFileWatch:
        """Watch a directory and all below: ``async with sb.files.watch("src") as changes: async for event in changes``.
        The image needs python3."""
        return AsyncFileWatch(self._attach, path)

    async def list(self, path: str = ".") -> list[str]:
        """The names in a directory, sorted."""
        names = await self._shell(_LIST, path, "cannot list", most=MAX_LISTING)
        return sorted(name.decode(errors="surrogateescape") for name in names.split(b"\0") if name)

    async def entries(self, path: str = ".", *, depth: int = 1) -> Entries:
        """What is in a directory, and with a greater ``depth`` in those below it, sorted by path: absolute paths,
        types, sizes, permissions, owners and times."""
        from sandpool.service.filesystem import Filesystem

        async with self._diagnosed():
            return await Filesystem(self._commands).list(self._sandbox, path, depth)

    async def exists(self, path: str) -> bool:
        """Whether there is a file, a directory or a link."""
        command = Command(("sh", "-c", '[ -e "$0" ] || [ -L "$0" ]', path))
        async with self._diagnosed():
            return (await self._commands.run(self._sandbox, command)).exit_code == 0

    async def move(self, source: str, destination: str) -> None:
        """Rename a file or directory."""
        await self._shell('exec mv -- "$0" "$1"', source, "cannot move", None, destination)

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        await self._shell(
            'if [ ! -e "$0" ] && [ ! -L "$0" ]; then echo "it does not exist" >&2; exit 1; fi; exec rm -rf -- "$0"',
            path,
            "cannot remove",
        )

    async def upload(
        self, source: str | os.PathLike[str], destination: str, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Copy a local file or tree into the sandbox. ``progress`` receives the number of copied bytes."""
        async with self._diagnosed():
            await self._files.upload(self._sandbox, source, destination, progress=progress or _ignore)

    async def download(
        self, source: str, destination: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Copy a file or tree out of the sandbox. ``progress`` receives the number of copied bytes."""
        async with self._diagnosed():
            await self._files.download(self._sandbox, source, destination, progress=progress or _ignore)

    async def _shell(
        self,
        script: str,
        path: str,
        what: str,
        stdin: bytes | Iterable[bytes] | AsyncIterable[bytes] | None = None,
        *arguments: str,
        most: int | None = _MAX_ANSWER,
    ) -> bytes:
        command = Command(("sh", "-c", script, path, *arguments))
        async with self._diagnosed():
            result = await self._commands.run(self._sandbox, command, stdin=stdin, max_output=most)
        if result.exit_code != 0:
            raise _failed(what, path, result.exit_code, result.stderr)
        if result.truncated:
            raise FileError(f"{what} {path} in the sandbox: its answer is longer than {most} bytes")
        return result.stdout

    def _connect(self, command: Command) -> AsyncCommand:
        return AsyncCommand(self._commands, self._sandbox, self._diagnosed, ignore_end, command, None, ERROR_OUTPUT)


def _failed(what: str, path: str, code: int, errors: bytes) -> FileError:
    reason = errors.decode(errors="replace").strip()[:_SHOWN] or f"exit code {code}"
    return FileError(f"{what} {path} in the sandbox: {reason}")


def _ignore(_: int) -> None: ...
