from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from sandpool.api.kinds import EVENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from sandpool.api.resource import Key, SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.node.volumes.provisioner import CLASS, Provisioner, volume_name
from sandpool.testing.objects import new
from sandpool.testing.waiting import until


@pytest_asyncio.fixture
async def provisioner(client: Client, tmp_path: Path) -> AsyncIterator[Provisioner]:
    provisioner = Provisioner(client, SystemClock(), Random(1), tmp_path / "volumes", "node")
    running = asyncio.create_task(provisioner.run())
    yield provisioner
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def claim(client: Client, name: str = "data", **spec: object) -> SharedObject:
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return await client.create(PERSISTENT_VOLUME_CLAIM, new(PERSISTENT_VOLUME_CLAIM, name, spec=body), "default")


async def bound(client: Client, name: str = "data") -> SharedObject:
    async def look() -> SharedObject | None:
        found = await client.get(PERSISTENT_VOLUME_CLAIM, name, "default")
        return found if found["status"].get("phase") == "Bound" else None

    found = await until(look)
    assert found is not None
    return found


async def gone(client: Client, volume: str) -> None:
    async def look() -> bool:
        try:
            await client.get(PERSISTENT_VOLUME, volume)
        except NotFound:
            return True
        return False

    await until(look)


async def test_volume_claim_gets_its_own_volume(client: Client, provisioner: Provisioner) -> None:
    made = await claim(client)
    found = await bound(client)
    volume = await client.get(PERSISTENT_VOLUME, volume_name(made))
    assert found["spec"]["volumeName"] == volume["metadata"]["name"]
    assert found["spec"]["storageClassName"] == CLASS
    assert found["status"]["capacity"] == {"storage": "1Gi"}
    assert volume["status"]["phase"] == "Bound"
    assert volume["spec"]["local"]["path"] == str(provisioner.directory / volume_name(made))
    assert (provisioner.directory / volume_name(made)).is_dir()


async def test_default_storage_class_exists(client: Client, provisioner: Provisioner) -> None:
    await claim(client)
    await bound(client)
    made = await client.get(STORAGE_CLASS, CLASS)
    assert made["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert (await claim(client, "later"))["spec"]["storageClassName"] == CLASS


async def test_data_are_deleted_with_the_volume_claim(client: Client, provisioner: Provisioner) -> None:
    made = await claim(client)
    await bound(client)
    path = provisioner.directory / volume_name(made)
    (path / "deep").mkdir()
    (path / "deep" / "file").write_text("x")
    await client.delete(PERSISTENT_VOLUME_CLAIM, "data", "default")
    await gone(client, volume_name(made))
    assert not path.exists()


async def test_data_used_by_a_pod_are_kept_until_the_pod_is_gone(client: Client, provisioner: Provisioner) -> None:
    made = await claim(client)
    await bound(client)
    name = volume_name(made)
    provisioner.in_use.add(name)
    await client.delete(PERSISTENT_VOLUME_CLAIM, "data", "default")
    key = Key("default", "data")

    async def known() -> bool:
        return key not in provisioner.claims

    await until(known)
    assert (await provisioner.reconcile(key)).requeue_after == 5.0
    assert (provisioner.directory / name).is_dir()
    provisioner.in_use.discard(name)
    await provisioner.reconcile(key)
    await gone(client, name)
    assert not (provisioner.directory / name).exists()


async def test_recreated_volume_claim_gets_another_volume(client: Client, provisioner: Provisioner) -> None:
    first = await claim(client)
    await bound(client)
    (provisioner.directory / volume_name(first) / "secret").write_text("mine")
    await client.delete(PERSISTENT_VOLUME_CLAIM, "data", "default")
    second = await claim(client)
    assert (await bound(client))["spec"]["volumeName"] == volume_name(second)
    await gone(client, volume_name(first))
    assert list((provisioner.directory / volume_name(second)).iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volumeMode", "Block"),
        ("selector", {"matchLabels": {"a": "b"}}),
        ("dataSource", {"kind": "PersistentVolumeClaim", "name": "other"}),
    ],
)
async def test_unsupported_claim_fields_are_named(
    client: Client, provisioner: Provisioner, field: str, value: object
) -> None:
    made = await claim(client, "data", **{field: value})

    async def told() -> str | None:
        events = (await client.list(EVENT, "default"))["items"]
        return next((each["note"] for each in events if each["regarding"]["uid"] == made["metadata"]["uid"]), None)

    assert (await until(told) or "").startswith(f"spec.{field}: ")
    found = await client.get(PERSISTENT_VOLUME_CLAIM, "data", "default")
    assert found["status"].get("phase") != "Bound"


async def test_missing_storage_class_is_named(client: Client, provisioner: Provisioner) -> None:
    await claim(client, storageClassName="fast")

    async def told() -> list[str]:
        return [each["note"] for each in (await client.list(EVENT, "default"))["items"]]

    assert await until(told) == ['spec.storageClassName: storageclass.storage.k8s.io "fast" not found']


@asynccontextmanager
async def working(provisioner: Provisioner) -> AsyncIterator[None]:
    running = asyncio.create_task(provisioner.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_volumes_of_other_nodes_are_left_alone(client: Client, tmp_path: Path) -> None:
    """Both nodes provision every claim. The first has the data; the second must not delete it."""
    here, there = (Provisioner(client, SystemClock(), Random(1), tmp_path / name, name) for name in ("here", "there"))
    async with working(here):
        made = await claim(client)
        await bound(client)
    data = tmp_path / "here" / volume_name(made)
    assert data.is_dir()
    async with working(there):

        async def known() -> bool:
            return Key("default", "data") in there.claims and len(there.volumes) == 1

        await until(known)
        await there._create_volume(made)  # as if it had not seen that there is one
        assert list((tmp_path / "there").iterdir()) == []
        await client.delete(PERSISTENT_VOLUME_CLAIM, "data", "default")

        async def forgotten() -> bool:
            return Key("default", "data") not in there.claims

        await until(forgotten)
        await there.reconcile(Key("default", "data"))
        assert await client.get(PERSISTENT_VOLUME, volume_name(made))
    async with working(here):
        await gone(client, volume_name(made))
    assert not data.exists()


@pytest.mark.parametrize("storage_class", ["", "fast"])
async def test_claims_of_other_classes_are_ignored(
    client: Client, provisioner: Provisioner, storage_class: str
) -> None:
    await claim(client, "other", storageClassName=storage_class)
    await claim(client)
    await bound(client)
    await provisioner.reconcile(Key("default", "other"))
    assert (await client.get(PERSISTENT_VOLUME_CLAIM, "other", "default"))["status"]["phase"] == "Pending"


async def test_restarted_provisioner_changes_nothing(client: Client, tmp_path: Path) -> None:
    def begin() -> tuple[Provisioner, asyncio.Task[None]]:
        provisioner = Provisioner(client, SystemClock(), Random(1), tmp_path / "volumes", "node")
        return provisioner, asyncio.create_task(provisioner.run())

    first, running = begin()
    made = await claim(client)
    await bound(client)
    (first.directory / volume_name(made) / "file").write_text("kept")
    running.cancel()
    second, again = begin()

    async def known() -> bool:
        return Key("default", "data") in second.claims and len(second.volumes) == 1

    await until(known)
    await second.reconcile(Key("default", "data"))
    again.cancel()
    await asyncio.gather(running, again, return_exceptions=True)
    assert (tmp_path / "volumes" / volume_name(made) / "file").read_text() == "kept"
    assert len((await client.list(PERSISTENT_VOLUME))["items"]) == 1
