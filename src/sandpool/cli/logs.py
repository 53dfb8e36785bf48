"""``sandpool logs``: the log of a sandbox, or of the local home."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandpool.cli.execution import parse_duration
from sandpool.cli.home_report import program, with_sudo
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.sessions import Target, interrupted_is_success, target_options
from sandpool.home import discovery
from sandpool.home.start import LOG
from sandpool.home.users import default_data_dir

if TYPE_CHECKING:
    from sandpool.service.service import Service

_SANDBOX = "Log of a sandbox"


@click.command(cls=GroupedCommand)
@click.argument("name", required=False)
@option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@option("--tail", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines. [default: all]")
@option("--timestamps", is_flag=True, group=_SANDBOX, help="Show the time of each line.")
@option("--previous", "-p", is_flag=True, group=_SANDBOX, help="The log of the container before its last restart.")
@option(
    "--since", callback=parse_duration, metavar="DURATION", group=_SANDBOX, help="Only lines of this time, such as 5m."
)
@option("--container", "-c", group=_SANDBOX, help="Container of the pod. [default: the main one]")
@option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    group="Log of the home",
    help="The home with this data directory.",
)
@target_options
def logs(
    name: str | None, follow: bool, tail: int | None, data_dir: Path | None, target: Target, **options: Any
) -> None:
    """Show what the main process of a sandbox has printed.

    NAME is the name of a claim or of a sandbox. Without NAME the log of the local home in the background is shown,
    also of one that has ended.
    """
    if name is None:
        show_home_log(follow, tail, data_dir)
    else:
        with interrupted_is_success():
            target.run(partial(_sandbox_log, name=name, follow=follow, tail=tail, **options))


async def _sandbox_log(
    service: Service,
    *,
    name: str,
    follow: bool,
    tail: int | None,
    timestamps: bool,
    previous: bool,
    since: float | None,
    container: str | None,
) -> None:
    from sandpool.kube.pod_client import LogOptions

    sandbox = await service.sandboxes.find(name)
    seconds = None if since is None else max(1, round(since))
    asked = LogOptions(container or sandbox.container, follow, previous, timestamps, seconds, tail)
    async for piece in service.sandboxes.logs(sandbox, asked):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def show_home_log(follow: bool, tail: int | None, data_dir: Path | None = None) -> None:
    """Print the log of the home, or replace this process by one that follows it."""
    log = _log(data_dir)
    try:
        file = log.open("rb")
    except FileNotFoundError:
        raise click.ClickException(f"no home was started in the background yet: {program()} up -d does it") from None
    except PermissionError:
        raise click.ClickException(f"{log} belongs to root: run `{with_sudo('logs')}`") from None
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
