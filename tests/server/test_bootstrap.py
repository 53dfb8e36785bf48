from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, NAMESPACE, SANDPOOL
from sandpool.kube.client import Client, MergePatch
from sandpool.server.api_server import ApiServer
from sandpool.server.bootstrap import bootstrap, service_account_key


async def test_new_server_has_namespaces_roles_and_the_service(client: Client) -> None:
    namespaces = {item["metadata"]["name"] for item in (await client.list(NAMESPACE))["items"]}
    assert {"default", "kube-system", "kube-public"} <= namespaces
    for name in ("cluster-admin", "admin", "edit", "view"):
        await client.get(CLUSTER_ROLE, name)
    await client.get(CLUSTER_ROLE_BINDING, "cluster-admin")
    for type in SANDPOOL:
        assert (await client.list(type))["items"] == []


async def test_changes_of_an_administrator_are_kept(server: ApiServer, client: Client) -> None:
    await client.patch(CLUSTER_ROLE, "view", MergePatch({"metadata": {"labels": {"mine": "yes"}}}))
    await client.delete(CLUSTER_ROLE, "edit")
    await bootstrap(server.objects)
    assert (await client.get(CLUSTER_ROLE, "view"))["metadata"]["labels"]["mine"] == "yes"
    await client.get(CLUSTER_ROLE, "edit")  # what is missing comes back


async def test_second_bootstrap_writes_nothing(server: ApiServer) -> None:
    await server.crds.controller.queue.settled()
    await server.namespaces.controller.queue.settled()
    before = server.store.revision
    await bootstrap(server.objects)
    assert server.store.revision == before


async def test_client_authority_is_published(server: ApiServer, client: Client) -> None:
    async def published() -> object:
        found = await client.get(CONFIG_MAP, "extension-apiserver-authentication", "kube-system")
        return found["data"]

    await bootstrap(server.objects, "one")
    assert await published() == {"client-ca-file": "one"}
    await bootstrap(server.objects, "another")
    assert await published() == {"client-ca-file": "another"}
    before = server.store.revision
    await bootstrap(server.objects, "another")
    assert server.store.revision == before


def test_signing_key_is_created_once_and_private(tmp_path: Path) -> None:
    first = service_account_key(tmp_path)
    assert service_account_key(tmp_path).private_numbers() == first.private_numbers()
    assert stat.S_IMODE((tmp_path / "service-account.key").stat().st_mode) == 0o600


def test_signing_key_of_another_type_is_rejected(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "service-account.key").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    with pytest.raises(ValueError, match="must hold an EC key"):
        service_account_key(tmp_path)
