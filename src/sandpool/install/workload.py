"""What the controller and the router have in common as workloads: a Deployment that needs no privilege at all."""

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


def deployment(
    name: str, namespace: str, labels: Object, account: str, replicas: int, runs: Object, *, grace: int
) -> Object:
    """Two replicas do not share a node where there is a choice, and one is there while the other is replaced. ``grace``
    is how many seconds a pod may take to end in good order."""
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


def service(name: str, namespace: str, labels: Object, port_name: str, port: int) -> Object:
    ports = [{"name": port_name, "port": port, "protocol": "TCP", "targetPort": port_name}]
    return manifest(SERVICE, name, namespace, labels, spec={"selector": selector(labels), "ports": ports})


def disruption_budget(name: str, namespace: str, labels: Object) -> Object:
    """One at a time may go. Said this way round it keeps no node from being drained where there is one replica."""
    spec: Object = {"maxUnavailable": 1, "selector": {"matchLabels": selector(labels)}}
    return manifest(POD_DISRUPTION_BUDGET, name, namespace, labels, spec=spec)


def network_policy(name: str, namespace: str, labels: Object, ports: Sequence[int]) -> Object:
    """Nobody connects to anything but these ports. Ways out are left open: where the API server of a cluster listens
    is nothing a manifest for all clusters can know."""
    return manifest(
        NETWORK_POLICY,
        name,
        namespace,
        labels,
        spec={
            "podSelector": {"matchLabels": selector(labels)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
        },
    )
