from __future__ import annotations

from sandpool.api import metrics
from sandpool.api.metrics import Metric


def test_metric_names_labels_and_buckets_are_those_of_the_go_implementation() -> None:
    found = {metric.name: metric for metric in vars(metrics).values() if isinstance(metric, Metric)}
    assert {name: (metric.kind, metric.labels) for name, metric in found.items()} == {
        "agent_sandbox_claim_startup_latency_ms": ("histogram", ("launch_type", "sandbox_template")),
        "agent_sandbox_claim_controller_startup_latency_ms": ("histogram", ("launch_type", "sandbox_template")),
        "agent_sandbox_client_claim_startup_latency_ms": ("histogram", ("launch_type", "sandbox_template")),
        "agent_sandbox_creation_latency_ms": ("histogram", ("namespace", "launch_type", "sandbox_template")),
        "agent_sandbox_claim_creation_total": (
            "counter",
            ("namespace", "sandbox_template", "launch_type", "warmpool_name", "pod_condition", "created_by"),
        ),
        "agent_sandboxes": (
            "gauge",
            ("namespace", "ready_condition", "expired", "launch_type", "sandbox_template", "owned_by", "created_by"),
        ),
        "agent_sandbox_build_info": (
            "gauge",
            ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
        ),
    }
    claim = (100, 250, 500, 750, 1000, 1250, 1500, 2000, 2500, 5000, 10000, 30000, 60000, 120000, 240000)
    creation = (50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000, 240000, 300000, 600000)
    for name, metric in found.items():
        if metric.kind == "histogram":
            assert metric.buckets == (creation if "creation" in name else claim)
        else:
            assert metric.buckets == ()
