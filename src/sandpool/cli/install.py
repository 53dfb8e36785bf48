"""``sandpool install``: install into a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from sandpool.api.resource import Object
from sandpool.api.sandbox_spec import Profile
from sandpool.cli.cluster import change, cluster_options
from sandpool.cli.option_groups import SectionedCommand
from sandpool.engine.clock import SystemClock
from sandpool.install import manifests, monitoring, node
from sandpool.install.fit import present_profile
from sandpool.install.installer import Installer
from sandpool.install.manifests import DEFAULT_PROFILE, InstallOptions
from sandpool.install.names import APISERVER, CONTROLLER, NAMESPACE
from sandpool.install.storage import DEFAULT_STORAGE, Storage, choose_storage
from sandpool.kube.client import Client


@click.command(
    cls=SectionedCommand,
    sections={"Parts": ("router", "nodes", "monitored"), "Storage": ("profile", "storage", "storage_class")},
)
@cluster_options
@click.option("--image", default=InstallOptions().image, show_default=True, help="Image built from deploy/Dockerfile.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 2**31 - 1),
    default=InstallOptions().replicas,
    show_default=True,
    help="Controller replicas; one is the leader.",
)
@click.option(
    "--profile",
    type=click.Choice(get_args(Profile)),
    help="Validation of pod templates by the API server: every field (full) or none (lean). "
    f"[default: the installed one, else {DEFAULT_PROFILE}]",
)
@click.option(
    "--storage",
    type=click.Choice(get_args(Storage)),
    help="Where sandboxes and claims are kept: in custom resources (crd), or on a volume of Sandpool behind "
    f"kube-apiserver (aggregated). [default: the installed one, else {DEFAULT_STORAGE}]",
)
@click.option("--storage-class", default="", help="StorageClass of that volume. [default: that of the cluster]")
@click.option("--router", is_flag=True, help="Also install the router that SDKs connect to.")
@click.option("--nodes", is_flag=True, help="Also install an account for machines that join with `sandpool node`.")
@click.option(
    "--monitoring", "monitored", is_flag=True, help="Also install monitors and alerts for the Prometheus operator."
)
@click.option("--force", is_flag=True, help="Take over objects that another tool installed or changed.")
def install(
    kubeconfig: Path | None,
    context: str | None,
    dry_run: bool,
    image: str,
    replicas: int,
    profile: Profile | None,
    storage: Storage | None,
    storage_class: str,
    router: bool,
    nodes: bool,
    monitored: bool,
    force: bool,
) -> None:
    """Install Sandpool into a Kubernetes cluster, or upgrade it. Running it again changes nothing."""

    workload = f"deployment/{CONTROLLER}"

    async def work(client: Client) -> None:
        nonlocal workload
        kept = await choose_storage(client, storage)
        if kept == "aggregated":
            workload = f"statefulset/{APISERVER}"
        fields = profile or await present_profile(client) or DEFAULT_PROFILE
        choice = InstallOptions(image, replicas, fields, kept, storage_class)
        objects = chosen(choice, router=router, monitored=monitored, nodes=nodes)
        await Installer(client, SystemClock(), click.echo, dry_run=dry_run, force=force).install(objects)

    change(kubeconfig, context, work, cluster_only=True)
    if not dry_run:
        click.echo(f"installed; to see it start: kubectl -n {NAMESPACE} rollout status {workload}")


def chosen(choice: InstallOptions, *, router: bool, monitored: bool, nodes: bool = False) -> list[Object]:
    """Return all objects to install, in order."""
    return [
        manifests.namespace(),
        *manifests.core(choice),
        *(manifests.router(choice) if router else ()),
        *(node.objects() if nodes else ()),
        *(monitoring.objects() if monitored else ()),
        *(monitoring.router_objects() if monitored and router else ()),
    ]
