"""``sandpool version``: the versions of this program and of what it talks to."""

from __future__ import annotations

import platform

import click

from sandpool import __version__
from sandpool.cli.output import document_option, show_document
from sandpool.home import discovery


@click.command()
@document_option
def version(output: str) -> None:
    """Show the version of this program, and of the local home if one runs."""
    home = discovery.running()
    found = {
        "sandpool": __version__,
        "home": None if home is None else home.version,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if output != "table":
        show_document(found, output)
        return
    for name, value in found.items():
        click.echo(f"{name:<9} {value or 'does not run'}")
    if home is not None and home.version != __version__:
        click.echo("the local home has another version: stop and start it to upgrade", err=True)
