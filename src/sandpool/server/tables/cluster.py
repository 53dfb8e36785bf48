"""Printers of Nodes, Namespaces, ConfigMaps, Secrets, RBAC bindings and classes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandpool.api.resource import Object
from sandpool.server.tables.age import UNKNOWN
from sandpool.server.tables.printer import (
    AGE,
    NAME,
    NONE,
    Printer,
    TableColumn,
    age_of,
    condition,
    integer,
    name_of,
    value_at,
    wide,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"


def _node(obj: Object, now: datetime) -> list[Any]:
    info = value_at(obj, "status", "nodeInfo") or {}
    architecture = info.get("architecture")
    return [
        name_of(obj),
        _node_status(obj),
        _node_roles(obj),
        age_of(obj, now),
        info.get("kubeletVersion") or "",
        _node_address(obj, "InternalIP"),
        _node_address(obj, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        (info.get("kernelVersion") or UNKNOWN) + (f" ({architecture})" if architecture else ""),
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Object) -> str:
    ready = (condition(obj, "Ready") or {}).get("status")
    status = {None: "Unknown", "True": "Ready"}.get(ready, "NotReady")
    return f"{status},SchedulingDisabled" if value_at(obj, "spec", "unschedulable") else status


def _node_roles(obj: Object) -> str:
    labels = value_at(obj, "metadata", "labels") or {}
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get("kubernetes.io/role") or "")
    return ",".join(sorted(roles - {""})) or NONE


def _node_address(obj: Object, type: str) -> str:
    addresses = value_at(obj, "status", "addresses") or ()
    return next((found["address"] for found in addresses if found.get("type") == type), NONE)


def _namespace(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), value_at(obj, "status", "phase") or "", age_of(obj, now)]


def _secret(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("type") or "", len(obj.get("data") or ()), age_of(obj, now)]


def _config_map(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), len(obj.get("data") or ()) + len(obj.get("binaryData") or ()), age_of(obj, now)]


def _service_account(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), age_of(obj, now)]


def _lease(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), value_at(obj, "spec", "holderIdentity") or "", age_of(obj, now)]


def _binding(obj: Object, now: datetime) -> list[Any]:
    subjects: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in obj.get("subjects") or ():
        name = subject.get("name") or ""
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace') or ''}/{name}"
        subjects.setdefault(subject.get("kind") or "", []).append(name)
    return [
        name_of(obj),
        f"{value_at(obj, 'roleRef', 'kind') or ''}/{value_at(obj, 'roleRef', 'name') or ''}",
        age_of(obj, now),
        *(", ".join(subjects[kind]) for kind in ("User", "Group", "ServiceAccount")),
    ]


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    return [
        name_of(obj),
        obj.get("value") or 0,
        bool(obj.get("globalDefault")),
        age_of(obj, now),
        obj.get("preemptionPolicy") or "",
    ]


def _runtime_class(obj: Object, now: datetime) -> list[Any]:
    return [name_of(obj), obj.get("handler") or "", age_of(obj, now)]


_BINDING = Printer((NAME, TableColumn("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")), _binding)

PRINTERS = {
    "nodes": Printer(
        (
            NAME,
            TableColumn("Status"),
            TableColumn("Roles"),
            AGE,
            TableColumn("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ),
        _node,
    ),
    "namespaces": Printer((NAME, TableColumn("Status"), AGE), _namespace),
    "secrets": Printer((NAME, TableColumn("Type"), TableColumn("Data"), AGE), _secret),
    "configmaps": Printer((NAME, TableColumn("Data"), AGE), _config_map),
    "serviceaccounts": Printer((NAME, AGE), _service_account),
    "leases.coordination.k8s.io": Printer((NAME, TableColumn("Holder"), AGE), _lease),
    "rolebindings.rbac.authorization.k8s.io": _BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDING,
    "priorityclasses.scheduling.k8s.io": Printer(
        (NAME, integer("Value"), TableColumn("Global-Default", "boolean"), AGE, TableColumn("PreemptionPolicy")),
        _priority_class,
    ),
    "runtimeclasses.node.k8s.io": Printer((NAME, TableColumn("Handler"), AGE), _runtime_class),
}
