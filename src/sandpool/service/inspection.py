"""What goes on in a sandbox: its processes, the ports that they listen on, and its directories.

Everything is read by ``sh`` of the image, from ``/proc`` and with ``stat``, because images need neither ``ps`` nor
``ss`` nor an agent of ours. The answers come from code that is not trusted: they are parsed strictly and bounded.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sandpool.service.commands import Command, Commands
from sandpool.service.errors import FileError, ServiceError
from sandpool.service.sandboxes import Sandbox

_MAX_ANSWER: Final = 4 << 20
#: Bytes of an error message beyond the output that was asked for.
_MAX_REASON: Final = 4096
_SECONDS: Final = 15.0
_TICKS: Final = 100  # USER_HZ, which is the same on all architectures that Linux runs containers on
_PAGE: Final = 4096
_LISTENING: Final = "0A"
_PORT: Final = re.compile(":([0-9A-F]{4})$")
#: Entries of a directory, and processes, that are read.
MAX_ENTRIES: Final = 1000
_PROCESSES: Final = (
    'printf "%s\\0" $$; for d in /proc/[0-9]*; do printf "%s\\0" "${d#/proc/}"; cat "$d/stat" 2>/dev/null; '
    'printf "\\0"; tr "\\0" " " 2>/dev/null <"$d/cmdline"; printf "\\0"; done 2>/dev/null; exit 0'
)
_PORTS: Final = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; exit 0"
# The names first, each ended by NUL, then a line for each in the same order: names may contain everything else.
_DIRECTORY: Final = (
    'cd -- "$0" || exit 1; pwd -P; n=0; set --; for f in * .[!.]* ..?*; do [ -e "$f" ] || [ -L "$f" ] || continue; '
    'n=$((n+1)); [ $n -gt "$MAX" ] && break; set -- "$@" "./$f"; printf "%s\\0" "$f"; done; printf "\\0"; '
    '[ $# = 0 ] || stat -c "%f %s %Y" -- "$@"'
)
_READ: Final = '[ -f "$0" ] || { echo "not a regular file" >&2; exit 1; }; exec head -c "$MAX" -- "$0"'
_WRITE: Final = 'exec cat > "$0"'


@dataclass(frozen=True, slots=True)
class Process:
    """``cpu_seconds`` is the CPU time since its start, ``memory`` its resident set in bytes."""

    pid: int
    parent: int
    state: str
    cpu_seconds: float
    memory: int
    threads: int
    command: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory. ``kind`` is directory, file, link or other."""

    name: str
    kind: str
    size: int
    modified: int  # seconds since the epoch
    mode: str


@dataclass(frozen=True, slots=True)
class Directory:
    """``path`` is absolute and without links. ``truncated`` tells that it has more than ``MAX_ENTRIES``."""

    path: str
    entries: tuple[Entry, ...]
    truncated: bool


class Inspection:
    """Looks into sandboxes."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    async def processes(self, sandbox: Sandbox) -> tuple[Process, ...]:
        """The processes of the sandbox's main container, without those that list them."""
        output = await self._run(sandbox, _PROCESSES)
        own, *rest = output.split(b"\0")
        found = tuple(_processes(rest))
        listing = int(own) if own.isdigit() else 0
        return tuple(each for each in found if listing not in (each.pid, each.parent))

    async def ports(self, sandbox: Sandbox) -> tuple[int, ...]:
        """The TCP ports on which processes of the sandbox listen."""
        output = await self._run(sandbox, _PORTS)
        return tuple(sorted(set(_ports(output.decode(errors="replace")))))

    async def directory(self, sandbox: Sandbox, path: str = ".") -> Directory:
        """The entries of a directory. Raises ``FileError``."""
        words = ("sh", "-c", _DIRECTORY, path)
        result = await self.commands.run(
            sandbox, Command(words, env={"MAX": str(MAX_ENTRIES)}), timeout=_SECONDS, max_output=_MAX_ANSWER
        )
        head, newline, rest = result.stdout.partition(b"\n")
        if not newline:
            raise FileError(f"cannot list {path} in the sandbox: {_reason(result.stderr, result.exit_code)}")
        listed, _, table = rest.partition(b"\0\0") if not rest.startswith(b"\0") else (b"", b"", rest[1:])
        names = [name.decode(errors="replace") for name in listed.split(b"\0") if name]
        rows = table.decode(errors="replace").splitlines()
        if len(rows) != len(names):  # an entry vanished meanwhile, or the image has no stat
            rows = ["0 0 0"] * len(names)
        entries = tuple(_entry(name, row) for name, row in zip(names, rows, strict=True))
        return Directory(head.decode(errors="replace"), entries, len(names) >= MAX_ENTRIES)

    async def read(self, sandbox: Sandbox, path: str, limit: int) -> tuple[bytes, bool]:
        """The first ``limit`` bytes of a file, and whether it has more. Raises ``FileError``."""
        words = ("sh", "-c", _READ, path)
        result = await self.commands.run(
            sandbox, Command(words, env={"MAX": str(limit + 1)}), timeout=_SECONDS, max_output=limit + _MAX_REASON
        )
        if result.exit_code != 0:
            raise FileError(f"cannot read {path} in the sandbox: {_reason(result.stderr, result.exit_code)}")
        return result.stdout[:limit], len(result.stdout) > limit

    async def write(self, sandbox: Sandbox, path: str, content: bytes) -> None:
        """Write a file in an existing directory. Raises ``FileError``."""
        result = await self.commands.run(sandbox, Command(("sh", "-c", _WRITE, path)), stdin=content, timeout=60.0)
        if result.exit_code != 0:
            raise FileError(f"cannot write {path} in the sandbox: {_reason(result.stderr, result.exit_code)}")

    async def _run(self, sandbox: Sandbox, script: str) -> bytes:
        command = Command(("sh", "-c", script))
        result = await self.commands.run(sandbox, command, timeout=_SECONDS, max_output=_MAX_ANSWER)
        if result.exit_code != 0:
            raise ServiceError(
                f"the sandbox cannot be inspected: {_reason(result.stderr, result.exit_code)}",
                "Its image needs sh and cat.",
            )
        return result.stdout


def _processes(fields: list[bytes]) -> Iterator[Process]:
    for pid, line, command in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        # The name of the program is in parentheses and may contain any character.
        name, parenthesis, rest = line.decode(errors="replace").rpartition(")")
        values = rest.split()
        if not pid.isdigit() or not parenthesis or len(values) < 22:
            continue
        try:
            yield Process(
                pid=int(pid),
                parent=int(values[1]),
                state=values[0],
                cpu_seconds=(int(values[11]) + int(values[12])) / _TICKS,
                memory=int(values[21]) * _PAGE,
                threads=int(values[17]),
                command=command.decode(errors="replace").strip() or f"[{name.partition('(')[2]}]",
            )
        except ValueError:
            continue


def _ports(table: str) -> Iterator[int]:
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTENING and (port := _PORT.search(fields[1])) is not None:
            yield int(port[1], 16)


def _entry(name: str, row: str) -> Entry:
    try:
        mode, size, modified = row.split()
        bits = int(mode, 16)
        number, moment = int(size), int(modified)
    except ValueError:
        bits = number = moment = 0
    if stat.S_ISDIR(bits):
        kind = "directory"
    elif stat.S_ISLNK(bits):
        kind = "link"
    else:
        kind = "file" if stat.S_ISREG(bits) else "other"
    return Entry(name, kind, number, moment, stat.filemode(bits) if bits else "")


def _reason(stderr: bytes, code: int) -> str:
    said = stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"exit code {code}"
