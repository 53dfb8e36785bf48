"""The dashboard of ``sandpool up``: its options, its token, and the way it is shown to the user of the home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.addresses import address
from sandpool.cli.identities import DASHBOARD
from sandpool.dashboard.access import new_token
from sandpool.dashboard.role import ROLE_NAME, role_rules
from sandpool.dashboard.settings import DashboardSettings
from sandpool.engine.clock import Clock
from sandpool.engine.health import parse_address
from sandpool.explain.log_files import with_rotated
from sandpool.home.discovery import DASHBOARD_PORT
from sandpool.kube.connection import is_loopback, with_address
from sandpool.kube.user_roles import grant_role
from sandpool.process import confinement
from sandpool.process.handed_files import FileServer
from sandpool.process.on_demand import OnDemandProcess, Program
from sandpool.server.auth.private_files import write_private
from sandpool.server.serving.daemon import Daemon

F = TypeVar("F", bound=Callable[..., Any])

DASHBOARD_ADDRESS: Final = f"127.0.0.1:{DASHBOARD_PORT}"
TOKEN_NAME: Final = "dashboard-token"
TITLE: Final = "local home"
PROGRAM: Final = Program("dashboard", "sandpool.dashboard", confinement.DASHBOARD)
_OPTIONS: Final = (
    click.option(
        "--dashboard-bind-address",
        default=DASHBOARD_ADDRESS,
        show_default=True,
        help="Loopback address of the dashboard; port 0 picks a free one, 0 alone disables it.",
    ),
    click.option("--dashboard-read-only", is_flag=True, help="Let the dashboard show everything and change nothing."),
    click.option(
        "--dashboard-allowed-host",
        multiple=True,
        metavar="NAME",
        help="Accept this name in the Host header, for a proxy before the dashboard. Repeatable.",
    ),
)
NAMES: Final = ("dashboard_bind_address", "dashboard_read_only", "dashboard_allowed_host")


def dashboard_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class RunningDashboard:
    """``run`` is to be awaited as long as the home serves."""

    url: str
    token_file: Path
    process: OnDemandProcess


@asynccontextmanager
async def dashboard(
    clock: Clock,
    daemon: Daemon,
    metrics_url: str | None,
    *,
    dashboard_bind_address: str,
    dashboard_read_only: bool,
    dashboard_allowed_host: tuple[str, ...],
    replaceable: bool,
) -> AsyncIterator[RunningDashboard | None]:
    """Listen for browsers for the length of the block; yields None if there is to be no dashboard. A ``replaceable``
    address gets another port if its own is taken."""
    where = parse_address(address("--dashboard-bind-address", dashboard_bind_address))
    if where is None:
        yield None
        return
    host, port = where[0] or "0.0.0.0", where[1]
    if not is_loopback(host):
        raise click.ClickException(
            f"--dashboard-bind-address {dashboard_bind_address}: the dashboard of a home is served on this machine "
            "alone\nFor other machines run `sandpool dashboard` with --tls-cert-file and --tls-key-file"
        )
    await grant_role(daemon.server.client(), DASHBOARD.name, ROLE_NAME, role_rules(read_only=dashboard_read_only))
    token_file = daemon.kubeconfig.absolute().with_name(TOKEN_NAME)
    token = new_token()
    write_private(token_file, token.encode())
    settings = DashboardSettings(
        daemon.kubeconfig_of(DASHBOARD),
        TITLE,
        token,
        not_before=clock.now().timestamp(),
        metrics_url=None if metrics_url is None else with_address(metrics_url),
        read_only=dashboard_read_only,
        allowed_hosts=frozenset(name.lower() for name in dashboard_allowed_host),
    )

    def sent(restarts: int) -> dict[str, Any]:
        # The predecessor may have accepted codes that the next process does not know.
        since = clock.now().timestamp() if restarts else settings.not_before
        return replace(settings, not_before=since).to_json()

    log = daemon.settings.audit_log
    files = None if log is None else FileServer(partial(with_rotated, log.absolute()))
    process = OnDemandProcess(PROGRAM, clock, Random(), sent, None if files is None else files.connect)
    try:
        process.listen(host, port, replaceable=replaceable)
    except OSError as error:
        raise click.ClickException(
            f"the dashboard cannot listen at {dashboard_bind_address}: {error.strerror}"
        ) from None
    running = asyncio.create_task(process.run(), name="dashboard")
    try:
        yield RunningDashboard(process.url, token_file, process)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await process.stop()
        if files is not None:
            files.close()
