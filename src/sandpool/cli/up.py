"""``sandpool up``: run the embedded API, the controllers, a router and nodes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import click

from sandpool import __version__
from sandpool.cli import dashboards, e2b_of_home, foreground, identities, observability, routing, serving, tuning
from sandpool.cli.addresses import address
from sandpool.cli.announcement import Announcement
from sandpool.cli.home_report import report
from sandpool.cli.nodes import NAMES, NODELESS, Choice, keep_option, node_options, nodes
from sandpool.cli.run_server import RunServer
from sandpool.cli.start_request import StartRequest, UpCommand, preferred, preferred_port
from sandpool.cli.systemd import unit
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.middleware import log_reconciles
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.health import HealthServer
from sandpool.engine.logging import TEXT
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import MeasuredTransport
from sandpool.home.discovery import METRICS_PORT, Home
from sandpool.home.process import ProcessIdentity
from sandpool.home.start import END_SANDBOXES, LOG_VARIABLE
from sandpool.home.users import sudo_caller
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.late_binding import Binder, LocalBinder, StreamBinder, through_port_forward
from sandpool.kube.pod_client import HttpPodClient
from sandpool.node.simulated_assembly import MAX_NODES
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.service.claims import Claims
from sandpool.service.service import DEFAULT_NAMESPACE, FIELD_MANAGER, Service

# Like that of the router: the same at every start, and not assigned to another service.
METRICS_ADDRESS = f"127.0.0.1:{METRICS_PORT}"


@click.command(cls=UpCommand, context_settings={"default_map": tuning.ONE_MACHINE})
@click.option("--detach", "-d", is_flag=True, help="Start in the background, and return when it serves.")
@click.option("--systemd-unit", is_flag=True, help="Print a systemd unit for this command line, and exit.")
@serving.server_options
@click.option(
    "--metrics-bind-address",
    default=METRICS_ADDRESS,
    show_default=True,
    help="Listen address for metrics; port 0 picks a free one, 0 alone disables it.",
)
@click.option(
    "--health-probe-bind-address", default="0", show_default=True, help="Listen address for probes, likewise."
)
@click.option(
    "--simulated-nodes",
    type=click.IntRange(0, MAX_NODES),
    default=0,
    show_default=True,
    help="Nodes on which pods become ready without running. For load tests and for trying the API.",
)
@click.option("--unlisted", is_flag=True, help="Do not let other commands find this home on their own.")
@click.option("--no-node", is_flag=True, help="Do not run pods on this machine.")
@node_options
@keep_option(True)
@click.option("--ephemeral", is_flag=True, help="End sandboxes on exit, which loses their files; as --keep=false.")
@routing.router_options
@dashboards.dashboard_options
@e2b_of_home.e2b_options
@tuning.tuning_flags
@observability.trace_option
@observability.log_options(TEXT)
@click.pass_context
def up(
    context: click.Context,
    /,
    detach: bool,
    systemd_unit: bool,
    metrics_bind_address: str,
    health_probe_bind_address: str,
    simulated_nodes: int,
    no_node: bool,
    ephemeral: bool,
    enable_tracing: bool,
    log_format: str,
    log_level: str,
    unlisted: bool,
    **options: Any,
) -> None:
    """Start the local home: sandboxes on this machine, with an API, controllers and a router.

    Runs until Ctrl-C or SIGTERM, or with --detach until `sandpool down`. Sandboxes and their files are kept for the
    next start, unless --ephemeral is given."""
    request = StartRequest.of(context)
    if systemd_unit:
        click.echo(unit(request.arguments, Path(os.getcwd()), is_root=os.geteuid() == 0), nl=False)
        return
    if not unlisted and (home := request.running()) is not None:
        request.check(home)
        click.echo(f"A home already runs, since {home.started:%Y-%m-%d %H:%M:%S} UTC.")
        click.echo(report(home))
        return
    if detach:
        request.start_in_background()
        return
    observability.begin(log_format, log_level)
    if not request.is_given("--port"):
        options["port"] = preferred_port(options["host"], options["port"])
    if not request.is_given("--router-bind-address"):
        options["router_bind_address"] = preferred(options["router_bind_address"])
    if not request.is_given("--metrics-bind-address"):
        metrics_bind_address = preferred(metrics_bind_address)
    options["keep"] = options["keep"] and not ephemeral
    server = serving.settings(**{name: options.pop(name) for name in serving.NAMES})
    process_options = ProcessOptions(
        metrics_address=address("--metrics-bind-address", metrics_bind_address),
        health_address=address("--health-probe-bind-address", health_probe_bind_address),
    )
    choice = Choice(simulated_nodes, not no_node, **{name: options.pop(name) for name in NAMES})
    way_in = {name: options.pop(name) for name in routing.NAMES}
    browsers = {name: options.pop(name) for name in dashboards.NAMES}
    browsers["replaceable"] = not request.is_given("--dashboard-bind-address")
    packages = {name: options.pop(name) for name in e2b_of_home.NAMES}
    packages["replaceable"] = not request.is_given("--e2b-bind-address")
    settings = tuning.settings(**options)
    tuning.warn_of_many_workers(settings)
    tracing = observability.traces(enable_tracing)
    announcement = Announcement(request.settings, listed=not unlisted)
    try:
        parts = (choice, way_in, browsers, packages, announcement)
        foreground.run(partial(_up, server, settings, process_options, tracing, *parts))
    finally:
        if tracing is not None:
            tracing.close()


async def _up(
    server: ServerOptions,
    settings: ControllerOptions,
    process_options: ProcessOptions,
    tracing: Tracing | None,
    choice: Choice,
    way_in: Mapping[str, Any],
    browsers: Mapping[str, Any],
    packages: Mapping[str, Any],
    announcement: Announcement,
    stopping: asyncio.Event,
) -> None:
    clock, metrics = SystemClock(), MetricsRegistry()
    announcement.step(f"opening the data in {server.data_dir}")
    daemon = Daemon(replace(server, nodeless=NODELESS), clock)
    with serving.complaints(server):
        await daemon.start()
    try:
        own = daemon.server.client(identities.CONTROLLERS).transport
        transport = MeasuredTransport(own, metrics, clock, daemon.server.address)
        # Reconciles are logged in the audit log, so one file has the whole timeline of a claim.
        process = ControllerProcess(
            transport,
            clock,
            Random(),
            settings,
            process_options,
            metrics=metrics,
            tracing=tracing,
            middleware=() if daemon.audit is None else (log_reconciles(daemon.audit, clock),),
            binder=_binder(daemon),
        )
        async with contextlib.AsyncExitStack() as stack:
            router_process = await stack.enter_async_context(routing.process(clock, way_in))
            announcement.step("preparing the node")
            running = await stack.enter_async_context(nodes(daemon.server, server.data_dir, choice))
            asyncio.get_running_loop().add_signal_handler(END_SANDBOXES, partial(setattr, running, "keep", False))
            announcement.step("starting the router")
            router = await stack.enter_async_context(routing.router(daemon, router_process, metrics, **way_in))
            announcement.step("starting the controllers")
            await stack.enter_async_context(_running(process))
            if await foreground.until(stopping, process.working.wait(), process.wait()):
                return
            await Claims(daemon.server.client(identities.CONTROLLERS), "").release_runs()
            gc_tuning.settle()
            metrics_url = _url(process.metrics_endpoint, "/metrics")
            dashboard = await stack.enter_async_context(dashboards.dashboard(clock, daemon, metrics_url, **browsers))
            service = Service(daemon.server.client(name=FIELD_MANAGER), daemon.server.pod_client(), DEFAULT_NAMESPACE)
            e2b = await stack.enter_async_context(e2b_of_home.endpoint(clock, service, daemon, **packages))
            home = _home(daemon, process, running.greeting, router, dashboard, e2b, clock)
            with announcement.made(home, server.kubeconfig) as sockets:
                parts = [process.wait, *running.parts, *([] if router is None else [router.router.wait])]
                async with gc_tuning.tidied(clock), _serving_runs(daemon, sockets):
                    await foreground.until(stopping, *(part() for part in parts))
            announcement.stopping(running.pods(), keep=running.keep)
    finally:
        await daemon.stop()
    announcement.stopped(server.data_dir)


def _binder(daemon: Daemon) -> Binder:
    """Hand variables to sandboxes of this process directly, and to those of other nodes through the API."""
    elsewhere = StreamBinder(through_port_forward(HttpPodClient(kubeconfigs.load(daemon.kubeconfig))))
    return LocalBinder(lambda: daemon.server.pod_access, elsewhere)


@contextlib.asynccontextmanager
async def _running(process: ControllerProcess) -> AsyncIterator[None]:
    try:
        await process.start()
    except OSError as error:
        addresses = f"{process.metrics_endpoint.address} or {process.health_endpoint.address}"
        raise click.ClickException(f"cannot serve metrics and health at {addresses}: {error.strerror}") from None
    try:
        yield
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def _serving_runs(daemon: Daemon, sockets: Iterable[socket.socket]) -> AsyncIterator[None]:
    """Serve `sandpool run` for the users who have the kubeconfig of the administrator, with the rights of that."""
    client, pods = daemon.server.client(name=FIELD_MANAGER), daemon.server.pod_client(name=FIELD_MANAGER)
    caller = sudo_caller()
    users = {0, os.geteuid(), *([] if caller is None else [caller.uid])}
    runs = RunServer(lambda namespace: Service(client, pods, namespace or DEFAULT_NAMESPACE), users)
    async with runs.serving(sockets):
        yield
    await pods.close()
    await client.close()


def _home(
    daemon: Daemon,
    process: ControllerProcess,
    node: str,
    router: routing.RunningRouter | None,
    dashboard: dashboards.RunningDashboard | None,
    e2b: e2b_of_home.RunningE2b | None,
    clock: SystemClock,
) -> Home:
    return Home(
        name="",
        process=ProcessIdentity.current(),
        url=daemon.url,
        kubeconfig=daemon.kubeconfig.absolute(),
        router_url=None if router is None else router.router.url,
        router_token_file=None if router is None else router.access.token_file,
        metrics_url=_url(process.metrics_endpoint, "/metrics"),
        data_dir=Path(os.path.realpath(daemon.settings.data_dir)),
        log=Path(log) if (log := os.environ.get(LOG_VARIABLE)) else None,
        node=node,
        settings={},
        version=__version__,
        started=clock.now(),
        dashboard_url=None if dashboard is None else dashboard.url,
        dashboard_token_file=None if dashboard is None else dashboard.token_file.absolute(),
        e2b_url=None if e2b is None else e2b.url,
        e2b_key_file=None if e2b is None else e2b.key_file.absolute(),
        audit_log=None if daemon.settings.audit_log is None else daemon.settings.audit_log.absolute(),
    )


def _url(endpoint: HealthServer, path: str) -> str | None:
    if not endpoint.port:
        return None
    host = endpoint.address.rpartition(":")[0] or "127.0.0.1"
    return f"http://{host}:{endpoint.port}{path}"
