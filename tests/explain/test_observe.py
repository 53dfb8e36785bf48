"""Observing a claim with full and with few permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.kinds import (
    CORE_EVENT,
    POD,
    ROLE,
    ROLE_BINDING,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
)
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.explain.claim import explain_claim
from sandpool.explain.observe import observe_claim
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Forbidden, NotFound
from sandpool.node.pods import unsupported_fields
from sandpool.server.api_server import ApiServer
from sandpool.server.request.messages import User
from sandpool.testing.objects import new, pod, pod_template
from tests.support.api_objects import owner_reference

NS = "default"
ALICE = User("alice")
READY = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-01T12:00:00Z"}
OWN = (SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE, SANDBOX)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def client(server: ApiServer) -> Client:
    return server.client()


async def allow(client: Client, *types: ResourceType) -> None:
    rules = [{"apiGroups": [type.group], "resources": [type.plural], "verbs": ["get", "list"]} for type in types]
    await client.create(ROLE, new(ROLE, "reader", rules=rules), NS)
    subjects = [{"apiGroup": ROLE.group, "kind": "User", "name": ALICE.name}]
    reference = {"apiGroup": ROLE.group, "kind": "Role", "name": "reader"}
    await client.create(ROLE_BINDING, new(ROLE_BINDING, "reader", roleRef=reference, subjects=subjects), NS)


async def make(
    client: Client, type: ResourceType, name: str, status: Object | None = None, /, **fields: object
) -> SharedObject:
    made = await client.create(type, new(type, name, **fields), NS)
    if status is not None:
        made = await client.patch(type, name, MergePatch({"status": status}), NS, subresource="status")
    return made


async def trouble(client: Client, *, named: bool = True) -> None:
    """A claim whose sandbox's pod cannot get its image."""
    await make(client, SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await make(client, SANDBOX_WARM_POOL, "pool", spec={"replicas": 1, "sandboxTemplateRef": {"name": "python"}})
    pending = {**READY, "reason": "DependenciesNotReady", "message": "Pod exists with phase: Pending"}
    status: Object = {"conditions": [pending]}
    claim = await make(
        client,
        SANDBOX_CLAIM,
        "mine",
        {**status, "sandbox": {"name": "box"}} if named else None,
        spec={"warmPoolRef": {"name": "pool"}},
    )
    metadata = {
        "labels": {labels.CLAIM_UID: claim["metadata"]["uid"]},
        "ownerReferences": [owner_reference(claim, controller=True)],
    }
    scheduled = {**READY, "type": "PodScheduled", "status": "True", "reason": "PodScheduled", "message": ""}
    status = {"conditions": [pending, scheduled]}
    await make(client, SANDBOX, "box", status, metadata=metadata, spec={"podTemplate": pod_template()})
    made = await client.create(POD, pod("box"), NS)
    waiting = {"name": "main", "ready": False, "restartCount": 0, "image": "", "imageID": ""}
    waiting["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "seen in the pod"}}
    body = {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    await client.patch(POD, "box", MergePatch(body), NS, subresource="status")
    about = {"apiVersion": "v1", "kind": "Pod", "name": "box", "namespace": NS, "uid": made["metadata"]["uid"]}
    await make(client, CORE_EVENT, "box.1", involvedObject=about, type="Normal", reason="Pulling", message="")
    event = {"involvedObject": about, "type": "Warning", "reason": "Failed", "message": "seen in an event"}
    await make(client, CORE_EVENT, "box.2", **event)


async def sentence(client: Client, server: ApiServer) -> str:
    return explain_claim(await observe_claim(client, NS, "mine", server.clock.now())).sentence


async def test_full_permissions_show_the_containers(server: ApiServer, client: Client) -> None:
    await trouble(client)
    observed = await observe_claim(client, NS, "mine", server.clock.now())
    assert observed.pool is not None
    assert observed.has_template
    assert observed.unseen == frozenset()
    assert (await sentence(client, server)).endswith("an image cannot be pulled: ImagePullBackOff: seen in the pod.")


async def test_events_explain_without_permission_for_pods(server: ApiServer, client: Client) -> None:
    await trouble(client)
    await allow(client, *OWN, CORE_EVENT)
    alice = server.client(ALICE)
    with pytest.raises(Forbidden):
        await alice.get(POD, "box", NS)
    assert (await sentence(alice, server)).endswith("an image cannot be pulled: seen in an event.")
    assert (await observe_claim(alice, NS, "mine", server.clock.now())).unseen == {"pods"}


@pytest.mark.parametrize("sees_pods", [True, False])
async def test_field_rejected_by_the_node_is_named(server: ApiServer, client: Client, sees_pods: bool) -> None:
    await trouble(client)
    failed = {**READY, "reason": api.POD_FAILED[0], "message": api.POD_FAILED[1]}
    await client.patch(SANDBOX, "box", MergePatch({"status": {"conditions": [failed]}}), NS, subresource="status")
    refused = unsupported_fields.find_unsupported({"spec": {"hostNetwork": True}}, host_paths=False, resources=())
    why = {"reason": unsupported_fields.REASON, "message": unsupported_fields.message(refused)}
    body = {"status": {"phase": "Failed", "containerStatuses": None, **why}}
    made = await client.patch(POD, "box", MergePatch(body), NS, subresource="status")
    about = {"apiVersion": "v1", "kind": "Pod", "name": "box", "namespace": NS, "uid": made["metadata"]["uid"]}
    await make(client, CORE_EVENT, "box.3", involvedObject=about, type="Warning", **why)
    await allow(client, *OWN, CORE_EVENT, *([POD] if sees_pods else []))
    told = await sentence(server.client(ALICE), server)
    assert f"has ended: Pod failed: {unsupported_fields.REASON}: {unsupported_fields.message(refused)}" in told
    assert "spec.hostNetwork" in told


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (OWN, "its pod is starting: Pod exists with phase: Pending."),
        ((SANDBOX_CLAIM,), 'sandbox "box" is not ready: Pod exists with phase: Pending.'),
    ],
)
async def test_fewer_permissions_give_a_shorter_explanation(
    server: ApiServer, client: Client, types: tuple[ResourceType, ...], told: str
) -> None:
    await trouble(client)
    await allow(client, *types)
    assert (await sentence(server.client(ALICE), server)).endswith(told)


async def test_sandbox_is_found_before_the_claim_names_it(server: ApiServer, client: Client) -> None:
    await trouble(client, named=False)
    observed = await observe_claim(client, NS, "mine", server.clock.now())
    assert observed.sandbox is not None
    assert observed.sandbox.name == "box"


async def test_earlier_claims_are_counted(server: ApiServer, client: Client) -> None:
    for name in ("a", "b", "mine"):
        await make(client, SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}})
    await make(client, SANDBOX_CLAIM, "c", spec={"warmPoolRef": {"name": "other"}})
    observed = await observe_claim(client, NS, "mine", server.clock.now())
    assert (observed.pool, observed.sandbox, observed.ahead) == (None, None, 2)


async def test_missing_or_unreadable_claim_is_an_error(server: ApiServer, client: Client) -> None:
    with pytest.raises(NotFound):
        await observe_claim(client, NS, "mine", server.clock.now())
    with pytest.raises(Forbidden):
        await observe_claim(server.client(ALICE), NS, "mine", server.clock.now())
