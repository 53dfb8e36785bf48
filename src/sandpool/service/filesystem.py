"""Single files and directories of sandboxes: describe, list, read, write, make, move, remove.

Every operation is one command in the sandbox, so it needs nothing there but ``sh`` and the usual tools; entries are
described by GNU find, or by ``stat`` where find cannot. Contents are streamed in both directions. Relative paths are
relative to the working directory of the image, and ``~`` is ``HOME``.
"""

from __future__ import annotations

import asyncio
import posixpath
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, NoReturn

from sandpool.kube.pod_client import STDERR, Output
from sandpool.service.commands import Command, Commands, RunningCommand
from sandpool.service.errors import FileError
from sandpool.service.sandboxes import Sandbox

#: Entries of a tree, and bytes of its description and of that of one entry. The sandbox is not trusted to stop.
MAX_ENTRIES: Final = 50_000
MAX_LISTING: Final = 16 << 20
_MAX_ENTRY: Final = 1 << 16
# A longer description is read in a thread: in the meantime the event loop serves others.
_LARGE: Final = 1 << 17

# Exit codes of the scripts.
_MISSING, _DIRECTORY, _EXISTS, _NO_DIRECTORY = 81, 82, 83, 84
FULL: Final = 85
_MAX_ERRORS: Final = 1 << 14
_FIELDS: Final = 9

#: Defines ``fail``, which ends a script after a failed write to a path: with ``FULL`` if the disk is full, else with
#: the code of the failure. Messages and codes of tools differ between images and languages, so it writes a block there.
FAIL_SCRIPT: Final = f"""
fail() {{
    code=$? place=$1
    until [ -d "$place" ]; do place=$(dirname "$place"); done
    if [ -w "$place" ] && command -v mktemp >/dev/null; then
        probe=$(mktemp "$place/.sandpool-XXXXXX" 2>/dev/null) || exit {FULL}
        printf %65536s "" 2>/dev/null >"$probe" || code={FULL}
        rm -f "$probe"
    fi
    exit "$code"
}}
"""
# Sets p to the absolute form of $1.
_ABSOLUTE: Final = 'case $1 in "~"|"~/"*) p=$HOME${1#"~"};; /*) p=$1;; *) p=$PWD/$1;; esac\n'
# Prints entries as fields that end with NUL: type, type of a link's target, mode, size, time, user, group, path, target
# of a link. BusyBox has neither -printf nor --printf.
_DESCRIBE: Final = (
    """
describe() {
    if find / -maxdepth 0 -printf '' 2>/dev/null; then
        find "$@" -printf '%y\\0%Y\\0%m\\0%s\\0%T@\\0%u\\0%g\\0%p\\0%l\\0'
    else
        find "$@" -exec sh -c '"""
    """for f do
            t=o; if [ -L "$f" ]; then t=l; elif [ -d "$f" ]; then t=d; elif [ -f "$f" ]; then t=f; fi
            y=N; if [ -d "$f" ]; then y=d; elif [ -f "$f" ]; then y=f; elif [ -e "$f" ]; then y=o; fi
            printf "%s\\0%s\\0" "$t" "$y"
            for each in $(stat -c "%a %s %Y %U %G" "$f"); do printf "%s\\0" "$each"; done
            printf "%s\\0%s\\0" "$f" "$(readlink "$f")"
        done' sh {} +
    fi
}
"""
)
_STAT: Final = f'{_DESCRIBE}{_ABSOLUTE}[ -e "$p" ] || [ -L "$p" ] || exit {_MISSING}; describe "$p" -maxdepth 0'
_LIST: Final = (
    f'{_DESCRIBE}{_ABSOLUTE}[ -e "$p" ] || exit {_MISSING}; [ -d "$p" ] || exit {_NO_DIRECTORY}; '
    'describe "${p%/}/" -mindepth 1 -maxdepth "$2"'
)
_MAKE: Final = (
    f'{_DESCRIBE}{FAIL_SCRIPT}{_ABSOLUTE}[ ! -d "$p" ] || exit {_EXISTS}; [ ! -e "$p" ] || exit {_NO_DIRECTORY}; '
    'mkdir -p "$p" || fail "$p"; describe "$p" -maxdepth 0'
)
_MOVE: Final = (
    f'{_DESCRIBE}{FAIL_SCRIPT}{_ABSOLUTE}from=$p; [ -e "$p" ] || [ -L "$p" ] || exit {_MISSING}; shift\n{_ABSOLUTE}'
    f'[ ! -d "$p" ] || exit {_EXISTS}; {{ mkdir -p "$(dirname "$p")" && mv -f "$from" "$p"; }} || fail "$p"; '
    'describe "$p" -maxdepth 0'
)
_REMOVE: Final = f'{_ABSOLUTE}exec rm -rf "$p"'
_READ: Final = f'{_ABSOLUTE}[ -e "$p" ] || exit {_MISSING}; [ ! -d "$p" ] || exit {_DIRECTORY}; echo; exec cat "$p"'
_WRITE: Final = (
    f'{_DESCRIBE}{FAIL_SCRIPT}{_ABSOLUTE}[ ! -d "$p" ] || exit {_DIRECTORY}; '
    '{ mkdir -p "$(dirname "$p")" && cat >"$p"; } || fail "$p"; describe "$p" -maxdepth 0'
)


