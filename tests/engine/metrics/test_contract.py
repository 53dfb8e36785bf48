"""Names, types, labels and buckets of what a controller process exports, compared with a recorded list.

The exposition is that of a process with leader election that has served a claim, as ``sandpool controller`` wires it.
The list holds what the Go implementation of this API exports: its own metrics, and those of controller-runtime 0.24.1
and client-go 0.36.3. The latter are those in a scrape of a manager of these versions with leader election, the default
priority queue and one controller whose reconciles succeed, fail, panic and requeue. The exception is
``leader_election_slowpath_total``: a scrape does not show it before it is counted for the first time.

Dashboards and alerts select metrics by these names and labels, so a change here breaks users.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random

import aiohttp
import pytest

from sandpool.api import labels as names
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.controllers.claim.reporter import precise
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.options import ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaderElector
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.engine.transports import MeasuredTransport
from sandpool.kube.client import Client
from sandpool.node.simulated import SimulatedNode
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.support.exposition import Exported, exported

_CLAIM = (100, 250, 500, 750, 1000, 1250, 1500, 2000, 2500, 5000, 10000, 30000, 60000, 120000, 240000)
_CREATION = (50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000, 240000, 300000, 600000)
_RECONCILE = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60),
)
_QUEUE = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
_LATENCY = ("launch_type", "sandbox_template")

# name, type, labels, buckets
RECORDED: list[tuple[str, str, tuple[str, ...], tuple[float, ...]]] = [
    ("agent_sandbox_claim_startup_latency_ms", "histogram", _LATENCY, _CLAIM),
    ("agent_sandbox_claim_controller_startup_latency_ms", "histogram", _LATENCY, _CLAIM),
    ("agent_sandbox_client_claim_startup_latency_ms", "histogram", _LATENCY, _CLAIM),
    ("agent_sandbox_creation_latency_ms", "histogram", ("namespace", *_LATENCY), _CREATION),
    (
        "agent_sandbox_claim_creation_total",
        "counter",
        ("namespace", "sandbox_template", "launch_type", "warmpool_name", "pod_condition", "created_by"),
        (),
    ),
    (
        "agent_sandboxes",
        "gauge",
        ("namespace", "ready_condition", "expired", "launch_type", "sandbox_template", "owned_by", "created_by"),
        (),
    ),
    (
        "agent_sandbox_build_info",
        "gauge",
        ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
        (),
    ),
    ("controller_runtime_reconcile_total", "counter", ("controller", "result"), ()),
    ("controller_runtime_reconcile_errors_total", "counter", ("controller",), ()),
    ("controller_runtime_terminal_reconcile_errors_total", "counter", ("controller",), ()),
    ("controller_runtime_reconcile_panics_total", "counter", ("controller",), ()),
    ("controller_runtime_reconcile_timeouts_total", "counter", ("controller",), ()),
    ("controller_runtime_reconcile_time_seconds", "histogram", ("controller",), _RECONCILE),
    ("controller_runtime_max_concurrent_reconciles", "gauge", ("controller",), ()),
    ("controller_runtime_active_workers", "gauge", ("controller",), ()),
    ("workqueue_depth", "gauge", ("name", "controller", "priority"), ()),
    ("workqueue_adds_total", "counter", ("name", "controller"), ()),
    ("workqueue_queue_duration_seconds", "histogram", ("name", "controller"), _QUEUE),
    ("workqueue_work_duration_seconds", "histogram", ("name", "controller"), _QUEUE),
    ("workqueue_unfinished_work_seconds", "gauge", ("name", "controller"), ()),
    ("workqueue_longest_running_processor_seconds", "gauge", ("name", "controller"), ()),
    ("workqueue_retries_total", "counter", ("name", "controller"), ()),
    ("rest_client_requests_total", "counter", ("code", "method", "host"), ()),
    ("leader_election_master_status", "gauge", ("name",), ()),
    ("leader_election_slowpath_total", "counter", ("name",), ()),
]

# Metrics in that scrape that are about webhooks and their certificates, which do not exist here.
ABSENT = {
    "certwatcher_read_certificate_errors_total",
    "certwatcher_read_certificate_total",
    "controller_runtime_conversion_webhook_panics_total",
    "controller_runtime_webhook_panics_total",
}
# Metrics of our own, which the Go implementation does not have.
OURS = {
    "rest_client_request_duration_seconds",
    "sandpool_reflector_seconds_since_news",
    "sandpool_events_written_total",
    "sandpool_events_dropped_total",
    "sandpool_sandbox_state_losses_total",
}
CONTROLLERS = {"sandbox", "sandboxclaim", "sandboxtemplate", "sandboxwarmpool"}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Exported]:
    return asyncio.run(_scrape(tmp_path_factory.mktemp("contract")))


async def _scrape(directory: Path) -> Mapping[str, Exported]:
    """Everything that a process exports after it has served one claim."""
    server, clock, metrics = ApiServer(directory), SystemClock(), MetricsRegistry()
    await server.start()
    transport = MeasuredTransport(server.client().transport, metrics, clock, "localhost")
    election = LeaderElector(Client(transport), "lease", "default", "me", clock, Random(1))
    process = ControllerProcess(
        transport,
        clock,
        Random(1),
        process_options=ProcessOptions("127.0.0.1:0", "127.0.0.1:0"),
        metrics=metrics,
        election=election,
    )
    node = asyncio.create_task(SimulatedNode(server.client(), clock).run())
    await process.start()
    try:
        await process.working.wait()
        await _serve_a_claim(server.client(name="users"), precise(clock.now()))
        # The metrics of a claim are recorded just after a client can see it Ready.
        return await until(lambda: _complete(process.metrics_endpoint.port))
    finally:
        await process.stop()
        node.cancel()
        await asyncio.gather(node, return_exceptions=True)
        await server.stop()


async def _serve_a_claim(client: Client, now: str) -> None:
    """Create a claim with all annotations that latencies are measured from, and wait until it is Ready."""
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await client.create(SANDBOX_TEMPLATE, template, "default")
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 1, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "default")
    began = {names.WEBHOOK_FIRST_OBSERVED_AT: now, names.CLIENT_FIRST_REQUESTED_AT: now}
    claim = new(SANDBOX_CLAIM, "mine", metadata={"annotations": began}, spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")

    async def is_served() -> bool:
        return is_ready(await client.get(SANDBOX_CLAIM, "mine", "default"))

    await until(is_served)


async def _complete(port: int) -> Mapping[str, Exported]:
    """A scrape that has the latencies of the claim; empty before."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        found = exported(await answer.text())
    return found if found["agent_sandbox_claim_startup_latency_ms"].values else {}


@pytest.mark.parametrize(("name", "kind", "labels", "buckets"), RECORDED, ids=[each[0] for each in RECORDED])
def test_metric_is_exported_as_recorded(
    scraped: Mapping[str, Exported], name: str, kind: str, labels: tuple[str, ...], buckets: tuple[float, ...]
) -> None:
    metric = scraped[name]
    assert (metric.kind, metric.labels) == (kind, frozenset(labels))
    assert metric.buckets == pytest.approx((*buckets, math.inf) if buckets else (), rel=1e-12)


def test_no_other_metric_is_exported(scraped: Mapping[str, Exported]) -> None:
    found = {name for name in scraped if not name.startswith(("process_", "python_"))}
    assert found == {each[0] for each in RECORDED} | OURS
    assert not ABSENT & set(scraped), "remove it from the list of what does not exist here"


def test_controllers_have_the_names_that_dashboards_select(scraped: Mapping[str, Exported]) -> None:
    assert scraped["controller_runtime_reconcile_total"].values["controller"] == CONTROLLERS
    assert scraped["workqueue_depth"].values["name"] == CONTROLLERS
