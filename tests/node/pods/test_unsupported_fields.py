"""Unsupported fields are rejected by name."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.node.pods.unsupported_fields import find_unsupported, message
from sandpool.testing.objects import pod


def rejected(spec: Object, **options: Any) -> list[str]:
    options = {"host_paths": False, "resources": ("cpu",), **options}
    return [rejection.field for rejection in find_unsupported(pod("pod", spec=spec), **options)]


def container(**fields: Any) -> Object:
    return {"containers": [{"name": "main", **fields}]}


AT = "spec.containers[0]"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"hostPID": True}, "spec.hostPID"),
        ({"hostIPC": True}, "spec.hostIPC"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"os": {"name": "windows"}}, "spec.os.name"),
        ({"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}, "spec.securityContext.sysctls"),
        ({"securityContext": {"supplementalGroups": [5]}}, "spec.securityContext.supplementalGroups"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "spec.securityContext.seccompProfile.type"),
        ({"securityContext": {"seLinuxOptions": {"level": "s0"}}}, "spec.securityContext.seLinuxOptions"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "spec.volumes[0].hostPath"),
        ({"volumes": [{"name": "v", "nfs": {}}]}, "spec.volumes[0].nfs"),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "spec.volumes[0].ephemeral"),
        ({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages"}}]}, "spec.volumes[0].emptyDir.medium"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {}}, {"podCertificate": {}}]}}]},
            "spec.volumes[0].projected.sources[1].podCertificate",
        ),
        ({"schedulingGroup": {"podGroupName": "g"}}, "spec.schedulingGroup"),
        (
            container(env=[{"name": "A", "valueFrom": {"fileKeyRef": {"key": "b"}}}]),
            f"{AT}.env[0].valueFrom.fileKeyRef",
        ),
        ({"ephemeralContainers": [{"name": "debug"}]}, "spec.ephemeralContainers[0]"),
        ({"initContainers": [{"name": "i", "restartPolicy": "Never"}]}, "spec.initContainers[0].restartPolicy"),
        (container(restartPolicy="Always"), f"{AT}.restartPolicy"),
        (container(volumeDevices=[{"name": "v"}]), f"{AT}.volumeDevices"),
        (container(ports=[{"containerPort": 1, "hostPort": 1}]), f"{AT}.ports[0].hostPort"),
        (container(volumeMounts=[{"mountPropagation": "Bidirectional"}]), f"{AT}.volumeMounts[0].mountPropagation"),
        (container(readinessProbe={"grpc": {"port": 1}}), f"{AT}.readinessProbe.grpc"),
        (container(securityContext={"privileged": True}), f"{AT}.securityContext.privileged"),
        (container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}}), f"{AT}.securityContext.capabilities.add"),
        (container(securityContext={"procMount": "Unmasked"}), f"{AT}.securityContext.procMount"),
        (container(resources={"limits": {"nvidia.com/gpu": "1"}}), f"{AT}.resources"),
    ],
)
def test_unsupported_fields_are_rejected(spec: Object, field: str) -> None:
    assert rejected(spec) == [field]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hostNetwork": False, "os": {"name": "linux"}, "securityContext": {"fsGroup": 5, "runAsNonRoot": True}},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "c"}}]},
        {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}, {"downwardAPI": {}}]}}]},
        {"initContainers": [{"name": "i", "restartPolicy": "Always"}]},
        container(securityContext={"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}),
        container(resources={"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}),
        container(volumeMounts=[{"mountPropagation": "None"}], ports=[{"containerPort": 80}]),
    ],
)
def test_supported_fields_are_accepted(spec: Object) -> None:
    assert rejected(spec) == []


def test_host_paths_can_be_allowed() -> None:
    assert rejected({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, host_paths=True) == []
    made = {"volumes": [{"name": "v", "hostPath": {"path": "/", "type": "DirectoryOrCreate"}}]}
    assert rejected(made, host_paths=True) == ["spec.volumes[0].hostPath.type"]


def test_simulated_pods_cannot_have_init_containers() -> None:
    spec = {"initContainers": [{"name": "i"}, {"name": "sidecar", "restartPolicy": "Always"}]}
    assert rejected(spec, simulated=True) == ["spec.initContainers[0]"]
    assert rejected(spec) == []


def test_all_unsupported_fields_are_reported_together() -> None:
    found = find_unsupported(pod("pod", spec={"hostIPC": True, "hostPID": True}), host_paths=False, resources=())
    assert message(found) == (
        "this node does not support spec.hostPID: a sandbox shares nothing with the host; "
        "spec.hostIPC: a sandbox shares nothing with the host"
    )
