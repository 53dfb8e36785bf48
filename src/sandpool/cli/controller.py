"""``sandpool controller``: run the controllers for a Kubernetes cluster in the foreground."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import click

from sandpool import __version__
from sandpool.cli import foreground, observability, tuning
from sandpool.cli.addresses import address
from sandpool.cli.cluster_process import (
    address_options,
    connection_options,
    lease_options,
    lease_timing,
    rate_options,
)
from sandpool.cli.flags import switch
from sandpool.cli.go_flags import accept_go_flags, warn
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.middleware import log_reconciles
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaderElector, LeaseLost, LeaseTiming, unique_identity
from sandpool.engine.logging import JSON
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import RateLimiter
from sandpool.engine.transports import MeasuredTransport
from sandpool.install.names import LEASE
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.http import HttpTransport
from sandpool.kube.late_binding import StreamBinder, through_port_forward
from sandpool.kube.pod_client import HttpPodClient
from sandpool.server.serving import gc_tuning

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the process, as opposed to those of the controllers."""

    connection: Connection
    metrics_address: str
    health_address: str
    qps: float  # 0 or less: no limit
    burst: int
    terms: LeaseTiming | None  # None: no leader election
    election_namespace: str
    tracing: bool
    pass_log: Path | None


@click.command(cls=tuning.TunedCommand)
@connection_options
@address_options
@switch("--leader-elect", True, "Work only while holding the leader lease.")
@lease_options
@rate_options
@tuning.tuning_flags
@observability.trace_option
@observability.pass_option
@observability.log_options(JSON)
@accept_go_flags
@click.version_option(__version__, prog_name="sandpool")
def controller(
    kubeconfig: Path | None,
    context: str | None,
    metrics_bind_address: str,
    health_probe_bind_address: str,
    leader_elect: bool,
    leader_election_namespace: str,
    leader_elect_lease_duration: float,
    leader_elect_renew_deadline: float,
    leader_elect_retry_period: float,
    kube_api_qps: float,
    kube_api_burst: int,
    enable_tracing: bool,
    pass_log: Path | None,
    log_format: str,
    log_level: str,
    **flags: Any,
) -> None:
    """Run the controllers against a Kubernetes API until Ctrl-C or SIGTERM."""
    observability.begin(log_format, log_level)
    warn()
    try:
        connection = kubeconfigs.load(kubeconfig, context)
        terms = lease_timing(leader_elect_lease_duration, leader_elect_renew_deadline, leader_elect_retry_period)
    except (kubeconfigs.KubeconfigError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    options = Options(
        connection=connection,
        metrics_address=address("--metrics-bind-address", metrics_bind_address),
        health_address=address("--health-probe-bind-address", health_probe_bind_address),
        qps=kube_api_qps,
        burst=kube_api_burst,
        terms=terms if leader_elect else None,
        election_namespace=leader_election_namespace or connection.namespace,
        tracing=enable_tracing,
        pass_log=pass_log,
    )
    settings = tuning.settings(**flags)
    tuning.warn_of_many_workers(settings)
    _warn_of_throttling(options, settings)
    try:
        foreground.run(partial(_control, options, settings))
    except LeaseLost as lost:
        raise click.ClickException(f"lost the leader lease; exiting: {lost}") from None
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _warn_of_throttling(options: Options, settings: ControllerOptions) -> None:
    if options.qps > 0 and (workers := settings.total_workers) > options.burst:
        _log.warning(
            "%d workers share --kube-api-burst=%d and --kube-api-qps=%g: the rate limit will delay most of them",
            workers,
            options.burst,
            options.qps,
        )


async def _control(options: Options, settings: ControllerOptions, stopping: asyncio.Event) -> None:
    clock, rng, metrics = SystemClock(), Random(), MetricsRegistry()
    host = urlsplit(options.connection.server).netloc
    transport = MeasuredTransport(HttpTransport(options.connection), metrics, clock, host)
    # A transport of its own, so that a lease renewal never queues behind a burst of writes.
    voting = MeasuredTransport(HttpTransport(options.connection), metrics, clock, host)
    tracing = observability.traces(options.tracing)
    reconcile_log = observability.reconcile_log(options.pass_log)
    election = None
    if options.terms is not None:
        election = LeaderElector(
            Client(voting), LEASE, options.election_namespace, unique_identity(), clock, rng, terms=options.terms
        )
    process_options = ProcessOptions(
        metrics_address=options.metrics_address,
        health_address=options.health_address,
        rate=RateLimiter(options.qps, options.burst, clock) if options.qps > 0 else None,
    )
    process = ControllerProcess(
        transport,
        clock,
        rng,
        settings,
        process_options,
        metrics=metrics,
        election=election,
        tracing=tracing,
        middleware=() if reconcile_log is None else (log_reconciles(reconcile_log, clock),),
        binder=StreamBinder(through_port_forward(HttpPodClient(options.connection))),
    )
    try:
        await process.start()
        gc_tuning.settle()
        try:
            await foreground.until(stopping, process.wait())
        finally:
            await process.stop()
    finally:
        await transport.close()
        await voting.close()
        if reconcile_log is not None:
            await asyncio.to_thread(reconcile_log.close)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
