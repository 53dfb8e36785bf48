"""Connection options and error messages of the commands that talk to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from sandpool.home import connection as connections
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.errors import ApiError, Forbidden, Unauthorized
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import KubeconfigError

F = TypeVar("F", bound=Callable[..., Any])


def cluster_options(command: F) -> F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Show what would change; change nothing."),
        click.option("--context", help="Context of the kubeconfig. [default: the current one]"),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Kubeconfig of the cluster. [default: KUBECONFIG, the chosen context, the local home]",
        ),
    ):
        command = option(command)
    return command


def change(
    kubeconfig: Path | None,
    context: str | None,
    work: Callable[[Client], Awaitable[None]],
    *,
    cluster_only: bool = False,
) -> None:
    """Run ``work`` with a client of the cluster, and turn failures into one-line error messages.

    ``cluster_only`` is for commands that change an installation, which the local home does not have."""
    try:
        target = connections.resolve(kubeconfig, context)
        if cluster_only and target.home is not None:
            raise click.ClickException(
                f"{target.home.url} is the local home, which needs no installation; "
                "name a Kubernetes cluster with --kubeconfig or --context"
            )
        connection = target.connection()
    except KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    try:
        uvloop.run(_connected(connection, work))
    except InstallError as error:
        raise click.ClickException(str(error)) from None
    except Unauthorized:
        raise click.ClickException(f"{connection.server} rejected the credentials of the kubeconfig") from None
    except Forbidden as error:
        raise click.ClickException(f"{error}\nRun this command as an administrator of the cluster") from None
    except ApiError as error:
        raise click.ClickException(f"the API refused: {error}") from None
    except BrokenPipeError:
        raise  # most often of standard output, whose reader has what it wanted
    except (OSError, TimeoutError) as error:
        raise click.ClickException(str(error) or f"no answer from {connection.server}") from None


async def _connected(connection: Connection, work: Callable[[Client], Awaitable[None]]) -> None:
    client = Client(HttpTransport(connection))
    try:
        await work(client)
    finally:
        await client.close()
