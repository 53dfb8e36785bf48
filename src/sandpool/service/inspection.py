"""The inside of a sandbox: its processes, and the ports that they listen on.

Both are read from ``/proc`` by ``sh`` of the image, because images need neither ``ps`` nor ``ss`` nor an agent of ours.
The answers come from code that is not trusted: they are parsed strictly and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sandpool.service.commands import Command, Commands
from sandpool.service.errors import ServiceError
from sandpool.service.sandboxes import Sandbox

_MAX_ANSWER: Final = 4 << 20
_SECONDS: Final = 15.0
_TICKS: Final = 100  # USER_HZ, which is the same on all architectures that Linux runs containers on
_PAGE: Final = 4096
_LISTENING: Final = "0A"
_PORT: Final = re.compile(":([0-9A-F]{4})$")
_PROCESSES: Final = (
    'printf "%s\\0" $$; for d in /proc/[0-9]*; do printf "%s\\0" "${d#/proc/}"; cat "$d/stat" 2>/dev/null; '
    'printf "\\0"; tr "\\0" " " 2>/dev/null <"$d/cmdline"; printf "\\0"; done 2>/dev/null; exit 0'
)
_PORTS: Final = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; exit 0"


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


def _reason(stderr: bytes, code: int) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"
