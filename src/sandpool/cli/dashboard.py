"""``sandpool dashboard``: open the dashboard of the local home, or serve one for a cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sandpool.cli.addresses import address, require_loopback
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.home import connection as connections
from sandpool.home.discovery import DASHBOARD_PORT, Home
from sandpool.kube.connection import Connection, is_loopback

if TYPE_CHECKING:
    from sandpool.dashboard.server import DashboardOptions
    from sandpool.dashboard.target import DashboardTarget

_file = click.Path(path_type=Path, dir_okay=False, exists=True)


_SOURCES: Final = "Sources"
_WHERE: Final = "Where"


@click.command(cls=GroupedCommand)
@option("--serve", is_flag=True, help="Serve one here, also for the local home, which serves its own.")
@option(
    "--bind-address",
    default=f"127.0.0.1:{DASHBOARD_PORT}",
    show_default=True,
    help="Address to serve at; port 0 picks a free one. Other addresses than loopback need TLS.",
)
@option("--read-only", is_flag=True, help="Show everything and change nothing.")
@option("--allowed-host", multiple=True, metavar="NAME", help="Accept this name in the Host header. Repeatable.")
@option("--tls-cert-file", type=_file, help="Serving certificate.")
@option("--tls-key-file", type=_file, help="Key of the serving certificate.")
@option("--token-file", type=_file, help="Token that logs in, at least 32 characters. [default: a new one]")
@option("--metrics-url", group=_SOURCES, help="Metrics of the controllers, for example http://127.0.0.1:8080/metrics.")
@option(
    "--audit-log",
    group=_SOURCES,
    multiple=True,
    type=_file,
    help="Audit log of the API server, for waterfalls. Repeatable.",
)
@option(
    "--controller-log",
    group=_SOURCES,
    multiple=True,
    type=_file,
    help="Output of `sandpool controller --pass-log`. Repeatable.",
)
@option("--namespace", "-n", group=_WHERE, help="Show this namespace alone. [default: all]")
@option(
    "--kubeconfig", group=_WHERE, type=click.Path(path_type=Path, dir_okay=False), help="Kubeconfig of the cluster."
)
@option("--context", group=_WHERE, help="Context of the kubeconfig, or name of a local home.")
def dashboard(
    serve: bool,
    bind_address: str,
    read_only: bool,
    allowed_host: tuple[str, ...],
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    token_file: Path | None,
    metrics_url: str | None,
    audit_log: tuple[Path, ...],
    controller_log: tuple[Path, ...],
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Print the address of the dashboard, with a link that logs in once.

    A running local home serves a dashboard already. For a cluster the command serves one until Ctrl-C, with the rights
    of the kubeconfig.
    """
    target = connections.resolve(kubeconfig, context)
    home = target.home
    if home is not None and not serve:
        click.echo(_login_url(home))
        return
    tls = _tls(tls_cert_file, tls_key_file)
    token = None if token_file is None else _token(token_file)
    connection = target.connection()
    listening = _listen(bind_address, secure=tls is not None)

    from sandpool.dashboard.access import new_token
    from sandpool.dashboard.guard import GuardOptions
    from sandpool.dashboard.server import DashboardOptions
    from sandpool.dashboard.target import PROGRAM, DashboardTarget
    from sandpool.explain.log_files import LogFiles
    from sandpool.kube.client import Client
    from sandpool.kube.http import HttpTransport
    from sandpool.kube.pod_client import HttpPodClient

    connection = connection.of_program(PROGRAM)
    shown = DashboardTarget(
        Client(HttpTransport(connection), field_manager="sandpool-dashboard"),
        HttpPodClient(connection),
        _title(connection, home),
        namespace,
        metrics_url or (None if home is None else home.metrics_url),
        LogFiles(audit_log, controller_log).lines if audit_log else None,
        loopback=is_loopback(listening.getsockname()[0]),
    )
    hosts = frozenset(each.lower() for each in allowed_host)
    options = DashboardOptions(token or new_token(), guard=GuardOptions(hosts, tls is not None, read_only), tls=tls)
    host = allowed_host[0] if allowed_host else _shown_host(listening)
    url = f"{'http' if tls is None else 'https'}://{host}:{listening.getsockname()[1]}"

    from sandpool.cli import foreground

    foreground.run(partial(_serve, shown, options, listening, url, show_token=token is None))


async def _serve(
    target: DashboardTarget,
    options: DashboardOptions,
    listening: socket.socket,
    url: str,
    stopping: asyncio.Event,
    *,
    show_token: bool,
) -> None:
    from random import Random

    from sandpool.cli import foreground
    from sandpool.dashboard.access import login_url
    from sandpool.dashboard.server import Dashboard
    from sandpool.engine.clock import SystemClock

    clock = SystemClock()
    served = Dashboard(target, options, clock, Random())
    await served.start([listening])
    try:
        click.echo(login_url(url, options.token, clock))
        if show_token:
            click.echo(f"token for further logins: {options.token}")
        await foreground.until(stopping, served.wait())
    finally:
        await served.stop()
        await target.client.close()


def _login_url(home: Home) -> str:
    from sandpool.dashboard.access import login_url
    from sandpool.engine.clock import SystemClock

    if home.dashboard_url is None or home.dashboard_token_file is None:
        raise click.ClickException(
            f"the local home (pid {home.pid}) serves no dashboard; start one here with: sandpool dashboard --serve"
        )
    try:
        token = home.dashboard_token_file.read_text()
    except OSError as error:
        raise click.ClickException(
            f"cannot read the token of the dashboard, {error.filename}: {error.strerror}"
        ) from None
    return login_url(home.dashboard_url, token, SystemClock())


def _title(connection: Connection, home: Home | None) -> str:
    from urllib.parse import urlsplit

    return "local home" if home is not None else urlsplit(connection.server).netloc


def _token(file: Path) -> str:
    token = file.read_text(errors="replace").strip()
    if len(token) < 32 or not token.isascii():
        raise click.ClickException(f"--token-file: {file} needs at least 32 characters of ASCII")
    return token


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if (certificate is None) != (key is None):
        raise click.ClickException("--tls-cert-file and --tls-key-file go together")
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"the certificate cannot be used: {error}") from None
    return context


def _listen(bind_address: str, *, secure: bool) -> socket.socket:
    from sandpool.engine.health import parse_address

    where = parse_address(address("--bind-address", bind_address))
    if where is None:
        raise click.ClickException("--bind-address needs a port")
    host = where[0] or "0.0.0.0"
    if not secure:
        require_loopback("--bind-address", bind_address, host, "add --tls-cert-file and --tls-key-file")
    try:
        made = socket.create_server((host, where[1]), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {bind_address}: {error.strerror}") from None
    made.setblocking(False)
    return made


def _shown_host(listening: socket.socket) -> str:
    host = str(listening.getsockname()[0])
    return f"[{host}]" if ":" in host else host
