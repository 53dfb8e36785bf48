"""``sandpool version``: the versions of this program and of what it talks to."""

from __future__ import annotations

import json
import platform

import click

from sandpool import __version__
from sandpool.home import discovery


@click.command()
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True)
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
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        click.echo(f"{name:<9} {value or 'does not run'}")
    if home is not None and home.version != __version__:
        click.echo("the local home has another version: stop and start it to upgrade", err=True)
