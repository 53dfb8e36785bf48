"""``sandpool uninstall``: remove an installation from a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path

import click

from sandpool.cli.cluster import change, cluster_options
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install.manifests import InstallOptions
from sandpool.install.remover import Remover
from sandpool.install.storage import choose_storage
from sandpool.kube.client import Client


@click.command()
@cluster_options
@click.option("--keep-kinds", is_flag=True, help="Keep the kinds with all sandboxes, pools and claims.")
@click.option("--with-claims", is_flag=True, help="Also delete claims and the sandboxes in use.")
def uninstall(kubeconfig: Path | None, context: str | None, dry_run: bool, keep_kinds: bool, with_claims: bool) -> None:
    """Remove Sandpool from a Kubernetes cluster. Refuses while claims exist, or sandboxes outside of pools."""
    if keep_kinds and with_claims:
        raise click.UsageError("--keep-kinds keeps claims and --with-claims deletes them: choose one")

    async def work(client: Client) -> None:
        choice = InstallOptions(storage=await choose_storage(client, None))
        objects = chosen(choice, router=True, monitored=True, nodes=True)
        remover = Remover(
            client, SystemClock(), click.echo, dry_run=dry_run, keep_kinds=keep_kinds, with_claims=with_claims
        )
        await remover.remove(objects)

    change(kubeconfig, context, work, cluster_only=True)
    if not dry_run:
        click.echo("uninstalled")
