"""``sandpool up``: everything on this machine, in one process: the embedded API, the controllers, and nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import click

from sandpool.cli import foreground, serving, tuning
from sandpool.controllers.process import Process, Surroundings
from sandpool.controllers.run import Settings
from sandpool.engine import logs
from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics import Metrics
from sandpool.engine.metrics_transport import MeasuredTransport
from sandpool.server import memory
from sandpool.server.app import ApiServer
from sandpool.server.daemon import Daemon
from sandpool.server.daemon import Settings as ServerSettings
from sandpool.testing.node import SimulatedNode


@click.command()
@serving.server_options
@click.option("--metrics-bind-address", default="127.0.0.1:8080", show_default=True, help="For Prometheus; 0: nowhere.")
@click.option("--health-probe-bind-address", default="0", show_default=True, help="For probes; 0: nowhere.")
@click.option(
    "--simulated-nodes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Nodes that run nothing: pods become ready at once. For load tests and for trying out the API.",
)
@tuning.tuning_flags
@serving.log_format(logs.TEXT)
def up(
    metrics_bind_address: str,
    health_probe_bind_address: str,
    simulated_nodes: int,
    log_format: str,
    **options: Any,
) -> None:
    """Run the embedded Kubernetes API and the controllers until told to stop (Ctrl-C or SIGTERM)."""
    logs.configure(log_format)
    server = serving.settings(**{name: options.pop(name) for name in serving.NAMES})
    surroundings = Surroundings(metrics_bind_address, health_probe_bind_address)
    with serving.complaints(server):
        foreground.run(partial(_up, server, tuning.settings(**options), surroundings, simulated_nodes))


async def _up(
    server: ServerSettings, settings: Settings, surroundings: Surroundings, nodes: int, stopping: asyncio.Event
) -> None:
    clock, random, metrics = SystemClock(), Random(), Metrics()
    daemon = Daemon(server, clock)
    await daemon.start()
    try:
        transport = MeasuredTransport(daemon.server.client().transport, metrics, clock, daemon.server.address)
        process = Process(transport, clock, random, settings, surroundings, metrics=metrics)
        await process.start()
        try:
            async with _nodes(daemon.server, nodes):
                await process.working.wait()
                memory.settle()
                click.echo(_greeting(daemon, process, nodes))
                await foreground.until(stopping, process.wait())
        finally:
            await process.stop()
    finally:
        await daemon.stop()


@contextlib.asynccontextmanager
async def _nodes(server: ApiServer, count: int) -> AsyncIterator[None]:
    """Whatever runs the pods, for the length of the block."""
    names = [f"simulated-{number}" for number in range(1, count + 1)]
    nodes = [SimulatedNode(server.client(name=name), server.clock, name=name) for name in names]
    running = [asyncio.create_task(node.run(), name=node.name) for node in nodes]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _greeting(daemon: Daemon, process: Process, nodes: int) -> str:
    return f"serving {daemon.url}   export KUBECONFIG={daemon.kubeconfig}"
