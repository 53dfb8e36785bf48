"""ServiceMonitors and alerting rules for the Prometheus operator."""

from __future__ import annotations

from typing import Final

from sandpool.api.metrics import CLAIM_CONTROLLER_STARTUP_LATENCY, CLAIM_CREATIONS
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.metrics.controller import EVENTS_DROPPED, LEADING, RECONCILE_ERRORS, SECONDS_SINCE_NEWS
from sandpool.engine.workqueue.metrics import QUEUE_DURATION
from sandpool.install.names import (
    CONTROLLER,
    CONTROLLER_LABELS,
    LEASE,
    NAMESPACE,
    ROUTER,
    ROUTER_ACCOUNT,
    ROUTER_LABELS,
    ROUTER_METRICS_SERVICE,
)
from sandpool.install.workload import manifest, selector
from sandpool.router.metrics import DECISIONS, REQUESTS

_GROUP: Final = "monitoring.coreos.com"
SERVICE_MONITOR: Final = ResourceType(_GROUP, "v1", "ServiceMonitor", "servicemonitors")
PROMETHEUS_RULE: Final = ResourceType(_GROUP, "v1", "PrometheusRule", "prometheusrules")

INTERVAL: Final = "30s"


def objects() -> list[Object]:
    """The monitoring objects of the controllers."""
    return _monitored(CONTROLLER, CONTROLLER_LABELS, "sandpool", alerts())


def router_objects() -> list[Object]:
    """The monitoring objects of the router, for clusters that have one."""
    return _monitored(ROUTER_ACCOUNT, ROUTER_LABELS, "sandpool-router", router_alerts())


def _monitored(name: str, labels: dict[str, str], group: str, rules: list[Object]) -> list[Object]:
    collected = {
        "selector": {"matchLabels": selector(labels)},
        "namespaceSelector": {"matchNames": [NAMESPACE]},
        "endpoints": [{"port": "metrics", "interval": INTERVAL}],
    }
    return [
        manifest(SERVICE_MONITOR, name, NAMESPACE, labels, spec=collected),
        manifest(PROMETHEUS_RULE, name, NAMESPACE, labels, spec={"groups": [{"name": group, "rules": rules}]}),
    ]


def alerts() -> list[Object]:
    """The alerts of the controllers. Each is actionable, and its description names the action."""
    warm = f'{CLAIM_CONTROLLER_STARTUP_LATENCY.name}_bucket{{launch_type="warm"}}'
    cold = f'{CLAIM_CREATIONS.name}{{launch_type="cold"}}'
    by_pool = "sum by (namespace, warmpool_name)"
    return [
        _alert(
            "SandpoolControllerAbsent",
            f'absent({LEADING.name}{{name="{LEASE}"}})',
            "5m",
            "critical",
            "No controller is running: no claim is served, no pool is filled, no sandbox is suspended or expired.",
            f"Check the Deployment {CONTROLLER} in {NAMESPACE} and the logs of its pods.",
        ),
        _alert(
            "SandpoolNoLeader",
            f'max({LEADING.name}{{name="{LEASE}"}}) < 1',
            "2m",
            "critical",
            "Controllers are running, but none of them is the leader.",
            f"Check the holder of the Lease {LEASE}, and the logs of the controllers.",
        ),
        _alert(
            "SandpoolWatchSilent",
            f"max by (resource) ({SECONDS_SINCE_NEWS.name}) > 300",
            "1m",
            "warning",
            "The watch of {{ $labels.resource }} has received nothing for five minutes, not even a bookmark.",
            "The API server or the connection to it is down; if this persists, restart the controller.",
        ),
        _alert(
            "SandpoolReconcileErrors",
            f"sum by (controller) (rate({RECONCILE_ERRORS.name}[5m])) > 1",
            "10m",
            "warning",
            "More than one reconcile per second of the controller {{ $labels.controller }} fails.",
            "See the logs; missing permissions, quotas and webhooks that reject pods are the usual causes.",
        ),
        _alert(
            "SandpoolClaimsSlow",
            f"histogram_quantile(0.99, sum by (le) (rate({warm}[10m]))) > 2500",
            "10m",
            "warning",
            "One in a hundred warm claims takes more than 2.5 s after the controller first observed it.",
            "Check the work queues and the latency of the API server.",
        ),
        _alert(
            "SandpoolPoolTooSmall",
            f"{by_pool} (rate({cold}[15m])) / {by_pool} (rate({CLAIM_CREATIONS.name}[15m])) > 0.2",
            "15m",
            "info",
            "More than a fifth of the claims of pool {{ $labels.namespace }}/{{ $labels.warmpool_name }} start cold.",
            "Give the pool more replicas, or find out why its sandboxes take long to become ready.",
        ),
        _alert(
            "SandpoolQueueWaits",
            f"histogram_quantile(0.99, sum by (le, name) (rate({QUEUE_DURATION.name}_bucket[10m]))) > 5",
            "15m",
            "warning",
            "Keys wait more than 5 s in the queue {{ $labels.name }}.",
            "The controller has too little CPU or too few workers, or the API server is slow.",
        ),
        _alert(
            "SandpoolEventsDropped",
            f"rate({EVENTS_DROPPED.name}[15m]) > 0",
            "30m",
            "info",
            "Events are dropped.",
            "The API server does not accept Events fast enough; nothing else is affected.",
        ),
    ]


def router_alerts() -> list[Object]:
    failed = f'{REQUESTS.name}{{code=~"5.."}}'
    return [
        _alert(
            "SandpoolRouterAbsent",
            f'absent(up{{service="{ROUTER_METRICS_SERVICE}"}} == 1)',
            "5m",
            "critical",
            "No router is running: SDKs cannot reach sandboxes.",
            f"Check the Deployment {ROUTER} in {NAMESPACE} and the logs of its pods.",
        ),
        _alert(
            "SandpoolRouterFails",
            f"sum(rate({failed}[5m])) / sum(rate({REQUESTS.name}[5m])) > 0.05",
            "10m",
            "warning",
            "More than one in twenty requests through the router fails.",
            "The rate of upstream errors says why: sandboxes that are gone, do not listen or do not answer in time.",
        ),
        _alert(
            "SandpoolRouterRefuses",
            f'sum(rate({DECISIONS.name}{{decision="deny"}}[5m])) > 1',
            "10m",
            "info",
            "More than one request a second is refused because of who sent it.",
            "A client has a token that has expired or is for another namespace, or it is guessing tokens.",
        ),
    ]


def _alert(name: str, expression: str, lasting: str, severity: str, summary: str, description: str) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }
