"""Objects of the Go controller are recognised and kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    NETWORK_POLICY,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.names import name_hash, network_policy_name
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.install.owners import renew_owners, renewed
from sandpool.kube.client import Client, MergePatch
from sandpool.testing.backend import Backend
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference
from tests.support.backends import new_namespace

# Its field manager, which no decision may depend on.
GO: Final = "agent-sandbox-controller"
_AT: Final = "2026-08-20T10:00:00Z"
# Hashes of its own making: Go writes JSON differently.
_ITS_HASHES: Final = {labels.TEMPLATE_HASH: "0badc0de", labels.POD_TEMPLATE_HASH: "0badf00d"}


class Go:
    """Leaves objects in one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def leave(self, type: ResourceType, name: str, status: Object | None = None, **fields: Any) -> SharedObject:
        made = await self.client.create(type, new(type, name, **fields), self.namespace, field_manager=GO)
        if status is None:
            return made
        patch = MergePatch({"status": status})
        return await self.client.patch(type, name, patch, self.namespace, subresource="status", field_manager=GO)

    async def template(self) -> SharedObject:
        template = await self.leave(
            SANDBOX_TEMPLATE,
            "python",
            metadata={"labels": {labels.TEMPLATE_REF_HASH: name_hash("python")}},
            spec={"podTemplate": _written()},
        )
        spec = {
            "podSelector": {"matchLabels": {labels.TEMPLATE_REF_HASH: name_hash("python")}},
            "policyTypes": ["Ingress", "Egress"],
        }
        await self.leave(NETWORK_POLICY, network_policy_name("python"), metadata=_owned(template), spec=spec)
        return template

    async def pool(self, replicas: int) -> SharedObject:
        """Create a pool that would replace every member it does not recognise as current."""
        return await self.leave(
            SANDBOX_WARM_POOL,
            "pool",
            {"replicas": replicas, "readyReplicas": replicas, "selector": f"{labels.WARM_POOL}={name_hash('pool')}"},
            spec={
                "replicas": replicas,
                "sandboxTemplateRef": {"name": "python"},
                "updateStrategy": {"type": "Recreate"},
            },
        )

    async def member(self, name: str, pool: SharedObject) -> SharedObject:
        kept = {labels.WARM_POOL: name_hash("pool"), labels.TEMPLATE_REF_HASH: name_hash("python"), **_ITS_HASHES}
        own = {labels.LAUNCH_TYPE: labels.LAUNCH_WARM, labels.CREATED_BY: labels.CREATED_BY_CONTROLLER}
        evictable = {labels.SAFE_TO_EVICT: "true"}
        return await self.sandbox(
            name,
            {**_owned(pool), "labels": {**kept, **own}, "annotations": {labels.TEMPLATE_REF: "python"}},
            {**_secured(), "metadata": {"labels": kept, "annotations": evictable}},
            {labels.WARM_POOL: name_hash("pool"), labels.TEMPLATE_REF_HASH: name_hash("python"), **_by("controller")},
            {**evictable, labels.PROPAGATED_ANNOTATIONS: labels.SAFE_TO_EVICT},
        )

    async def adopted(self, name: str, claim: SharedObject) -> SharedObject:
        """A member that a claim has taken."""
        kept = {labels.TEMPLATE_REF_HASH: name_hash("python"), labels.CLAIM_UID: claim["metadata"]["uid"]}
        annotations = {labels.TEMPLATE_REF: "python", labels.POD_NAME: name}
        return await self.sandbox(
            name,
            {**_owned(claim), "labels": {**kept, labels.LAUNCH_TYPE: labels.LAUNCH_WARM}, "annotations": annotations},
            {**_secured(), "metadata": {"labels": kept}},
            {labels.TEMPLATE_REF_HASH: name_hash("python")},
            {labels.PROPAGATED_ANNOTATIONS: "", labels.PROPAGATED_LABELS: ""},
        )

    async def claim(self, name: str) -> SharedObject:
        return await self.leave(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}})

    async def served(self, claim: SharedObject, sandbox: SharedObject) -> None:
        name, box = claim["metadata"]["name"], sandbox["metadata"]["name"]
        annotations = {
            labels.SANDBOX_NAME: box,
            labels.CONTROLLER_FIRST_OBSERVED_AT: "2026-08-20T12:00:00.123456789+02:00",
            labels.CLAIM_FIRST_READY_AT: "2026-08-20T10:00:00.5Z",
        }
        noted = MergePatch({"metadata": {"annotations": annotations}})
        await self.client.patch(SANDBOX_CLAIM, name, noted, self.namespace, field_manager=GO)
        status = {
            "conditions": [_ready(claim)],
            "sandbox": {"name": box, "podIPs": sandbox["status"]["podIPs"]},
        }
        patch = MergePatch({"status": status})
        await self.client.patch(SANDBOX_CLAIM, name, patch, self.namespace, subresource="status", field_manager=GO)

    async def sandbox(
        self, name: str, metadata: Object, template: Object, pod_labels: Object, pod_annotations: Object
    ) -> SharedObject:
        box = await self.leave(SANDBOX, name, metadata=metadata, spec={"podTemplate": template})
        tracked = {labels.SANDBOX_NAME_HASH: name_hash(name)}
        pod = {**_owned(box), "labels": {**tracked, **pod_labels}, "annotations": pod_annotations}
        address = f"10.0.0.{len((await self.client.list(POD, self.namespace))['items']) + 1}"
        running = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": each, "status": "True"} for each in ("PodScheduled", "Ready")],
        }
        await self.leave(POD, name, running, metadata=pod, spec={**template["spec"], "nodeName": "node-1"})
        status = {
            "conditions": [_ready(box)],
            "podIPs": [address],
            "nodeName": "node-1",
            "selector": f"{labels.SANDBOX_NAME_HASH}={name_hash(name)}",
        }
        patch = MergePatch({"status": status})
        return await self.client.patch(SANDBOX, name, patch, self.namespace, subresource="status", field_manager=GO)


