"""``sandpool up``: run the embedded API, the controllers, a router and nodes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from random import Random
from typing import Any

import click

from sandpool.cli import foreground, identities, observability, routing, serving, tuning
from sandpool.cli.addresses import address
from sandpool.cli.nodes import NAMES, Choice, node_options, nodeless, nodes
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.health import HealthServer
from sandpool.engine.logging import TEXT
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.tracing import Tracing
from sandpool.engine.transports import MeasuredTransport
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
    type=click.IntRange(0, 250),
    default=0,
    show_default=True,
    help="Nodes on which pods become ready without running. For load tests and for trying the API.",
)
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
        foreground.run(partial(_up, server, settings, process_options, tracing, choice, way_in))
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
    stopping: asyncio.Event,
) -> None:
    clock, metrics = SystemClock(), MetricsRegistry()
    daemon = Daemon(replace(server, nodeless=nodeless(choice)), clock)
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
            click.echo(_greeting(daemon, process, running.greeting, router))
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
    if not endpoint.port:
        return ""
    host = endpoint.address.rpartition(":")[0] or "127.0.0.1"
    return f"{what} http://{host}:{endpoint.port}{path}"
