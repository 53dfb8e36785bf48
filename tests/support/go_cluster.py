"""A cluster as the Go controllers leave it, as far as a takeover depends on it."""

from __future__ import annotations

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    DEPLOYMENT,
    NAMESPACE,
    SANDPOOL,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.crds import crd
from sandpool.install import names
from sandpool.kube.client import Client
from sandpool.testing.objects import new
from tests.support.custom_kinds import install

EXTENSIONS = "agent-sandbox-controller-extensions"
WEBHOOK = "agent-sandbox-webhook-service"


async def foreign_workload(client: Client) -> None:
    """Create Namespace, Deployment and related objects as kubectl does from the manifests of the Go controllers."""
    labels = {"app": names.CONTROLLER}
    runs = {
        "name": names.CONTROLLER,
        "image": "example.com/agent-sandbox-controller:1",
        "command": ["/manager"],
        "args": ["--extensions"],
    }
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [runs]}}
    webhook = {"selector": labels, "ports": [{"port": 443, "targetPort": 9443}]}
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": "ClusterRole", "name": EXTENSIONS}
    await client.create(NAMESPACE, new(NAMESPACE, names.NAMESPACE))
    await client.create(
        DEPLOYMENT,
        new(DEPLOYMENT, names.CONTROLLER, spec={"selector": {"matchLabels": labels}, "template": pods}),
        names.NAMESPACE,
    )
    await client.create(SERVICE, new(SERVICE, WEBHOOK, spec=webhook), names.NAMESPACE)
    await client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, EXTENSIONS, rules=[]))
    await client.create(CLUSTER_ROLE_BINDING, new(CLUSTER_ROLE_BINDING, EXTENSIONS, roleRef=reference))


async def foreign_definitions(client: Client) -> None:
    for type in SANDPOOL:
        await install(client, foreign_definition(type))


def foreign_definition(type: ResourceType) -> Object:
    """Return a kind in two versions with a conversion webhook. The webhook is unreachable, as after the removal of its
    Deployment."""
    service = {"name": WEBHOOK, "namespace": names.NAMESPACE, "path": "/convert", "port": 443}
    webhook = {"conversionReviewVersions": ["v1", "v1beta1"], "clientConfig": {"service": service}}
    definition = crd(type)
    (stored,) = definition["spec"]["versions"]
    old = {**stored, "name": "v1alpha1", "storage": False, "deprecated": True}
    spec = {**definition["spec"], "versions": [stored, old], "conversion": {"strategy": "Webhook", "webhook": webhook}}
    return {**definition, "spec": spec}
