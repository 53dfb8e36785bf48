"""Only owner references with a version that is no longer served are rewritten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.resource import Object, SharedObject
from sandpool.install.owners import renew_owners, renewed
from sandpool.kube.client import Client
from sandpool.kube.errors import Conflict
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod, pod_template
from tests.support.api_objects import owner_reference


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


def owned(name: str, owner: SharedObject, version: str) -> Object:
    reference = {**owner_reference(owner, controller=True), "apiVersion": f"agents.x-k8s.io/{version}"}
    return pod(name, metadata={"ownerReferences": [reference]})


@pytest.mark.parametrize(
    ("written", "kind", "wanted"),
    [
        ("agents.x-k8s.io/v1alpha1", "Sandbox", "agents.x-k8s.io/v1beta1"),
        ("extensions.agents.x-k8s.io/v1alpha1", "SandboxClaim", "extensions.agents.x-k8s.io/v1beta1"),
        ("agents.x-k8s.io/v1beta1", "Sandbox", None),
        ("agents.x-k8s.io/v1alpha1", "SandboxClaim", None),
        ("example.com/v1alpha1", "Sandbox", None),
        ("v1", "Pod", None),
    ],
)
def test_owner_references_of_old_versions_are_found(written: str, kind: str, wanted: str | None) -> None:
    reference = {"apiVersion": written, "kind": kind, "name": "a", "uid": "1"}
    foreign = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "b", "uid": "2"}
    found = renewed({"metadata": {"ownerReferences": [reference, foreign]}})
    assert found == (None if wanted is None else [{**reference, "apiVersion": wanted}, foreign])


def test_object_without_owner_needs_no_renewal() -> None:
    assert renewed({"metadata": {}}) is None


async def test_owner_references_are_renewed_once(client: Client) -> None:
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
    old = await client.create(POD, owned("old", box, "v1alpha1"), "default")
    current = await client.create(POD, owned("current", box, "v1beta1"), "default")
    told: list[str] = []
    await renew_owners(client, told.append, dry_run=True)
    assert await client.get(POD, "old", "default") == old
    for _ in range(2):
        await renew_owners(client, told.append)
    changed = await client.get(POD, "old", "default")
    assert changed["metadata"]["ownerReferences"] == [owner_reference(box, controller=True)]
    assert await client.get(POD, "current", "default") == current
    assert told == [
        "owner references of 1 pods changed to the served version (dry run)",
        "owner references of 1 pods changed to the served version",
    ]


async def test_concurrent_write_survives_the_renewal(client: Client) -> None:
    box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
    await client.create(POD, owned("old", box, "v1alpha1"), "default")
    wire = FaultyTransport(client.transport)
    patches: list[Request] = []

    def conflict_once(request: Request) -> Exception | None:
        if request.method == "PATCH":
            patches.append(request)
        return Conflict("another writer was faster") if len(patches) == 1 and request.method == "PATCH" else None

    wire.fault = conflict_once
    await renew_owners(Client(wire), lambda line: None)
    assert len(patches) == 2
    assert all("resourceVersion" in each.body["metadata"] for each in patches)
    assert renewed(await client.get(POD, "old", "default")) is None
