"""``sandpool down``: stop the local home."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import click

from sandpool.cli.home_report import program, with_sudo
from sandpool.cli.progress import steps
from sandpool.home import discovery
from sandpool.home.discovery import Home
from sandpool.home.process import ProcessIdentity
from sandpool.home.start import END_SANDBOXES


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The home with this data directory.")
@click.option("--ephemeral", is_flag=True, help="End sandboxes too, which loses their files outside of volumes.")
@click.option("--timeout", type=click.FloatRange(min=0), default=90.0, show_default=True, help="Seconds to wait.")
def down(data_dir: Path | None, ephemeral: bool, timeout: float) -> None:
    """Stop the local home. Sandboxes and their files are kept for the next `sandpool up`, unless --ephemeral is given.

    Does nothing if no home runs."""
    home = discovery.running() if data_dir is None else discovery.home_of(data_dir)
    if home is None:
        click.echo("no local home runs")
        if ephemeral:
            click.echo(f"to end sandboxes that an earlier home left: {program()} up -d && {program()} down --ephemeral")
        return
    with steps() as progress:
        progress.step(f"stopping the home with pid {home.pid}")
        if not _stop(home, ephemeral, timeout):
            raise click.ClickException(
                f"pid {home.pid} did not stop within {timeout:g} s; "
                f"`kill -9 {home.pid}` ends it at once and loses nothing"
            )
    click.echo(f"stopped the home with pid {home.pid}. Kept: all objects, volumes and images in {home.data_dir}")
    if ephemeral:
        click.echo("Ended: all sandboxes, with their files outside of volumes.")
    elif home.settings.get("--ephemeral") != "true" and home.settings.get("--keep") != "false":
        click.echo(
            f"Sandboxes run on with their files until the next `{program()} up`; "
            f"`{program()} down --ephemeral` ends them."
        )


def _stop(home: Home, ephemeral: bool, timeout: float) -> bool:
    """Signal the home and wait for its end; False if it still runs after the time-out."""
    try:
        handle = os.pidfd_open(home.pid)
    except ProcessLookupError:
        return True
    try:
        # The id may have been reused before the handle was opened. Afterwards it cannot be mistaken.
        if not home.process.is_running():
            return True
        for number in (*((END_SANDBOXES,) if ephemeral else ()), signal.SIGTERM):
            signal.pidfd_send_signal(handle, number)
        ended, _, _ = select.select([handle], [], [], timeout)
        return bool(ended)
    except PermissionError:
        raise click.ClickException(
            f"the home with pid {home.pid} belongs to {_owner(home.process)}: "
            f"run `{with_sudo('down', *(['--ephemeral'] if ephemeral else []))}`"
        ) from None
    finally:
        os.close(handle)


def _owner(process: ProcessIdentity) -> str:
    import pwd

    owner = process.owner()
    try:
        return "another user" if owner is None else pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"the user with id {owner}"
