"""The Grafana dashboard: claims first, then sandboxes, then how the controllers and the router are doing."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_CREATIONS,
    CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
    SANDBOXES,
    Metric,
)
from sandpool.api.resource import Object
from sandpool.engine.metrics.controller import RECONCILE_ERRORS, RECONCILE_TIME, RECONCILES
from sandpool.engine.metrics.process import LEADING, SECONDS_SINCE_NEWS
from sandpool.engine.transports import REQUEST_TIME, REQUESTS
from sandpool.engine.workqueue.metrics import QUEUE_DEPTH, QUEUE_DURATION
from sandpool.install.names import CONTROLLER, ROUTER_METRICS_SERVICE
from sandpool.router import metrics as router

_SOURCE: Final[Object] = {"type": "prometheus", "uid": "${datasource}"}
_RATE: Final = "[$__rate_interval]"
_IN_NAMESPACE: Final = 'namespace=~"$namespace"'
_OURS: Final = f'service=~"{CONTROLLER}|{ROUTER_METRICS_SERVICE}"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3

# Title, unit, and what is drawn: expressions with their legends.
Panel = tuple[str, str, list[tuple[str, str]]]


def _quantiles(metric: Metric, by: str = "", matching: str = "") -> list[tuple[str, str]]:
    inner = f"sum by ({', '.join(filter(None, ('le', by)))}) (rate({metric.name}_bucket{{{matching}}}{_RATE}))"
    suffix = f" {{{{{by}}}}}" if by else ""
    return [(f"histogram_quantile({q}, {inner})", f"p{round(q * 100)}{suffix}") for q in (0.5, 0.99)]


PANELS: Final[tuple[Panel, ...]] = (
    (
        "Claims served",
        "ops",
        [(f"sum by (launch_type) (rate({CLAIM_CREATIONS.name}{{{_IN_NAMESPACE}}}{_RATE}))", "{{launch_type}}")],
    ),
    ("From claim to ready", "ms", _quantiles(CLAIM_STARTUP_LATENCY, "launch_type")),
    ("From first sight to ready", "ms", _quantiles(CLAIM_CONTROLLER_STARTUP_LATENCY, "launch_type")),
    (
        "Claims by pool",
        "ops",
        [(f"sum by (warmpool_name) (rate({CLAIM_CREATIONS.name}{{{_IN_NAMESPACE}}}{_RATE}))", "{{warmpool_name}}")],
    ),
    (
        "Sandboxes",
        "short",
        [
            (
                f"sum by (owned_by, ready_condition) ({SANDBOXES.name}{{{_IN_NAMESPACE}}})",
                "{{owned_by}} ready={{ready_condition}}",
            )
        ],
    ),
    ("From sandbox to ready", "ms", _quantiles(CREATION_LATENCY, "launch_type", _IN_NAMESPACE)),
    (
        "Passes",
        "ops",
        [(f"sum by (controller, result) (rate({RECONCILES.name}{_RATE}))", "{{controller}} {{result}}")],
    ),
    ("Passes that fail", "ops", [(f"sum by (controller) (rate({RECONCILE_ERRORS.name}{_RATE}))", "{{controller}}")]),
    ("How long passes take", "s", _quantiles(RECONCILE_TIME, "controller")),
    ("Keys that wait", "short", [(f"sum by (name) ({QUEUE_DEPTH.name})", "{{name}}")]),
    ("How long keys wait", "s", _quantiles(QUEUE_DURATION, "name")),
    (
        "Requests to the API",
        "reqps",
        [(f"sum by (method, code) (rate({REQUESTS.name}{_RATE}))", "{{method}} {{code}}")],
    ),
    ("How long the API takes", "s", _quantiles(REQUEST_TIME)),
    ("Age of the news", "s", [(f"max by (resource) ({SECONDS_SINCE_NEWS.name})", "{{resource}}")]),
    ("Who works", "short", [(LEADING.name, "{{pod}}")]),
    (
        "Requests through the router",
        "reqps",
        [(f"sum by (code) (rate({router.REQUESTS.name}{_RATE}))", "{{code}}")],
    ),
    ("How long requests through the router take", "s", _quantiles(router.DURATION)),
    (
        "Sandboxes that did not answer the router",
        "ops",
        [(f"sum by (reason) (rate({router.UPSTREAM_ERRORS.name}{_RATE}))", "{{reason}}")],
    ),
    ("Memory", "bytes", [(f"process_resident_memory_bytes{{{_OURS}}}", "{{pod}}")]),
    ("Processor", "percentunit", [(f"rate(process_cpu_seconds_total{{{_OURS}}}{_RATE})", "{{pod}}")]),
)


def dashboard() -> Object:
    return {
        "title": "Sandpool",
        "uid": "sandpool",
        "tags": ["sandpool", "agent-sandbox"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _namespace()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _data_source() -> Object:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _namespace() -> Object:
    return {
        "name": "namespace",
        "label": "Namespace",
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({SANDBOXES.name}, namespace)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def _panel(number: int, panel: Panel) -> Object:
    title, unit, drawn = panel
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(drawn)
        ],
    }
