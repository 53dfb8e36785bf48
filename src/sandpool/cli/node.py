"""``sandpool node``: run this machine as a node of a Kubernetes cluster, in the foreground."""

from __future__ import annotations

import asyncio
import platform
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from typing import Any

import click

from sandpool.cli import foreground, kubelet_options, observability
from sandpool.cli.flags import switch
from sandpool.cli.node_instance import NodeInstance
from sandpool.cli.nodes import MAX_PODS, keep_option, node_options
from sandpool.cli.option_groups import SectionedCommand
from sandpool.engine.clock import SystemClock
from sandpool.engine.logging import TEXT
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.errors import ApiError
from sandpool.kube.http import HttpTransport
from sandpool.node.assembly import Node, NodeOptions
from sandpool.node.kubelet.kubelet import KubeletError
from sandpool.node.registration import RegistrationOptions

_STATE = Path("/var/lib/sandpool/node")


@click.command(
    cls=SectionedCommand,
    sections={
        "Kubelet API": (
            *("kubelet_address", "kubelet_port", "node_ip", "client_ca_file", "tls_cert_file", "tls_private_key_file"),
        ),
        "Pods": ("pod_cidr", "host_netns", "allow_unsafe_process_runtime"),
        "Logs": ("log_format", "log_level"),
    },
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig of the cluster. [default: as kubectl, or the pod's service account]",
)
@click.option("--context", help="Context of the kubeconfig. [default: the current one]")
@click.option(
    "--name", default=lambda: platform.node().lower(), show_default="the host's name", help="Name of the node."
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_STATE,
    show_default=True,
    help="Directory of pods, images and volumes.",
)
@switch("--schedule", False, "Also schedule pods, in a cluster without a scheduler.")
@kubelet_options.kubelet_options
@node_options
@keep_option(False)
@observability.log_options(TEXT)
def node(
    kubeconfig: Path | None,
    context: str | None,
    name: str,
    data_dir: Path,
    max_pods: int | None,
    pod_cidr: IPv4Network | None,
    host_netns: Path | None,
    schedule: bool,
    allow_host_path: bool,
    allow_unsafe_process_runtime: bool,
    keep: bool,
    log_format: str,
    log_level: str,
    **own_api: Any,
) -> None:
    """Run the pods that are bound to this node until Ctrl-C or SIGTERM."""
    observability.begin(log_format, log_level)
    try:
        connection = kubeconfigs.load(kubeconfig, context)
    except (kubeconfigs.KubeconfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    mark = NodeInstance.of(data_dir)
    settings = NodeOptions(
        data_dir,
        RegistrationOptions(name, pods=max_pods or MAX_PODS),
        alone=schedule,
        freezes=False,  # routers and other pods connect to its pods by address
        instance=mark.instance,
        addresses=pod_cidr,
        first_host_user=mark.first_host_user,
        allow_host_paths=allow_host_path,
        host=host_netns,
        unsafe_processes=allow_unsafe_process_runtime,
        kubelet=kubelet_options.settings(connection, **own_api),
    )
    try:
        foreground.run(partial(_serve, connection, settings, keep))
    except (KubeletError, ApiError, OSError) as error:
        raise click.ClickException(str(error)) from None


async def _serve(connection: Connection, settings: NodeOptions, keep: bool, stopping: asyncio.Event) -> None:
    transport = HttpTransport(connection)
    node = Node(Client(transport, field_manager="sandpool-node"), SystemClock(), Random(), settings)
    try:
        await node.start()
        try:
            click.echo(
                f"node {settings.registration.name} runs pods of {connection.server}{kubelet_options.greeting(node)}"
            )
            await foreground.until(stopping, node.wait())
        finally:
            await node.stop(keep=keep)
    finally:
        await transport.close()
