"""``sandpool logs``: the log of the local home."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sandpool.cli.home_report import program
from sandpool.home import discovery
from sandpool.home.start import LOG
from sandpool.home.users import default_data_dir


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines. [default: all]")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The home with this data directory.")
def logs(follow: bool, tail: int | None, data_dir: Path | None) -> None:
    """Show the log of the local home in the background, also of one that has ended."""
    show_home_log(follow, tail, data_dir)


def show_home_log(follow: bool, tail: int | None, data_dir: Path | None = None) -> None:
    """Print the log of the home, or replace this process by one that follows it."""
    log = _log(data_dir)
    try:
        file = log.open("rb")
    except FileNotFoundError:
        raise click.ClickException(f"no home was started in the background yet: {program()} up -d does it") from None
    except PermissionError:
        raise click.ClickException(f"{log} belongs to root: run `sudo {program()} logs`") from None
    with file:
        if follow:
            lines = "+1" if tail is None else str(tail)
            os.execvp("tail", ["tail", "-n", lines, "-F", str(log)])
        content = file.read().decode(errors="replace").splitlines(keepends=True)
    for line in content if tail is None else content[len(content) - min(tail, len(content)) :]:
        click.echo(line, nl=False)


def _log(data_dir: Path | None) -> Path:
    home = discovery.running() if data_dir is None else discovery.home_of(data_dir)
    if home is None:
        return (data_dir or default_data_dir()) / LOG
    if home.log is None:
        raise click.ClickException(
            f"the home with pid {home.pid} runs in the foreground: its terminal or service manager has the log"
        )
    return home.log
