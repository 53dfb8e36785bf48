"""``sandpool up``: run the embedded API, the controllers, a router and nodes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import click

from sandpool import __version__
from sandpool.cli import foreground, identities, observability, routing, serving, tuning
from sandpool.cli.addresses import address
from sandpool.cli.nodes import NAMES, NODELESS, Choice, node_options, nodes
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.health import HealthServer
from sandpool.engine.logging import TEXT
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import MeasuredTransport
from sandpool.home import discovery
from sandpool.home.discovery import Home
from sandpool.home.notification import Notifier
from sandpool.home.process import ProcessIdentity
from sandpool.home.start import LOG_VARIABLE
from sandpool.node.simulated_assembly import MAX_NODES
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.daemon import Daemon, ServerOptions

_LOCAL = "127.0.0.1:0"


@click.command(cls=tuning.TunedCommand, context_settings={"default_map": tuning.ONE_MACHINE})
@serving.server_options
@click.option(
    "--metrics-bind-address",
    default=_LOCAL,
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
@routing.router_options
@tuning.tuning_flags
@observability.trace_option
@observability.log_options(TEXT)
def up(
    metrics_bind_address: str,
    health_probe_bind_address: str,
    simulated_nodes: int,
    no_node: bool,
    enable_tracing: bool,
    log_format: str,
    log_level: str,
    unlisted: bool,
    **options: Any,
) -> None:
    """Run the embedded Kubernetes API, the controllers and sandboxes on this machine until Ctrl-C or SIGTERM."""
    observability.begin(log_format, log_level)
    server = serving.settings(**{name: options.pop(name) for name in serving.NAMES})
    process_options = ProcessOptions(
        metrics_address=address("--metrics-bind-address", metrics_bind_address),
        health_address=address("--health-probe-bind-address", health_probe_bind_address),
    )
    choice = Choice(simulated_nodes, not no_node, **{name: options.pop(name) for name in NAMES})
    way_in = {name: options.pop(name) for name in routing.NAMES}
    settings = tuning.settings(**options)
    tuning.warn_of_many_workers(settings)
    tracing = observability.traces(enable_tracing)
    try:
        foreground.run(partial(_up, server, settings, process_options, tracing, choice, way_in, unlisted))
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
    unlisted: bool,
    stopping: asyncio.Event,
) -> None:
    clock, metrics = SystemClock(), MetricsRegistry()
    daemon = Daemon(replace(server, nodeless=NODELESS), clock)
    with serving.complaints(server):
        await daemon.start()
    try:
        own = daemon.server.client(identities.CONTROLLERS).transport
        transport = MeasuredTransport(own, metrics, clock, daemon.server.address)
        # Reconciles are logged in the audit log, so one file has the whole timeline of a claim.
        process = ControllerProcess(
            transport, clock, Random(), settings, process_options, metrics=metrics, tracing=tracing, passes=daemon.audit
        )
        async with (
            nodes(daemon.server, server.data_dir, choice) as running,
            routing.router(daemon.server, metrics, daemon.kubeconfig, **way_in) as router,
            _running(process),
        ):
            if await foreground.until(stopping, process.working.wait(), process.wait()):
                return
            gc_tuning.settle()
            home = _home(daemon, process, router, clock)
            with _announced(home, unlisted):
                click.echo(_greeting(daemon, process, running.greeting, router))
                Notifier().ready(f"serving {home.url}")
                parts = [process.wait, *running.parts, *([] if router is None else [router.router.wait])]
                async with gc_tuning.tidied(clock):
                    await foreground.until(stopping, *(part() for part in parts))
    finally:
        await daemon.stop()


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


def _home(daemon: Daemon, process: ControllerProcess, router: routing.RunningRouter | None, clock: SystemClock) -> Home:
    log = os.environ.get(LOG_VARIABLE)
    return Home(
        name="",
        process=ProcessIdentity.current(),
        url=daemon.url,
        kubeconfig=daemon.kubeconfig.absolute(),
        router_url=None if router is None else router.router.url,
        router_token_file=None if router is None else router.access.token_file,
        metrics_url=_url(process.metrics_endpoint, "/metrics"),
        data_dir=Path(os.path.realpath(daemon.settings.data_dir)),
        log=None if log is None else Path(log),
        version=__version__,
        started=clock.now(),
    )


@contextlib.contextmanager
def _announced(home: Home, unlisted: bool) -> Iterator[Home]:
    """Let other commands find the home, unless it is unlisted. Without write access it serves all the same."""
    with contextlib.ExitStack() as stack:
        if not unlisted:
            try:
                home = stack.enter_context(discovery.announced(home))
            except OSError as error:
                click.echo(f"warning: other commands need --kubeconfig to find this home: {error}", err=True)
        yield home


def _greeting(daemon: Daemon, process: ControllerProcess, nodes: str, router: routing.RunningRouter | None) -> str:
    """Return the addresses and the next command; the first line is that of ``sandpool server``."""
    lines = [f"serving {daemon.url}   export KUBECONFIG={daemon.kubeconfig}"]
    lines += [_shown("metrics", process.metrics_endpoint, "/metrics")]
    lines += [_shown("health", process.health_endpoint, "/readyz")]
    lines += [nodes, routing.greeting(router)]
    lines.append(f"try kubectl apply -f {files('sandpool.cli') / 'manifests' / 'quickstart.yaml'}")
    lines.append(routing.example(router))
    return "\n".join(line for line in lines if line)


def _shown(what: str, endpoint: HealthServer, path: str) -> str:
    url = _url(endpoint, path)
    return "" if url is None else f"{what} {url}"


def _url(endpoint: HealthServer, path: str) -> str | None:
    if not endpoint.port:
        return None
    host = endpoint.address.rpartition(":")[0] or "127.0.0.1"
    return f"http://{host}:{endpoint.port}{path}"
