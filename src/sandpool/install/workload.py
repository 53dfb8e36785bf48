"""The common parts of the controller's and the router's workloads: an unprivileged Deployment and its Service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sandpool.api.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
)
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Object, ResourceType

# The user "nonroot" of the image.
USER: Final = 65532

POD_SECURITY: Final[Object] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def manifest(type: ResourceType, name: str, namespace: str = "", labels: Object | None = None, **fields: Any) -> Object:
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": type.api_version, "kind": type.kind, "metadata": metadata, **fields}


def selector(labels: Object) -> Object:
    return {"app": labels["app"]}


def service_account(name: str, namespace: str, labels: Object) -> Object:
    return manifest(SERVICE_ACCOUNT, name, namespace, labels)


def container(
    name: str, image: str, args: Sequence[str], ports: dict[str, int], probes: dict[str, Object], resources: Object
) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": list(args),
        "ports": [{"name": each, "containerPort": port, "protocol": "TCP"} for each, port in ports.items()],
        **probes,
        "resources": resources,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def probes(ready_seconds: int = 5) -> dict[str, Object]:
    """The probes of a container with a port ``healthz``. No Service leads to it before a probe has found it ready."""
    return {"livenessProbe": _probe("/healthz", 20), "readinessProbe": _probe("/readyz", ready_seconds)}


def _probe(path: str, seconds: int) -> Object:
    return {"httpGet": {"path": path, "port": "healthz"}, "periodSeconds": seconds, "timeoutSeconds": 5}


def deployment(
    name: str, namespace: str, labels: Object, account: str, replicas: int, runs: Object, *, grace: int
) -> Object:
    """A Deployment with replicas on different nodes where possible. ``grace`` is the termination grace period."""
    apart: Object = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": selector(labels)},
            "topologyKey": "kubernetes.io/hostname",
        },
    }
    return manifest(
        DEPLOYMENT,
        name,
        namespace,
        labels,
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": selector(labels)},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": account,
                    "securityContext": POD_SECURITY,
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
                    "terminationGracePeriodSeconds": grace,
                    "containers": [runs],
                },
            },
        },
    )


def with_config_map(deployment: Object, name: str, path: str) -> Object:
    """Mount a ConfigMap that need not exist, in all containers of a Deployment. The directory is then empty."""
    pod = deployment["spec"]["template"]["spec"]
    mount = {"name": name, "mountPath": path, "readOnly": True}
    containers = [{**each, "volumeMounts": [*each.get("volumeMounts", ()), mount]} for each in pod["containers"]]
    volume = {"name": name, "configMap": {"name": name, "optional": True}}
    spec = {**pod, "containers": containers, "volumes": [*pod.get("volumes", ()), volume]}
    template = {**deployment["spec"]["template"], "spec": spec}
    return {**deployment, "spec": {**deployment["spec"], "template": template}}


def service(name: str, namespace: str, labels: Object, port_name: str, port: int, *, at: int = 0) -> Object:
    """A Service for a named port of pods; ``at`` is its own port, by default the same."""
    ports = [{"name": port_name, "port": at or port, "protocol": "TCP", "targetPort": port_name}]
    return manifest(SERVICE, name, namespace, labels, spec={"selector": selector(labels), "ports": ports})


def disruption_budget(name: str, namespace: str, labels: Object) -> Object:
    """Allow one disruption at a time. ``maxUnavailable`` does not block node drains if there is a single replica."""
    spec: Object = {"maxUnavailable": 1, "selector": {"matchLabels": selector(labels)}}
    return manifest(POD_DISRUPTION_BUDGET, name, namespace, labels, spec=spec)


def network_policy(
    name: str, namespace: str, labels: Object, *, internal: Sequence[int], public: Sequence[int] = ()
) -> Object:
    """Allow ingress to these ports only: ``internal`` ones from pods of the cluster that are no sandboxes, ``public``
    ones from anywhere. Kubelets may always probe pods of their node. Egress stays open: the address of the API server
    differs by cluster."""
    no_sandbox = {"matchExpressions": [{"key": SANDBOX_NAME_HASH, "operator": "DoesNotExist"}]}
    ingress: list[Object] = [
        {"from": [{"namespaceSelector": {}, "podSelector": no_sandbox}], "ports": _tcp(internal)},
        *([{"ports": _tcp(public)}] if public else ()),
    ]
    return manifest(
        NETWORK_POLICY,
        name,
        namespace,
        labels,
        spec={
            "podSelector": {"matchLabels": selector(labels)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _tcp(ports: Sequence[int]) -> list[Object]:
    return [{"protocol": "TCP", "port": port} for port in ports]
