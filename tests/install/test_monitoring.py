"""Alerts use exported metrics and labels, and describe themselves; ServiceMonitors select the right ports."""

from __future__ import annotations

import re

import pytest

from sandpool.api.resource import Object
from sandpool.install import manifests, monitoring
from tests.support.metric_expressions import assert_uses_exported_metrics

ALERTS = [*monitoring.alerts(), *monitoring.router_alerts()]


@pytest.mark.parametrize(("title", "expression"), [(each["alert"], each["expr"]) for each in ALERTS])
def test_alerts_use_exported_metrics_and_labels(title: str, expression: str) -> None:
    assert_uses_exported_metrics(title, expression)


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
