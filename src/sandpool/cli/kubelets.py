"""The options of a node's own API, named as those of a kubelet are."""

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
        show_default="all of this machine",
        help="Where exec, attach, port-forward and logs are served to the API server.",
    ),
    click.option("--kubelet-port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any."),
    click.option(
        "--node-ip",
        default="",
        show_default="the one from which this machine reaches the API",
        help="The address that the API server is told.",
    ),
    click.option(
        "--client-ca-file", type=_FILE, help="Who signs clients' certificates. [default: what the API server says]"
    ),
    click.option("--tls-cert-file", type=_FILE, help="The certificate to show. [default: one of its own making]"),
    click.option("--tls-private-key-file", type=_FILE, help="Its key."),
)


def kubelet_options(command: F) -> F:
    """The options that ``settings`` is made from."""
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
    """From the values of the options. The API server is expected to be where it is reached."""
    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise click.UsageError("--tls-cert-file and --tls-private-key-file belong together: give both or neither")
    identity = Identity(tls_cert_file, tls_private_key_file) if tls_cert_file and tls_private_key_file else None
    found_at = node_ip or (_way(connection, kubelet_address) if kubelet_address in EVERYWHERE else kubelet_address)
    return KubeletOptions(kubelet_address, kubelet_port, found_at, client_ca_file, identity)


def _way(connection: Connection, listening: str) -> str:
    api = urlsplit(connection.proxy or connection.server)
    try:
        return local_address_toward(api.hostname or "", api.port or 443, listening)
    except OSError as error:
        what = f"from which address this machine reaches {api.hostname} cannot be found out"
        raise click.ClickException(f"{what}: {error}; --node-ip says it") from None


def greeting(node: Node) -> str:
    endpoint = node.agent.endpoint
    return "" if endpoint is None else f"; its own API is at port {endpoint.port} of {endpoint.address}"
