"""The dashboard uses exported metrics and labels, and its panels do not overlap."""

from __future__ import annotations

import pytest

from dev.deploy import grafana
from tests.support.metric_expressions import assert_uses_exported_metrics


@pytest.mark.parametrize(
    ("title", "expression"), [(title, expression) for title, _, drawn in grafana.PANELS for expression, _ in drawn]
)
def test_panels_use_exported_metrics_and_labels(title: str, expression: str) -> None:
    assert_uses_exported_metrics(title, expression)


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
