"""Check the Prometheus expressions of alerts and dashboards against the metrics that are exported."""

from __future__ import annotations

import re
from types import ModuleType

from sandpool.api import metrics as api_metrics
from sandpool.api.metrics import Metric
from sandpool.engine import transports
from sandpool.engine.metrics import controller as controller_metrics
from sandpool.engine.workqueue import metrics as queue_metrics
from sandpool.router import metrics as router_metrics

MODULES: tuple[ModuleType, ...] = (
    api_metrics,
    controller_metrics,
    queue_metrics,
    transports,
    router_metrics,
)
# Of Prometheus itself, of its client library, and words of its language.
KNOWN = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
ADDED = {"le", "pod", "service"}  # labels that collecting adds


def series() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for module in MODULES:
        for each in vars(module).values():
            if isinstance(each, Metric):
                suffixes = ("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",)
                found.update({each.name + suffix: each for suffix in suffixes})
    return found


def assert_uses_exported_metrics(title: str, expression: str) -> None:
    """Fail unless ``expression`` uses only metrics that are exported, with the labels that they have."""
    known = series()
    words = {word for word in re.findall(r"[a-z_]+", re.sub(r'"[^"]*"', "", expression)) if "_" in word}
    asked = words - {"histogram_quantile"} - KNOWN
    labels = {
        label.strip()
        for listed in re.findall(r"\bby \(([^)]*)\)", expression) + re.findall(r"\{([a-z_]+)=", expression)
        for label in listed.split(",")
    }
    metrics = {known[word] for word in asked - labels if word in known}
    unknown = asked - labels - known.keys() - {"__rate_interval"}
    assert not unknown, f"{title}: there is no {unknown}"
    assert metrics or set(re.findall(r"\w+", expression)) & KNOWN, f"{title} asks for nothing"
    for metric in metrics:
        assert labels <= {*metric.labels, *ADDED}, f"{title}: {metric.name} has no {labels - set(metric.labels)}"
