"""``sandpool backup`` and ``sandpool restore``: the objects of a data directory in one file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sandpool.cli import serving
from sandpool.cli.progress import Progress, steps
from sandpool.engine.clock import SystemClock

if TYPE_CHECKING:
    from sandpool.server.store.backup import Contents

_STDIO = "-"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@serving.home_data_dir_option
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def backup(file: Path, data_dir: Path, force: bool) -> None:
    """Write all objects of a home, or of `sandpool apiserver`, into FILE, while the server runs; - is standard output.

    The file also has the keys and tokens of the server. Volumes, images and files of sandboxes are not in it."""
    from sandpool.server.store import backup as backups

    with _shown("backing up") as progress:
        if str(file) == _STDIO:
            if sys.stdout.isatty():
                raise click.UsageError("a backup is binary: redirect standard output, or name a file")
            try:
                contents = backups.back_up(data_dir, sys.stdout.buffer, SystemClock(), progress)
                sys.stdout.buffer.flush()
            except OSError as error:
                sys.stdout = None  # nothing more can be written, also not at exit
                raise click.ClickException(f"standard output took no more: {error.strerror or error}") from None
        else:
            contents = backups.back_up_to_file(data_dir, file, SystemClock(), progress, force=force)
    click.echo(f"{_summary(contents)} of {data_dir} are in {file}", err=str(file) == _STDIO)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@serving.home_data_dir_option
@click.option("--replace", is_flag=True, help="Replace the objects that are there; their database is kept beside.")
def restore(file: Path, data_dir: Path, replace: bool) -> None:
    """Put the objects of FILE, written by `sandpool backup`, into the data directory; - is standard input.

    No server may use the directory. Nothing changes unless the whole backup is sound."""
    from sandpool.server.store import backup as backups

    with _shown("restoring") as progress:
        if str(file) == _STDIO:
            contents = backups.restore(sys.stdin.buffer, data_dir, progress, replace=replace)
        else:
            try:
                source = file.open("rb")
            except OSError as error:
                raise click.ClickException(f"cannot read {file}: {error.strerror or error}") from None
            with source:
                contents = backups.restore(source, data_dir, progress, replace=replace)
    click.echo(f"restored {_summary(contents)} to {data_dir}, as of {contents.time:%Y-%m-%d %H:%M:%S} UTC")
    if replace and (kept := data_dir / "replaced").is_dir():
        click.echo(f"the database from before is in {kept}; delete it when you do not need it")


def _summary(contents: Contents) -> str:
    return f"{contents.objects} objects"


@contextmanager
def _shown(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress, and the expected failures as messages. A SIGTERM ends the work as Ctrl-C does, which cleans up."""
    from sandpool.server.store.backup import BackupError
    from sandpool.server.store.journal import StoreDamaged

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with steps() as shown:
            yield lambda done, total: _bar(shown, what, done, total)
    except (BackupError, StoreDamaged) as error:
        raise click.ClickException(str(error)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _bar(progress: Progress, what: str, done: int, total: int) -> None:
    progress.bar(done, total, f"{what}: {done} of {total} objects")
