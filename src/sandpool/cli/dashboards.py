"""The dashboard of ``sandpool up``: its options, its token, and the way it is shown to the user of the home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import click

from sandpool.cli.addresses import address
from sandpool.dashboard.access import new_token
from sandpool.dashboard.settings import DashboardSettings
from sandpool.engine.clock import Clock
from sandpool.engine.health import parse_address
from sandpool.home.discovery import DASHBOARD_PORT
from sandpool.kube.connection import is_loopback
from sandpool.process.on_demand import OnDemandProcess
from sandpool.server.auth.private_files import write_private

F = TypeVar("F", bound=Callable[..., Any])

DASHBOARD_ADDRESS: Final = f"127.0.0.1:{DASHBOARD_PORT}"
TOKEN_NAME: Final = "dashboard-token"
TITLE: Final = "local home"
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
    kubeconfig: Path,
    metrics_url: str | None,
    audit_log: Path | None,
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
    token_file = kubeconfig.with_name(TOKEN_NAME)
    token = new_token()
    write_private(token_file, token.encode())
    settings = DashboardSettings(
        kubeconfig,
        TITLE,
        token,
        not_before=clock.now().timestamp(),
        metrics_url=metrics_url,
        audit_log=audit_log,
        read_only=dashboard_read_only,
        allowed_hosts=frozenset(name.lower() for name in dashboard_allowed_host),
    )

    def sent(restarts: int) -> dict[str, Any]:
        # The predecessor may have accepted codes that the next process does not know.
        since = clock.now().timestamp() if restarts else settings.not_before
        return replace(settings, not_before=since).to_json()

    process = OnDemandProcess("dashboard", "sandpool.dashboard", clock, Random(), sent)
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
