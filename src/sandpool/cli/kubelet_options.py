"""Options of the node's kubelet API, named like those of a kubelet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from sandpool.kube.connection import Connection
from sandpool.node.assembly import Node
from sandpool.node.kubelet.kubelet import EVERYWHERE, PORT, KubeletOptions, local_address_toward
from sandpool.server.serving.pki import Identity

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
_OPTIONS: Final = (
    click.option(
        "--kubelet-address",
        default="",
        show_default="all addresses",
        help="Listen address of the kubelet API (exec, attach, port-forward, logs).",
    ),
    click.option(
        "--kubelet-port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="Port of the kubelet API; 0 picks a free one.",
    ),
    click.option(
        "--node-ip",
        default="",
        show_default="the local address of the route to the API",
        help="Address that the Node object advertises.",
    ),
    click.option(
        "--client-ca-file", type=_FILE, help="CA of client certificates. [default: the one the API server publishes]"
    ),
    click.option("--tls-cert-file", type=_FILE, help="Serving certificate. [default: self-signed]"),
    click.option("--tls-private-key-file", type=_FILE, help="Key of the serving certificate."),
)


def kubelet_options(command: F) -> F:
    """Add the options that ``settings`` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings(
    connection: Connection,
    kubelet_address: str,
    kubelet_port: int,
    node_ip: str,
    client_ca_file: Path | None,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
) -> KubeletOptions:
    """Return the kubelet options for the given option values."""
    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise click.UsageError("--tls-cert-file and --tls-private-key-file must be given together")
    identity = Identity(tls_cert_file, tls_private_key_file) if tls_cert_file and tls_private_key_file else None
    found_at = node_ip or (_way(connection, kubelet_address) if kubelet_address in EVERYWHERE else kubelet_address)
    return KubeletOptions(kubelet_address, kubelet_port, found_at, client_ca_file, identity)


def _way(connection: Connection, listening: str) -> str:
    api = urlsplit(connection.proxy or connection.server)
    try:
        return local_address_toward(api.hostname or "", api.port or 443, listening)
    except OSError as error:
        what = f"cannot determine the local address of the route to {api.hostname}"
        raise click.ClickException(f"{what}: {error}; set --node-ip") from None


def greeting(node: Node) -> str:
    endpoint = node.agent.endpoint
    return "" if endpoint is None else f"; kubelet API at {endpoint.address}:{endpoint.port}"
