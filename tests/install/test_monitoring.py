"""Alerts and dashboard use exported metrics and labels."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from sandpool.api import metrics as api_metrics
from sandpool.api.metrics import Metric
from sandpool.api.resource import Object
from sandpool.engine import transports
from sandpool.engine.metrics import controller as controller_metrics
from sandpool.engine.metrics import process as process_metrics
from sandpool.engine.workqueue import metrics as queue_metrics
from sandpool.install import grafana, manifests, monitoring
from sandpool.router import metrics as router_metrics

MODULES: tuple[ModuleType, ...] = (
    api_metrics,
    controller_metrics,
    process_metrics,
    queue_metrics,
    transports,
    router_metrics,
)
ALERTS = [*monitoring.alerts(), *monitoring.router_alerts()]
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


EXPRESSIONS = [(each["alert"], each["expr"]) for each in ALERTS] + [
    (title, expression) for title, _, drawn in grafana.PANELS for expression, _ in drawn
]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_expressions_use_exported_metrics_and_labels(title: str, expression: str) -> None:
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


def test_alerts_have_summary_and_description() -> None:
    for alert in ALERTS:
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["annotations"]["description"].endswith(".")
        assert re.fullmatch(r"\d+m", alert["for"])
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize(
    ("monitored", "installed"),
    [
        (monitoring.objects(), manifests.controller(manifests.InstallOptions())),
        (monitoring.router_objects(), manifests.router(manifests.InstallOptions())),
    ],
    ids=["controller", "router"],
)
def test_service_monitor_selects_one_port_of_one_service(monitored: list[Object], installed: list[Object]) -> None:
    spec = monitored[0]["spec"]
    (endpoint,) = spec["endpoints"]
    wanted = spec["selector"]["matchLabels"].items()
    services = [
        each for each in installed if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()
    ]
    ports = [port for each in services for port in each["spec"]["ports"] if port["name"] == endpoint["port"]]
    deployment = next(each for each in installed if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [port["targetPort"] for port in ports] == ["metrics"]
    assert "metrics" in {port["name"] for port in container["ports"]}


def test_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in grafana.dashboard()["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
