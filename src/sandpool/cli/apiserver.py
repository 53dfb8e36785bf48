"""``sandpool apiserver``: serve our kinds as an aggregated API server of a cluster, with all controllers."""

from __future__ import annotations

import asyncio
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
from sandpool.controllers.middleware import log_reconciles
from sandpool.controllers.options import ControllerOptions, ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaseLost
from sandpool.engine.logging import JSON
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.ratelimit import RateLimiter
from sandpool.engine.transports import MeasuredTransport
from sandpool.install.names import APISERVER, APISERVER_DATA, APISERVER_PORT, LEASE
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.connection import Connection
from sandpool.kube.http import HttpTransport
from sandpool.kube.late_binding import StreamBinder, through_port_forward
from sandpool.kube.pod_client import HttpPodClient
from sandpool.server.aggregated.aggregated_server import ServingOptions
from sandpool.server.aggregated.process import AggregatedProcess, ApiServerOptions
from sandpool.server.aggregated.volume import OVERRIDE, WrongVolume
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.audit import AuditLog
from sandpool.server.store.journal import StoreDamaged, StoreInUse


@dataclass(frozen=True, slots=True)
class _Process:
    """The parts of the process around the server and the controllers."""

    connection: Connection
    metrics_address: str
    qps: float  # 0 or less: no limit
    burst: int
    tracing: bool
    pass_log: Path | None
    audit_log: Path | None


@click.command(cls=tuning.TunedCommand)
@connection_options
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=APISERVER_DATA,
    show_default=True,
    help="Directory of all data, on a volume that outlives the pod.",
)
@click.option("--bind-address", "host", default="", show_default="all", help="Listen address of the API.")
@click.option(
    "--secure-port",
    type=click.IntRange(0, 65535),
    default=APISERVER_PORT,
    show_default=True,
    help="Port of the API; 0 picks a free one.",
)
@click.option(
    "--service-name",
    default=APISERVER,
    show_default=True,
    help="Service in the namespace of the lease by which kube-apiserver reaches this server.",
)
@click.option(
    OVERRIDE,
    "accept_lost",
    is_flag=True,
    help="Serve although sandboxes of the cluster are not on the volume.",
)
@click.option(
    "--audit-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the audit log, one JSON object per request.",
)
@address_options
@lease_options
@rate_options
@tuning.tuning_flags
@observability.trace_option
@observability.pass_option
@observability.log_options(JSON)
@click.version_option(__version__, prog_name="sandpool")
def apiserver(
    kubeconfig: Path | None,
    context: str | None,
    data_dir: Path,
    host: str,
    secure_port: int,
    service_name: str,
    accept_lost: bool,
    audit_log: Path | None,
    metrics_bind_address: str,
    health_probe_bind_address: str,
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
    """Serve sandboxes, claims, pools and templates behind a kube-apiserver, and run the controllers.

    The APIServices of the cluster lead to this process: `sandpool install --storage aggregated` sets everything up."""
    observability.begin(log_format, log_level)
    try:
        connection = kubeconfigs.load(kubeconfig, context)
        terms = lease_timing(leader_elect_lease_duration, leader_elect_renew_deadline, leader_elect_retry_period)
    except (kubeconfigs.KubeconfigError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    namespace = leader_election_namespace or connection.namespace
    names = (f"{service_name}.{namespace}.svc",)
    options = ApiServerOptions(
        ServingOptions(data_dir.absolute(), host, secure_port, names, namespace, accept_lost),
        LEASE,
        namespace,
        health_address=address("--health-probe-bind-address", health_probe_bind_address),
        terms=terms,
    )
    process = _Process(
        connection,
        address("--metrics-bind-address", metrics_bind_address),
        kube_api_qps,
        kube_api_burst,
        enable_tracing,
        pass_log,
        audit_log,
    )
    settings = tuning.settings(**flags)
    tuning.warn_of_many_workers(settings)
    try:
        foreground.run(partial(_serve, process, options, settings))
    except LeaseLost as lost:
        raise click.ClickException(f"lost the leader lease; exiting: {lost}") from None
    except (WrongVolume, StoreInUse, StoreDamaged, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None


async def _serve(
    options: _Process, server_options: ApiServerOptions, settings: ControllerOptions, stopping: asyncio.Event
) -> None:
    clock, metrics = SystemClock(), MetricsRegistry()
    host = urlsplit(options.connection.server).netloc
    transport = MeasuredTransport(HttpTransport(options.connection), metrics, clock, host)
    # A transport of its own, so that a lease renewal never queues behind a burst of writes.
    voting = MeasuredTransport(HttpTransport(options.connection), metrics, clock, host)
    tracing = observability.traces(options.tracing)
    reconcile_log = observability.reconcile_log(options.pass_log)
    audit = AuditLog(options.audit_log) if options.audit_log is not None else None
    process = AggregatedProcess(
        transport,
        voting,
        clock,
        Random(),
        server_options,
        settings,
        ProcessOptions(
            metrics_address=options.metrics_address,
            rate=RateLimiter(options.qps, options.burst, clock) if options.qps > 0 else None,
        ),
        metrics=metrics,
        tracing=tracing,
        middleware=() if reconcile_log is None else (log_reconciles(reconcile_log, clock),),
        audit=audit,
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
        if audit is not None:
            audit.close()
        if reconcile_log is not None:
            await asyncio.to_thread(reconcile_log.close)
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
