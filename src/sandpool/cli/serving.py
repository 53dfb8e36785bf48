"""What ``sandpool server`` and ``sandpool up`` have in common: the options of the embedded API, and its complaints."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from sandpool.server.serving.daemon import ServerOptions
from sandpool.server.serving.kubeconfig import ForeignFile
from sandpool.server.store.journal import StoreDamaged, StoreInUse

F = TypeVar("F", bound=Callable[..., Any])

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: data_home() / "sandpool",
    show_default="~/.local/share/sandpool",
    help="Where everything is kept.",
)


def node_directory(data_dir: Path) -> Path:
    """Where ``sandpool up`` keeps its pods, their images and their volumes."""
    return data_dir / "node"


_OPTIONS = (
    data_dir_option,
    click.option(
        "--port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="0 lets the system choose."
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--tls-san", multiple=True, metavar="NAME", help="Another name or address for the server's certificate."
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Where to write the kubeconfig. [default: in the data directory]",
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help='More users: token,user,uid,"groups" per line.',
    ),
    click.option(
        "--audit-log", type=click.Path(path_type=Path, dir_okay=False), help="Record every request here, as JSON lines."
    ),
)


# What the functions of commands get from these.
NAMES = ("data_dir", "port", "host", "tls_san", "kubeconfig", "token_file", "audit_log")


def server_options(command: F) -> F:
    """The options that ``settings`` is made from."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings(
    data_dir: Path,
    port: int,
    host: str,
    tls_san: tuple[str, ...],
    kubeconfig: Path | None,
    token_file: Path | None,
    audit_log: Path | None,
) -> ServerOptions:
    """From the values of the options. Warns of what is dangerous."""
    if not _is_loopback(host):
        click.echo(
            f"warning: {host} is reachable from other machines; whoever has the token is administrator", err=True
        )
    return ServerOptions(data_dir, host, port, tls_san, kubeconfig, token_file, audit_log, nodeless=frozenset())


@contextlib.contextmanager
def complaints(settings: ServerOptions) -> Iterator[None]:
    """Turn what people can do something about into one line that says what."""
    try:
        yield
    except (StoreInUse, StoreDamaged, ForeignFile, ValueError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        where = f"{settings.host}:{settings.port} from {settings.data_dir}"
        raise click.ClickException(f"cannot serve {where}: {error.strerror or error}") from None


def data_home() -> Path:
    """Where programs of this user keep their data."""
    configured = os.environ.get("XDG_DATA_HOME", "")
    # A relative path is to be ignored, says the specification.
    return Path(configured) if configured.startswith("/") else Path.home() / ".local" / "share"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
