"""The user of a command that runs in a sandbox: standard streams, variables and messages.

``sandpool exec`` and ``sandpool run`` have a console of their own process. A home that serves ``sandpool run`` has the
console of the process that asked it (``cli.run_server``). What the commands do is written once, against this interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import click

from sandpool.cli import streams

if TYPE_CHECKING:
    from sandpool.service.commands import RunningCommand


class Console(Protocol):
    """The terminal or pipe of a command, for input and output."""

    @property
    def is_terminal(self) -> bool:
        """Whether standard input and output are a terminal."""
        ...

    @property
    def has_piped_input(self) -> bool:
        """Whether standard input is a pipe, a file or a socket."""
        ...

    def say(self, line: str) -> None:
        """Show a message on standard error."""
        ...

    async def converse(self, running: RunningCommand, *, stdin: bool, tty: bool) -> int:
        """Connect the standard streams to a command until it ends; returns its exit code."""
        ...


class OwnConsole:
    """The console of this process."""

    @property
    def is_terminal(self) -> bool:
        return streams.is_terminal()

    @property
    def has_piped_input(self) -> bool:
        return streams.has_piped_input()

    def say(self, line: str) -> None:
        click.echo(line, err=True)

    async def converse(self, running: RunningCommand, *, stdin: bool, tty: bool) -> int:
        from sandpool.cli.terminal import converse

        return await converse(running, stdin=stdin, tty=tty)


OWN_CONSOLE: Final = OwnConsole()
