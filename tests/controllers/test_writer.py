"""Writes of the controllers: the request, the cache afterwards, and the meaning of each failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_TEMPLATE
from sandpool.api.resource import Key, SharedObject
from sandpool.api.views import TemplateView
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.writer import ApiWriter, Create, Delete, OwnerLivenessCheck, Patch
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod_template

BOX = Key("default", "box")
CREATE = Create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}))
LABEL = Patch(SANDBOX, "box", {"metadata": {"labels": {"color": "red"}}})


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


@pytest.fixture
def caches() -> Caches:
    return Caches()


@pytest.fixture
def writer(client: Client, caches: Caches) -> ApiWriter:
    return ApiWriter(client, caches, field_manager="tester")


async def other_box(client: Client) -> SharedObject:
    """A sandbox that another client created and the cache does not show."""
    return await client.create(SANDBOX, CREATE.object, "default")


async def test_created_object_is_in_the_cache_at_once(writer: ApiWriter, caches: Caches) -> None:
    answer = await writer.perform(CREATE, "default")

    view = caches.sandboxes.get(BOX)
    assert answer is not None and view is not None
    assert view.uid == answer["metadata"]["uid"]
    assert [each["manager"] for each in answer["metadata"]["managedFields"]] == ["tester"]


async def test_existing_object_is_read_into_the_cache_and_reported(
    client: Client, writer: ApiWriter, caches: Caches
) -> None:
    existing = await other_box(client)

    with pytest.raises(AlreadyExists):
        await writer.perform(CREATE, "default")
    view = caches.sandboxes.get(BOX)
    assert view is not None and view.uid == existing["metadata"]["uid"], "so that the next plan includes it"


async def test_patched_object_is_in_the_cache_at_once(writer: ApiWriter, caches: Caches) -> None:
    await writer.perform(CREATE, "default")
    await writer.perform(LABEL, "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.labels == {"color": "red"}


async def test_status_is_patched_as_a_subresource(writer: ApiWriter, caches: Caches) -> None:
    await writer.perform(CREATE, "default")
    await writer.perform(Patch(SANDBOX, "box", {"status": {"nodeName": "here"}}, "status"), "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.status.node_name == "here"


async def test_patch_of_a_missing_object_raises_unless_patch_if_there(writer: ApiWriter) -> None:
    with pytest.raises(NotFound):
        await writer.patch(LABEL, "default")
    assert await writer.patch_if_there(LABEL, "default") is None


async def test_patch_of_a_missing_object_removes_it_from_the_cache(
    client: Client, writer: ApiWriter, caches: Caches
) -> None:
    """Otherwise a deleted claim would get one sandbox after the other until the watch reports the deletion."""
    await writer.perform(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")
    with pytest.raises(NotFound):
        await writer.patch(LABEL, "default")
    assert BOX not in caches.sandboxes


async def test_deleted_object_leaves_the_cache_at_once(writer: ApiWriter, caches: Caches) -> None:
    created = await writer.create(CREATE, "default")
    await writer.perform(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")
    assert BOX not in caches.sandboxes


async def test_object_kept_by_a_finalizer_stays_in_the_cache(writer: ApiWriter, caches: Caches) -> None:
    create = Create(SANDBOX, new(SANDBOX, "box", metadata={"finalizers": ["a.b/c"]}, spec=CREATE.object["spec"]))
    created = await writer.create(create, "default")
    await writer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.deleting


async def test_deletion_of_a_missing_object_succeeds_and_clears_the_cache(
    client: Client, writer: ApiWriter, caches: Caches
) -> None:
    created = await writer.create(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")

    await writer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")
    assert BOX not in caches.sandboxes


async def test_object_with_another_uid_is_not_deleted(client: Client, writer: ApiWriter) -> None:
    created = await writer.create(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")
    await other_box(client)

    with pytest.raises(Conflict):
        await writer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")


async def test_object_changed_since_it_was_read_is_not_deleted(client: Client, writer: ApiWriter) -> None:
    created = await writer.create(CREATE, "default")
    await client.patch(SANDBOX, "box", MergePatch({"metadata": {"labels": {"claimed": "yes"}}}), "default")

    metadata = created["metadata"]
    with pytest.raises(Conflict):
        await writer.delete(Delete(SANDBOX, "box", metadata["uid"], metadata["resourceVersion"]), "default")


async def test_every_type_of_the_controllers_has_a_cache(writer: ApiWriter, caches: Caches) -> None:
    await writer.create(Create(POD, new(POD, "pod", spec=pod_template()["spec"])), "default")
    assert Key("default", "pod") in caches.pods


async def test_refresh_reads_an_object_missing_from_the_cache(
    client: Client, writer: ApiWriter, caches: Caches
) -> None:
    assert not await writer.refresh(SANDBOX, "box", "default")
    await other_box(client)
    assert await writer.refresh(SANDBOX, "box", "default")
    assert BOX in caches.sandboxes


NAMESPACE = "default"


async def made(client: Client) -> TemplateView:
    body = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    return TemplateView.from_object(await client.create(SANDBOX_TEMPLATE, body, NAMESPACE))


async def test_owner_is_checked_with_a_live_read_before_a_child_is_recreated(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    users, wire, caches = server.client(), FaultyTransport(server.client().transport), Caches()
    owners = OwnerLivenessCheck(SANDBOX_TEMPLATE, ApiWriter(Client(wire), caches))
    first = await made(users)
    caches.templates.observe(await users.get(SANDBOX_TEMPLATE, "python", NAMESPACE))

    assert await owners.may_create_for(first)
    assert wire.requests == [], "the first time costs nothing"
    assert await owners.may_create_for(first)
    assert len(wire.requests) == 1

    await users.delete(SANDBOX_TEMPLATE, "python", NAMESPACE)
    assert not await owners.may_create_for(first)
    assert key_of(first) not in caches.templates

    second = await made(users)
    assert not await owners.may_create_for(first), "that is another one"
    assert await owners.may_create_for(second)
    owners.forget(key_of(second))
    asked = len(wire.requests)
    assert await owners.may_create_for(second)
    assert len(wire.requests) == asked
    await server.stop()
