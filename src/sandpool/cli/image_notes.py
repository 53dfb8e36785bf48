"""What is left to do for sandboxes to use a new image: pools that hold the earlier one, homes that do not see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click

from sandpool.cli.home_report import program, with_sudo
from sandpool.home import discovery, users
from sandpool.home.discovery import Home
from sandpool.kube import kubeconfig
from sandpool.kube.errors import ApiError
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.service.image_builds import OutdatedPool, outdated_pools
from sandpool.service.service import Service

_DEFAULT_NAMESPACE: Final = "default"


def note_users(data_dir: Path, name: Reference, image_id: str) -> None:
    """Show what is left to do before sandboxes use a new image."""
    home = discovery.home_of(data_dir)
    if home is not None:
        _note_outdated_pools(home, name, image_id)
        return
    caller = users.sudo_caller()
    if caller is None or data_dir != users.default_data_dir():
        return
    start = with_sudo("up", "-d")
    if any(each.process.owner() == caller.uid for each in discovery.homes_of(caller)):
        note = f"the running home of {caller.name} does not see images of root: `{program()} down && {start}`"
    else:
        note = f"only a home of root sees this image; start it with: {start}"
    click.echo(f"note: {note}", err=True)


def _note_outdated_pools(home: Home, name: Reference, image_id: str) -> None:
    """Name the pools of the running home whose idle sandboxes still run an earlier image of this name."""

    def is_image(text: str) -> bool:
        try:
            return parse(text) == name
        except InvalidImageName:
            return False

    async def find() -> tuple[OutdatedPool, ...]:
        async with Service.connect(kubeconfig.load(home.kubeconfig), None) as service:
            return await outdated_pools(service, is_image, image_id)

    try:
        found = asyncio.run(find())
    except (ApiError, OSError, kubeconfig.KubeconfigError) as error:
        click.echo(f"warning: pools with sandboxes of an earlier {name} are not known: {error}", err=True)
        return
    for pool in found:
        where = "" if pool.namespace == _DEFAULT_NAMESPACE else f" -n {pool.namespace}"
        sandboxes = "1 idle sandbox" if pool.sandboxes == 1 else f"{pool.sandboxes} idle sandboxes"
        click.echo(
            f"note: pool {pool.name} has {sandboxes} of the earlier {name}; "
            f"replace with: {program()} pool rollout {pool.name}{where} --restart",
            err=True,
        )
