"""Options and error messages of the embedded API, shared by ``sandpool server`` and ``sandpool up``."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from sandpool.cli.home_report import with_sudo
from sandpool.home import discovery
from sandpool.home.discovery import API_PORT
from sandpool.home.users import default_data_dir
from sandpool.server.serving.daemon import ServerOptions
from sandpool.server.serving.kubeconfig import ForeignFile
from sandpool.server.store.journal import StoreDamaged, StoreInUse

F = TypeVar("F", bound=Callable[..., Any])

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    callback=lambda context, option, value: Path(value).absolute(),
    default=default_data_dir,
    show_default="~/.local/share/sandpool",
    help="Directory of all data.",
)


def _data_dir_of_home() -> Path:
    home = discovery.running()
    return default_data_dir() if home is None else home.data_dir


def _accessible(context: click.Context, option: click.Parameter, value: Path) -> Path:
    try:
        os.stat(value / "lock")
    except PermissionError:
        raise click.ClickException(f"{value} belongs to another user: run `{with_sudo(*sys.argv[1:])}`") from None
    except OSError:
        pass  # there is no home yet
    return value.absolute()


#: For commands that work on the files of a home.
home_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    callback=_accessible,
    default=_data_dir_of_home,
    show_default="that of the running home",
    help="Directory of all data.",
)


def node_directory(data_dir: Path) -> Path:
    """Return the directory in which ``sandpool up`` keeps pods, images and volumes."""
    return data_dir / "node"


_OPTIONS = (
    data_dir_option,
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=API_PORT,
        show_default=True,
        help="Port of the API; 0 picks a free one.",
    ),
    click.option("--host", default="127.0.0.1", show_default=True, help="Listen address of the API."),
    click.option(
        "--tls-san", multiple=True, metavar="NAME", help="Additional name or address in the serving certificate."
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File to write the kubeconfig to. [default: in the data directory]",
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help='Static tokens of more users: token,user,uid,"groups" per line.',
    ),
    click.option(
        "--audit-log",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for the audit log, one JSON object per request.",
    ),
)


# The parameter names of these options.
NAMES = ("data_dir", "port", "host", "tls_san", "kubeconfig", "token_file", "audit_log")


def server_options(command: F) -> F:
    """Add the options that ``settings`` takes."""
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
    """Return the server options for the given option values; warn about an address that is not loopback."""
    if not _is_loopback(host):
        click.echo(
            f"warning: {host} is reachable from other machines; every holder of the token is an administrator", err=True
        )
    return ServerOptions(data_dir, host, port, tls_san, kubeconfig, token_file, audit_log, nodeless=frozenset())


@contextlib.contextmanager
def complaints(settings: ServerOptions) -> Iterator[None]:
    """Turn expected start-up failures into one-line error messages."""
    try:
        yield
    except (StoreInUse, StoreDamaged, ForeignFile, ValueError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        where = f"{settings.host}:{settings.port} from {settings.data_dir}"
        raise click.ClickException(f"cannot serve {where}: {error.strerror or error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
