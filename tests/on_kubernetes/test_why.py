"""``sandpool why`` on a real Kubernetes, for a user who can read claims, pools and sandboxes and no pods."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

import pytest

from sandpool.api.kinds import ROLE, ROLE_BINDING, SANDBOX_CLAIM, SERVICE_ACCOUNT
from sandpool.testing.objects import new
from tests.support.deployment_process import Deployed
from tests.support.installed_cluster import Cluster, account_token
from tests.support.persistent_clients import PersistentClients

pytestmark = pytest.mark.kubernetes

READER: Final = "reader"
_RULES: Final = [
    {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["get", "list"]},
    {
        "apiGroups": ["extensions.agents.x-k8s.io"],
        "resources": ["sandboxclaims", "sandboxwarmpools"],
        "verbs": ["get", "list"],
    },
]


async def access_of_reader(cluster: Cluster, namespace: str, path: Path) -> Path:
    """The kubeconfig of a service account with just these rights in the namespace."""
    client = cluster.client
    await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, READER), namespace)
    await client.create(ROLE, new(ROLE, READER, rules=_RULES), namespace)
    reference = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": READER}
    subject = {"kind": SERVICE_ACCOUNT.kind, "name": READER, "namespace": namespace}
    await client.create(ROLE_BINDING, new(ROLE_BINDING, READER, roleRef=reference, subjects=[subject]), namespace)
    token = await account_token(client, READER, namespace)
    return cluster.plane.write_kubeconfig(path, READER, token=token)


async def test_no_permission_for_pods_is_needed(cluster: Cluster, clients: PersistentClients, tmp_path: Path) -> None:
    kubeconfig = await access_of_reader(cluster, clients.namespace, tmp_path / "reader.kubeconfig")

    async def ask(claim: str) -> str:
        command = (sys.executable, "-m", "sandpool.cli.main", "why", "claim", claim)
        options = ("-n", clients.namespace, "--kubeconfig", str(kubeconfig))
        process = await asyncio.create_subprocess_exec(*command, *options, stdout=PIPE, stderr=STDOUT)
        told, _ = await process.communicate()
        assert process.returncode == 0, told.decode()
        return told.decode()

    lost = new(SANDBOX_CLAIM, "lost", spec={"warmPoolRef": {"name": "nowhere"}})
    await cluster.client.create(SANDBOX_CLAIM, lost, clients.namespace)
    async with Deployed(cluster, tmp_path) as deployed:
        await deployed.leading()
        await clients.filled()
        await clients.claim(["mine"])
        await clients.served(1, at_least=True)
    assert 'Claim "mine" is ready: it has sandbox "' in await ask("mine")
    assert "bound: the sandbox is owned by the claim" in await ask("mine")
    assert (await ask("lost")).startswith('Claim "lost" is not ready: pool "nowhere" does not exist.')
