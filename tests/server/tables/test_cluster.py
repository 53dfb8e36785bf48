from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api.kinds import (
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    LEASE,
    NAMESPACE,
    NODE,
    PRIORITY_CLASS,
    ROLE_BINDING,
    RUNTIME_CLASS,
    SECRET,
    SERVICE_ACCOUNT,
)

Cells = Callable[..., list[Any]]


def test_node_has_roles_version_and_addresses(cells: Cells) -> None:
    obj = {
        "metadata": {
            "labels": {
                "node-role.kubernetes.io/worker": "",
                "node-role.kubernetes.io/control-plane": "",
                "node-role.kubernetes.io/": "",
                "kubernetes.io/role": "old",
            }
        },
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3",
                "osImage": "Debian",
                "kernelVersion": "6.1",
                "architecture": "amd64",
                "containerRuntimeVersion": "cri://1",
            },
        },
    }
    assert cells(NODE, obj) == [
        *("x", "Ready,SchedulingDisabled", "control-plane,old,worker", "10m", "v1.36.3"),
        *("10.0.0.1", "<none>", "Debian", "6.1 (amd64)", "cri://1"),
    ]


def test_node_without_status_is_printed(cells: Cells) -> None:
    unknown = ["<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"]
    assert cells(NODE, {}) == ["x", "Unknown", "<none>", "10m", "", *unknown]
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert cells(NODE, lost)[1] == "NotReady"


def test_namespaces_secrets_and_config_maps_are_printed(cells: Cells) -> None:
    assert cells(NAMESPACE, {"status": {"phase": "Active"}}) == ["x", "Active", "10m"]
    assert cells(SECRET, {"type": "Opaque", "data": {"a": "", "b": ""}}) == ["x", "Opaque", 2, "10m"]
    assert cells(CONFIG_MAP, {"data": {"a": ""}, "binaryData": {"b": ""}}) == ["x", 2, "10m"]
    assert cells(CONFIG_MAP, {}) == ["x", 0, "10m"]
    assert cells(SERVICE_ACCOUNT, {}) == ["x", "10m"]
    assert cells(LEASE, {"spec": {"holderIdentity": "me"}}) == ["x", "me", "10m"]
    assert cells(LEASE, {}) == ["x", "", "10m"]


def test_role_bindings_list_their_subjects(cells: Cells) -> None:
    obj = {
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "u1"},
            {"kind": "User", "name": "u2"},
            {"kind": "Group", "name": "g"},
            {"kind": "ServiceAccount", "name": "sa", "namespace": "ns"},
            {"kind": "Other", "name": "o"},
        ],
    }
    for type in (ROLE_BINDING, CLUSTER_ROLE_BINDING):
        assert cells(type, obj) == ["x", "Role/r", "10m", "u1, u2", "g", "ns/sa"]


def test_classes_are_printed(cells: Cells) -> None:
    priority = {"value": 5, "globalDefault": True, "preemptionPolicy": "Never"}
    assert cells(PRIORITY_CLASS, priority) == ["x", 5, True, "10m", "Never"]
    assert cells(RUNTIME_CLASS, {"handler": "h"}) == ["x", "h", "10m"]
