"""Names, types, labels and buckets of the exported metrics, compared with a recorded list.

The list holds what the Go implementation of this API exports: its own metrics, and those of controller-runtime 0.24.1
and client-go 0.36.3. The latter are those in a scrape of a manager of these versions with leader election, the default
priority queue and one controller whose reconciles succeed, fail, panic and requeue. The exception is
``leader_election_slowpath_total``: a scrape does not show it before it is counted for the first time.

Dashboards and alerts select metrics by these names and labels, so a change here breaks users.
"""

from __future__ import annotations

from itertools import chain

import pytest

from sandpool.api import metrics as api_metrics
from sandpool.api.metrics import Metric
from sandpool.engine import transports
from sandpool.engine.metrics import controller as controller_metrics
from sandpool.engine.metrics import process as process_metrics
from sandpool.engine.workqueue import metrics as queue_metrics

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

_MODULES = (api_metrics, controller_metrics, process_metrics, queue_metrics, transports)
DEFINED = {
    value.name: value
    for value in chain.from_iterable(vars(module).values() for module in _MODULES)
    if isinstance(value, Metric)
}
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
}


@pytest.mark.parametrize(("name", "kind", "labels", "buckets"), RECORDED, ids=[each[0] for each in RECORDED])
def test_metric_is_exported_as_recorded(
    name: str, kind: str, labels: tuple[str, ...], buckets: tuple[float, ...]
) -> None:
    metric = DEFINED[name]
    assert (metric.kind, metric.labels) == (kind, labels)
    assert metric.buckets == pytest.approx(buckets, rel=1e-12)


def test_no_other_metric_is_exported() -> None:
    assert set(DEFINED) == {each[0] for each in RECORDED} | OURS
    assert not ABSENT & set(DEFINED), "remove it from the list of what does not exist here"