def _written() -> Object:
    ports = [{"containerPort": 8888, "protocol": "TCP"}]
    return {"spec": {"containers": [{"name": "main", "image": "example.com/image:1", "ports": ports, "resources": {}}]}}


def _secured() -> Object:
    """Add the defaults of pools and claims, with empty fields as Go writes them."""
    secured = {
        "automountServiceAccountToken": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]},
    }
    return {"spec": {**_written()["spec"], **secured}}


def _owned(owner: SharedObject) -> Object:
    """Add an owner reference with the old API version, as earlier releases wrote it."""
    reference = owner_reference(owner, controller=True, block=True)
    group, _, _ = reference["apiVersion"].partition("/")
    return {"ownerReferences": [{**reference, "apiVersion": f"{group}/v1alpha1"}]}


def _by(creator: str) -> dict[str, str]:
    return {labels.CREATED_BY: creator}


def _ready(object: SharedObject) -> Object:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "DependenciesReady",
        "message": "Pod is Ready",
        "observedGeneration": object["metadata"]["generation"],
        "lastTransitionTime": _AT,
    }


async def _identities(world: World) -> dict[str, dict[str, str]]:
    types = (SANDBOX, POD, SERVICE, NETWORK_POLICY, SANDBOX_CLAIM)
    return {
        str(type): {each["metadata"]["name"]: each["metadata"]["uid"] for each in await world.all(type)}
        for type in types
    }


async def test_objects_of_the_go_controller_are_recognised(backend: Backend) -> None:
    namespace = await new_namespace(backend)
    go = Go(backend.client_for("users"), namespace)
    await go.template()
    pool = await go.pool(2)
    for name in ("pool-aaaaa", "pool-bbbbb"):
        await go.member(name, pool)
    claim = await go.claim("mine")
    await go.served(claim, await go.adopted("pool-ccccc", claim))

    await renew_owners(backend.client_for("users"), lambda line: None)  # as installing does

    world = World(backend, namespace, clock=ManualClock(datetime.now(UTC)))
    before = await _identities(world)
    claims = await world.get(SANDBOX_CLAIM, "mine")
    await world.start()
    await world.settle()
    await world.wait(3600)

    assert await _identities(world) == before, "nothing is made again, and nothing goes"
    assert [each for each in world.written() if not each.startswith("patch")] == []
    for type in (SANDBOX, POD, NETWORK_POLICY):
        assert [each for each in await world.all(type) if renewed(each) is not None] == []
    after = await world.get(SANDBOX_CLAIM, "mine")
    assert after["status"]["sandbox"] == claims["status"]["sandbox"]
    assert after["metadata"]["annotations"] == claims["metadata"]["annotations"]
    assert is_ready(after)

    # And it is a pool as any other: a member is handed over warm and replaced.
    await world.claim("next")
    box = (await world.served(2))["next"]
    assert box["metadata"]["name"] in ("pool-aaaaa", "pool-bbbbb")
    assert owner_of(box) == ("SandboxClaim", "next")
    await world.filled(2)
    identities = await _identities(world)
    assert before["sandboxes.agents.x-k8s.io"].items() <= identities["sandboxes.agents.x-k8s.io"].items()
    assert before["pods"].items() <= identities["pods"].items()

    # A child is deleted with its owner although its reference had a version that is no longer served.
    await world.delete(SANDBOX_CLAIM, "mine", propagation_policy="Background")
    await world.gone(SANDBOX, "pool-ccccc")
    await world.stop()
