"""``sandpool cp``: files and directories into and out of sandboxes."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from sandpool.api.printable import one_line
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import size
from sandpool.cli.progress import Progress
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.service import Service

_SHOWN_EVERY = 1 << 20  # bytes


@click.command(cls=GroupedCommand)
@click.argument("source")
@click.argument("destination")
@option("--quiet", "-q", is_flag=True, help="Show no progress.")
@target_options
def cp(source: str, destination: str, quiet: bool, target: Target) -> None:
    """Copy files or directories into or out of a sandbox.

    A path in a sandbox is NAME:PATH, with the name of a claim or a sandbox. A relative PATH begins in the working
    directory of the image. A destination that is a directory receives the source under its own name.

    \b
    sandpool cp data.csv my-claim:
    sandpool cp my-claim:plot.png .
    sandpool cp src my-claim:/workspace/project
    """
    remote_source, remote_destination = _remote(source), _remote(destination)
    if (remote_source is None) == (remote_destination is None):
        raise click.UsageError("one of the two paths has to be in a sandbox: NAME:PATH")
    progress = CopyProgress(local_size(source) if remote_source is None else 0, show=not quiet)

    def warn(line: str) -> None:
        click.echo(f"warning: {one_line(line)}", err=True)

    async def work(service: Service) -> None:
        if remote_destination is not None:
            name, path = remote_destination
            sandbox = await service.sandboxes.find(name)
            await service.files.upload(sandbox, source, path, progress=progress.add, warn=warn)
        elif remote_source is not None:
            name, path = remote_source
            sandbox = await service.sandboxes.find(name)
            await service.files.download(sandbox, path, destination, progress=progress.add, warn=warn)

    try:
        target.run(work)
    finally:
        progress.end()


def _remote(text: str) -> tuple[str, str] | None:
    """NAME and PATH of a path in a sandbox; None for a local one. As with scp, a colon after a slash is local."""
    name, colon, path = text.partition(":")
    if not colon or not name or os.sep in name.removeprefix("claim/").removeprefix("sandbox/"):
        return None
    return name, path


class CopyProgress:
    """The progress of a copy, on a terminal and from the first MiB on: a bar if the size is known."""

    def __init__(self, total: int = 0, *, show: bool = True) -> None:
        self.total = total
        self.done = 0
        self._progress = Progress(in_terminal_only=True)
        self._show = show and sys.stderr.isatty()
        self._shown = 0

    def add(self, count: int) -> None:
        self.done += count
        if not self._show or self.done - self._shown < _SHOWN_EVERY:
            return
        self._shown = self.done
        if self.total:
            self._progress.bar(self.done, self.total, f"{size(self.done)} of {size(self.total)} copied")
        else:
            self._progress.step(f"{size(self.done)} copied")

    def end(self) -> None:
        if self._shown:
            self._progress.clear()


def local_size(path: str) -> int:
    """The bytes in a file or a tree, as far as they can be read."""
    if not os.path.isdir(path):
        return _file_size(path)
    return sum(_file_size(os.path.join(directory, name)) for directory, _, names in os.walk(path) for name in names)


def _file_size(path: str) -> int:
    with suppress(OSError):
        found = os.lstat(path)
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0
