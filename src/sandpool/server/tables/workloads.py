"""Printers of Deployments, ReplicaSets, DaemonSets, StatefulSets, PodDisruptionBudgets and Scales."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.printer import (
    AGE,
    NAME,
    Printer,
    TableColumn,
    age_of,
    containers_texts,
    integer,
    labels_text,
    name_of,
    selector_text,
    value_at,
    wide,
)


def _number(obj: Object, *path: str) -> int:
    return value_at(obj, *path) or 0


def _containers(obj: Object) -> list[str]:
    return containers_texts(value_at(obj, "spec", "template", "spec", "containers"))


def _selector(obj: Object) -> str:
    return selector_text(value_at(obj, "spec", "selector")) or "<none>"


def _deployment(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        f"{_number(obj, 'status', 'readyReplicas')}/{_number(obj, 'spec', 'replicas')}",
        _number(obj, "status", "updatedReplicas"),
        _number(obj, "status", "availableReplicas"),
        age_of(obj, now),
        *_containers(obj),
        selector_text(value_at(obj, "spec", "selector")),
    ]


def _replica_set(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        _number(obj, "spec", "replicas"),
        _number(obj, "status", "replicas"),
        _number(obj, "status", "readyReplicas"),
        age_of(obj, now),
        *_containers(obj),
        _selector(obj),
    ]


def _daemon_set(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        _number(obj, "status", "desiredNumberScheduled"),
        _number(obj, "status", "currentNumberScheduled"),
        _number(obj, "status", "numberReady"),
        _number(obj, "status", "updatedNumberScheduled"),
        _number(obj, "status", "numberAvailable"),
        labels_text(value_at(obj, "spec", "template", "spec", "nodeSelector")),
        age_of(obj, now),
        *_containers(obj),
        _selector(obj),
    ]


def _stateful_set(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        f"{_number(obj, 'status', 'readyReplicas')}/{_number(obj, 'spec', 'replicas')}",
        age_of(obj, now),
        *_containers(obj),
    ]


def _disruption_budget(obj: Object, now: datetime) -> list[Any]:
    limits = (value_at(obj, "spec", field) for field in ("minAvailable", "maxUnavailable"))
    return [
        name_of(obj),
        *("N/A" if limit is None else str(limit) for limit in limits),
        _number(obj, "status", "disruptionsAllowed"),
        age_of(obj, now),
    ]


def _scale(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), _number(obj, "spec", "replicas"), _number(obj, "status", "replicas"), age_of(obj, now)]


_CONTAINERS = (wide("Containers"), wide("Images"))
_SELECTOR = wide("Selector")

PRINTERS = {
    "deployments.apps": Printer(
        (NAME, TableColumn("Ready"), TableColumn("Up-to-date"), TableColumn("Available"), AGE, *_CONTAINERS, _SELECTOR),
        _deployment,
    ),
    "replicasets.apps": Printer(
        (NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, *_CONTAINERS, _SELECTOR), _replica_set
    ),
    "daemonsets.apps": Printer(
        (
            NAME,
            integer("Desired"),
            integer("Current"),
            integer("Ready"),
            integer("Up-to-date"),
            integer("Available"),
            TableColumn("Node Selector"),
            AGE,
            *_CONTAINERS,
            _SELECTOR,
        ),
        _daemon_set,
    ),
    "statefulsets.apps": Printer((NAME, TableColumn("Ready"), AGE, *_CONTAINERS), _stateful_set),
    "poddisruptionbudgets.policy": Printer(
        (NAME, TableColumn("Min Available"), TableColumn("Max Unavailable"), integer("Allowed Disruptions"), AGE),
        _disruption_budget,
    ),
}
# The scale subresource of any kind.
SCALE = Printer((TableColumn("Name"), integer("Desired"), integer("Available"), AGE), _scale)
