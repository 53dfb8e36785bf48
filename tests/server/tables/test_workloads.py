from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.kinds import DAEMON_SET, DEPLOYMENT, POD_DISRUPTION_BUDGET, REPLICA_SET, STATEFUL_SET
from sandpool.api.resource import Object

Cells = Callable[..., list[Any]]

SELECTOR: Object = {
    "matchLabels": {"app": "x"},
    "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["b", "a"]},
        {"key": "zz", "operator": "Exists"},
        {"key": "nn", "operator": "DoesNotExist"},
        {"key": "q", "operator": "NotIn", "values": ["v"]},
    ],
}
SELECTOR_TEXT = "app=x,!nn,q notin (v),tier in (a,b),zz"
CONTAINERS = [{"name": "a", "image": "img:1"}, {"name": "b", "image": "img:2"}]
TEMPLATE: Object = {"spec": {"containers": CONTAINERS, "nodeSelector": {"disk": "ssd", "arch": "x"}}}


def workload(status: Object, **spec: Any) -> Object:
    return {"spec": {"selector": SELECTOR, "template": TEMPLATE, **spec}, "status": status}


def test_deployment_has_replica_counts(cells: Cells) -> None:
    status = {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}
    expected = ["x", "2/3", 3, 1, "10m", "a,b", "img:1,img:2", SELECTOR_TEXT]
    assert cells(DEPLOYMENT, workload(status, replicas=3)) == expected


def test_replica_set_has_replica_counts(cells: Cells) -> None:
    obj = workload({"replicas": 2, "readyReplicas": 1}, replicas=3)
    assert cells(REPLICA_SET, obj) == ["x", 3, 2, 1, "10m", "a,b", "img:1,img:2", SELECTOR_TEXT]


def test_daemon_set_has_pod_counts(cells: Cells) -> None:
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    obj = workload({**dict(zip(counts, (5, 4, 3, 2), strict=True)), "numberAvailable": 1})
    assert cells(DAEMON_SET, obj) == [
        *("x", 5, 4, 3, 2, 1, "arch=x,disk=ssd", "10m"),
        *("a,b", "img:1,img:2", SELECTOR_TEXT),
    ]


def test_stateful_set_has_replica_counts(cells: Cells) -> None:
    obj = workload({"readyReplicas": 1}, replicas=4)
    assert cells(STATEFUL_SET, obj) == ["x", "1/4", "10m", "a,b", "img:1,img:2"]


def test_workload_without_status_is_printed(cells: Cells) -> None:
    assert cells(DEPLOYMENT, {"spec": {"replicas": 1}})[1:4] == ["0/1", 0, 0]
    assert cells(REPLICA_SET, {})[1:4] == [0, 0, 0]


def test_disruption_budget_has_its_limits(cells: Cells) -> None:
    percent = {"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}}
    assert cells(POD_DISRUPTION_BUDGET, percent) == ["x", "50%", "N/A", 2, "10m"]
    assert cells(POD_DISRUPTION_BUDGET, {"spec": {"maxUnavailable": 0}}) == ["x", "N/A", "0", 0, "10m"]