class NoSuchFile(FileError):
    """There is no file or directory of this name."""


class IsDirectory(FileError):
    """The path is a directory, and a file is needed."""


class NotDirectory(FileError):
    """The path is a file, and a directory is needed."""


class FileExists(FileError):
    """There is a file or directory of this name already."""


class DiskFull(FileError):
    """The sandbox has no space left."""


class EntryType(StrEnum):
    """The type of an entry; ``OTHER`` is a device, a socket, a pipe or a link that leads nowhere."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


_TYPES: Final = {"f": EntryType.FILE, "d": EntryType.DIRECTORY}
_KINDS: Final = {EntryType.FILE: stat.S_IFREG, EntryType.DIRECTORY: stat.S_IFDIR}


class Entry(NamedTuple):
    """A file or directory. ``type`` is that of a link's target; ``link`` is the target, None if it is no link."""

    path: str
    type: EntryType
    mode: int
    size: int
    modified: datetime
    owner: str
    group: str
    link: str | None

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def permissions(self) -> str:
        """As ls shows them."""
        kind = stat.S_IFLNK if self.link is not None else _KINDS.get(self.type, 0)
        return stat.filemode(kind | self.mode)


class Filesystem:
    """Files and directories of sandboxes. Every method raises ``FileError`` or one of its kinds."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    async def stat(self, sandbox: Sandbox, path: str) -> Entry:
        """Describe a file or directory."""
        return await self._one(sandbox, _STAT, path)

    async def list(self, sandbox: Sandbox, path: str, depth: int = 1) -> list[Entry]:
        """Describe the entries of a directory, and of those below it up to ``depth``, sorted by path."""
        described = await self._run(sandbox, _LIST, path, str(depth), most=MAX_LISTING)
        if described.count(b"\0") > MAX_ENTRIES * _FIELDS:
            raise FileError(f"there are more than {MAX_ENTRIES} entries in {path}", "List less at once.")
        if len(described) < _LARGE:
            return _sorted_entries(described, path)
        return await asyncio.to_thread(_sorted_entries, described, path)

    async def make_directory(self, sandbox: Sandbox, path: str) -> Entry:
        """Make a directory and those above it. Raises ``FileExists``."""
        return await self._one(sandbox, _MAKE, path)

    async def move(self, sandbox: Sandbox, source: str, destination: str) -> Entry:
        """Rename a file or directory. A file at the destination is replaced, a directory raises ``FileExists``."""
        return await self._one(sandbox, _MOVE, source, destination)

    async def remove(self, sandbox: Sandbox, path: str) -> None:
        """Remove a file, or a directory with all that is in it. It is no error if there is none."""
        await self._run(sandbox, _REMOVE, path)

    @asynccontextmanager
    async def reading(self, sandbox: Sandbox, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a file; yields its content as it arrives. Errors that are known before the content are raised here."""
        async with self.commands.start(sandbox, _command(_READ, path)) as running:
            output = aiter(running.output())
            errors = bytearray()
            # The script says with an empty line that the file is there.
            while (piece := await anext(output, None)) is not None and piece.stream == STDERR:
                errors += piece.data[: _MAX_ERRORS - len(errors)]
            if piece is None:
                _fail(await running.wait(), path, errors)
            yield _content(running, output, piece.data[1:], path)

    async def write(self, sandbox: Sandbox, path: str, content: AsyncIterable[bytes]) -> Entry:
        """Write a file from pieces as they arrive. Missing directories are made; an existing file is overwritten."""
        command = _command(_WRITE, path)
        done = await self.commands.run(sandbox, command, stdin=content, max_output=_MAX_ENTRY)
        if done.exit_code != 0:
            _fail(done.exit_code, path, done.stderr)
        return _only(done.stdout, path)

    async def _one(self, sandbox: Sandbox, script: str, path: str, *arguments: str) -> Entry:
        return _only(await self._run(sandbox, script, path, *arguments), path)

    async def _run(self, sandbox: Sandbox, script: str, path: str, *arguments: str, most: int = _MAX_ENTRY) -> bytes:
        done = await self.commands.run(sandbox, _command(script, path, *arguments), max_output=most)
        if done.exit_code != 0:
            _fail(done.exit_code, path, done.stderr)
        if done.truncated:
            raise FileError(f"the description of {path} is longer than {most >> 10} KiB", "List less at once.")
        return done.stdout


def _command(script: str, path: str, *arguments: str) -> Command:
    if not path or "\0" in path or any("\0" in each for each in arguments):
        raise FileError(f"not a path: {path!r}")
    plain = path if path.startswith("~") else posixpath.normpath(path)
    return Command(("sh", "-c", script, "sh", plain, *arguments))


async def _content(
    running: RunningCommand, output: AsyncIterator[Output], first: bytes, path: str
) -> AsyncIterator[bytes]:
    errors = bytearray()
    if first:
        yield first
    async for piece in output:
        if piece.stream == STDERR:
            errors += piece.data[: _MAX_ERRORS - len(errors)]
        else:
            yield piece.data
    if (code := await running.wait()) != 0:
        _fail(code, path, errors)


def _sorted_entries(described: bytes, path: str) -> list[Entry]:
    return sorted(_entries(described, path))


def _entries(described: bytes, path: str) -> Iterator[Entry]:
    fields = described.decode(errors="surrogateescape").split("\0")
    if len(fields) % _FIELDS != 1:
        raise _nonsense(path)
    for start in range(0, len(fields) - 1, _FIELDS):
        yield _entry(fields[start : start + _FIELDS], path)


def _entry(fields: list[str], path: str) -> Entry:
    kind, target_kind, mode, size, modified, owner, group, name, target = fields
    try:
        return Entry(
            path=posixpath.normpath(name),
            type=_TYPES.get(target_kind, EntryType.OTHER),
            mode=int(mode, 8),
            size=int(size),
            modified=datetime.fromtimestamp(float(modified), UTC),
            owner=owner,
            group=group,
            link=target if kind == "l" else None,
        )
    except (ValueError, OverflowError, OSError):
        raise _nonsense(path) from None


def _only(described: bytes, path: str) -> Entry:
    entry = next(_entries(described, path), None)
    if entry is None:
        raise _nonsense(path)
    return entry


def _nonsense(path: str) -> FileError:
    return FileError(f"cannot look at {path}: its sandbox described it in a way that makes no sense")


def _fail(code: int, path: str, stderr: bytes | bytearray) -> NoReturn:
    if code == _MISSING:
        raise NoSuchFile(f"there is no file or directory {path}")
    if code == _DIRECTORY:
        raise IsDirectory(f"{path} is a directory")
    if code == _EXISTS:
        raise FileExists(f"{path} exists already")
    if code == _NO_DIRECTORY:
        raise NotDirectory(f"{path} is not a directory")
    if code == FULL:
        raise DiskFull(f"cannot write {path}: its disk is full", "Remove files, or use a template with more disk.")
    reason = stderr.decode(errors="replace").strip()
    raise FileError(f"cannot work on {path}: {reason or f'exit code {code}'}")
