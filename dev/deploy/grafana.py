"""The Grafana dashboard: claims, then sandboxes, then the controllers and the router."""

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
from sandpool.engine.metrics.controller import LEADING, RECONCILE_ERRORS, RECONCILE_TIME, RECONCILES, SECONDS_SINCE_NEWS
from sandpool.engine.transports import REQUEST_TIME, REQUESTS
from sandpool.engine.workqueue.metrics import QUEUE_DEPTH, QUEUE_DURATION
from sandpool.install.names import CONTROLLER, ROUTER_METRICS_SERVICE
from sandpool.router import metrics as router

_SOURCE: Final[Object] = {"type": "prometheus", "uid": "${datasource}"}
_RATE: Final = "[$__rate_interval]"
_IN_NAMESPACE: Final = 'namespace=~"$namespace"'
_OURS: Final = f'service=~"{CONTROLLER}|{ROUTER_METRICS_SERVICE}"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3

# Title, unit, and queries with their legends.
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
    ("Claim startup latency", "ms", _quantiles(CLAIM_STARTUP_LATENCY, "launch_type")),
    ("Claim startup latency since first observed", "ms", _quantiles(CLAIM_CONTROLLER_STARTUP_LATENCY, "launch_type")),
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
    ("Sandbox creation latency", "ms", _quantiles(CREATION_LATENCY, "launch_type", _IN_NAMESPACE)),
    (
        "Reconciles",
        "ops",
        [(f"sum by (controller, result) (rate({RECONCILES.name}{_RATE}))", "{{controller}} {{result}}")],
    ),
    ("Reconcile errors", "ops", [(f"sum by (controller) (rate({RECONCILE_ERRORS.name}{_RATE}))", "{{controller}}")]),
    ("Reconcile duration", "s", _quantiles(RECONCILE_TIME, "controller")),
    ("Work queue depth", "short", [(f"sum by (name) ({QUEUE_DEPTH.name})", "{{name}}")]),
    ("Work queue wait", "s", _quantiles(QUEUE_DURATION, "name")),
    (
        "API requests",
        "reqps",
        [(f"sum by (method, code) (rate({REQUESTS.name}{_RATE}))", "{{method}} {{code}}")],
    ),
    ("API request duration", "s", _quantiles(REQUEST_TIME)),
    ("Time since the last watch event", "s", [(f"max by (resource) ({SECONDS_SINCE_NEWS.name})", "{{resource}}")]),
    ("Leader", "short", [(LEADING.name, "{{pod}}")]),
    (
        "Router requests",
        "reqps",
        [(f"sum by (code) (rate({router.REQUESTS.name}{_RATE}))", "{{code}}")],
    ),
    ("Router request duration", "s", _quantiles(router.DURATION)),
    (
        "Router upstream errors",
        "ops",
        [(f"sum by (reason) (rate({router.UPSTREAM_ERRORS.name}{_RATE}))", "{{reason}}")],
    ),
    ("Memory", "bytes", [(f"process_resident_memory_bytes{{{_OURS}}}", "{{pod}}")]),
    ("CPU", "percentunit", [(f"rate(process_cpu_seconds_total{{{_OURS}}}{_RATE})", "{{pod}}")]),
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
