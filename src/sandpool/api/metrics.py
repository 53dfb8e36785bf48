"""Metrics that the Go original has, too: names, labels and buckets that dashboards depend on. Our own are defined where
they are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

_CLAIM_BUCKETS: Final = (
    *(100, 250, 500, 750, 1000, 1250, 1500, 2000, 2500),
    *(5000, 10000, 30000, 60000, 120000, 240000),
)
_CREATION_BUCKETS: Final = (
    *(50, 100, 250, 500, 1000, 2500, 5000),
    *(10000, 30000, 60000, 120000, 240000, 300000, 600000),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. ``buckets`` are the upper bounds of a histogram, in the unit at the end of the name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    description: str
    buckets: tuple[float, ...] = ()


_CLAIM_LABELS: Final = ("launch_type", "sandbox_template")

CLAIM_STARTUP_LATENCY: Final = Metric(
    "agent_sandbox_claim_startup_latency_ms",
    "histogram",
    _CLAIM_LABELS,
    "Time from the admission of a claim until it was ready.",
    _CLAIM_BUCKETS,
)
CLAIM_CONTROLLER_STARTUP_LATENCY: Final = Metric(
    "agent_sandbox_claim_controller_startup_latency_ms",
    "histogram",
    _CLAIM_LABELS,
    "Time from the controller's first observation of a claim until it was ready.",
    _CLAIM_BUCKETS,
)
CLIENT_CLAIM_STARTUP_LATENCY: Final = Metric(
    "agent_sandbox_client_claim_startup_latency_ms",
    "histogram",
    _CLAIM_LABELS,
    "Time from the client's request for a claim until it was ready.",
    _CLAIM_BUCKETS,
)
CREATION_LATENCY: Final = Metric(
    "agent_sandbox_creation_latency_ms",
    "histogram",
    ("namespace", "launch_type", "sandbox_template"),
    "Time from the creation of a sandbox until it was ready.",
    _CREATION_BUCKETS,
)
CLAIM_CREATIONS: Final = Metric(
    "agent_sandbox_claim_creation_total",
    "counter",
    ("namespace", "sandbox_template", "launch_type", "warmpool_name", "pod_condition", "created_by"),
    "Total sandboxes assigned to claims.",
)
SANDBOXES: Final = Metric(
    "agent_sandboxes",
    "gauge",
    ("namespace", "ready_condition", "expired", "launch_type", "sandbox_template", "owned_by", "created_by"),
    "Current number of sandboxes.",
)
BUILD_INFO: Final = Metric(
    "agent_sandbox_build_info",
    "gauge",
    ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
    "Always 1; the labels describe the running build.",
)

# Label values for unknown or absent data.
UNKNOWN_LAUNCH_TYPE: Final = "unknown"
UNKNOWN_TEMPLATE: Final = "unknown"  # of agent_sandboxes
UNKNOWN_CLAIM_TEMPLATE: Final = "__unknown__"  # of the metrics about claims
POD_READY: Final = "ready"
POD_NOT_READY: Final = "not_ready"
WITHOUT_OWNER: Final = "None"
