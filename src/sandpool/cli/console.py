"""The user of a command that runs in a sandbox: standard streams, variables and messages.

``sandpool exec`` and ``sandpool run`` have a console of their own process. A home that serves ``sandpool run`` has the
console of the process that asked it (``cli.run_server``). What the commands do is written once, against this interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from sandpool.cli import streams
from sandpool.cli.progress import Progress, shown_if_slow

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

    def show(self, line: str) -> None:
        """Show a message on standard error."""
        ...

    def waiting(self, text: str, *, in_terminal_only: bool = False) -> AbstractContextManager[None]:
        """Show on standard error what a block waits for, if that takes a while; in a terminal with the elapsed time."""
        ...

    async def converse(self, running: RunningCommand, *, stdin: bool, tty: bool) -> int:
        """Connect the standard streams to a command until it ends; returns its exit code."""
        ...


class Messages:
    """Messages on standard error, above a line that shows what is waited for."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def show(self, line: str) -> None:
        (self._progress or self.progress()).show(line)

    @contextmanager
    def waiting(self, text: str, *, in_terminal_only: bool = False) -> Iterator[None]:
        progress = self.progress(in_terminal_only=in_terminal_only)
        before, self._progress = self._progress, progress
        try:
            with shown_if_slow(progress, text):
                yield
        finally:
            self._progress = before

    def progress(self, *, in_terminal_only: bool = False) -> Progress:
        """Progress on the standard error of this process."""
        return Progress(in_terminal_only=in_terminal_only)


class OwnConsole(Messages):
    """The console of this process."""

    @property
    def is_terminal(self) -> bool:
        return streams.is_terminal()

    @property
    def has_piped_input(self) -> bool:
        return streams.has_piped_input()

    async def converse(self, running: RunningCommand, *, stdin: bool, tty: bool) -> int:
        from sandpool.cli.terminal import converse

        return await converse(running, stdin=stdin, tty=tty)


OWN_CONSOLE: Final = OwnConsole()
