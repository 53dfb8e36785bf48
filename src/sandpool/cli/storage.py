"""``sandpool storage``: where an installed cluster keeps sandboxes and claims."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from sandpool.api.kinds import DEPLOYMENT, STATEFUL_SET
from sandpool.api.sandbox_spec import Profile
from sandpool.cli.cluster import change, cluster_options
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.manifests import DEFAULT_PROFILE, InstallOptions, core, namespace
from sandpool.install.storage import Storage
from sandpool.install.storage_move import StorageMover
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound


@click.group()
def storage() -> None:
    """Move sandboxes and claims of a cluster between custom resources and a volume of Sandpool."""


@storage.command()
@cluster_options
@click.option("--to", type=click.Choice(get_args(Storage)), required=True, help="As `sandpool install --storage`.")
@click.option("--image", help="Image built from deploy/Dockerfile. [default: the installed one]")
@click.option("--storage-class", default="", help="StorageClass of the volume. [default: that of the cluster]")
@click.option(
    "--replicas", type=click.IntRange(min=1), default=InstallOptions().replicas, help="Controller replicas with crd."
)
@click.option("--profile", type=click.Choice(get_args(Profile)), help="Validation of pod templates with crd.")
def move(
    kubeconfig: Path | None,
    context: str | None,
    dry_run: bool,
    to: Storage,
    image: str | None,
    storage_class: str,
    replicas: int,
    profile: Profile | None,
) -> None:
    """Move the storage of an installed cluster. Claims keep their sandboxes, and pods are not restarted.

    A move that was interrupted at any step continues when the command is run again."""

    async def work(client: Client) -> None:
        used = image or await _present_image(client) or InstallOptions().image
        custom = InstallOptions(used, replicas, profile or DEFAULT_PROFILE, "crd")
        aggregated = InstallOptions(used, storage="aggregated", storage_class=storage_class)
        mover = StorageMover(
            client,
            SystemClock(),
            click.echo,
            [namespace(), *core(custom)],
            [namespace(), *core(aggregated)],
        )
        await mover.move(to, dry_run=dry_run)

    change(kubeconfig, context, work, cluster_only=True)


async def _present_image(client: Client) -> str | None:
    """The image of the installation, whichever storage it has."""
    for type, name in ((DEPLOYMENT, names.CONTROLLER), (STATEFUL_SET, names.APISERVER)):
        try:
            found = await client.get(type, name, names.NAMESPACE)
        except NotFound:
            continue
        image: str = found["spec"]["template"]["spec"]["containers"][0]["image"]
        return image
    return None
