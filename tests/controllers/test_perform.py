"""What becomes of a write: the request, the cache afterwards, and what each failure means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.resource import Object
from sandpool.controllers.caches import Caches
from sandpool.controllers.perform import Performer
from sandpool.controllers.writes import Create, Delete, Patch
from sandpool.engine.cache.store import Key
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from sandpool.testing.sandboxes import pod_template

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
def performer(client: Client, caches: Caches) -> Performer:
    return Performer(client, caches, field_manager="tester")


async def other_box(client: Client) -> Object:
    """One that somebody else made, and the cache has not heard of."""
    return await client.create(SANDBOX, CREATE.object, "default")


async def test_what_was_created_is_known_at_once(performer: Performer, caches: Caches) -> None:
    answer = await performer.perform(CREATE, "default")

    view = caches.sandboxes.get(BOX)
    assert answer is not None and view is not None
    assert view.uid == answer["metadata"]["uid"]
    assert [each["manager"] for each in answer["metadata"]["managedFields"]] == ["tester"]


async def test_what_exists_already_is_read_and_reported(client: Client, performer: Performer, caches: Caches) -> None:
    existing = await other_box(client)

    with pytest.raises(AlreadyExists):
        await performer.perform(CREATE, "default")
    view = caches.sandboxes.get(BOX)
    assert view is not None and view.uid == existing["metadata"]["uid"], "so that the next plan includes it"


async def test_a_patch_is_known_at_once(performer: Performer, caches: Caches) -> None:
    await performer.perform(CREATE, "default")
    await performer.perform(LABEL, "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.labels == {"color": "red"}


async def test_a_status_is_patched_as_a_subresource(performer: Performer, caches: Caches) -> None:
    await performer.perform(CREATE, "default")
    await performer.perform(Patch(SANDBOX, "box", {"status": {"nodeName": "here"}}, "status"), "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.status.node_name == "here"


async def test_a_patch_of_what_is_gone_is_reported_unless_nobody_minds(performer: Performer) -> None:
    with pytest.raises(NotFound):
        await performer.patch(LABEL, "default")
    assert await performer.patch_if_there(LABEL, "default") is None


async def test_what_could_not_be_patched_because_it_is_gone_is_not_tried_again(
    client: Client, performer: Performer, caches: Caches
) -> None:
    """Else a claim that was deleted is given one sandbox after the other until the watch tells of its end."""
    await performer.perform(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")
    with pytest.raises(NotFound):
        await performer.patch(LABEL, "default")
    assert BOX not in caches.sandboxes


async def test_what_was_deleted_is_gone_at_once(performer: Performer, caches: Caches) -> None:
    created = await performer.create(CREATE, "default")
    await performer.perform(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")
    assert BOX not in caches.sandboxes


async def test_what_is_kept_by_a_finalizer_is_still_known(performer: Performer, caches: Caches) -> None:
    create = Create(SANDBOX, new(SANDBOX, "box", metadata={"finalizers": ["a.b/c"]}, spec=CREATE.object["spec"]))
    created = await performer.create(create, "default")
    await performer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")

    view = caches.sandboxes.get(BOX)
    assert view is not None and view.deleting


async def test_deleting_what_is_gone_is_fine_and_the_cache_forgets_it(
    client: Client, performer: Performer, caches: Caches
) -> None:
    created = await performer.create(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")

    await performer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")
    assert BOX not in caches.sandboxes


async def test_a_namesake_is_not_deleted(client: Client, performer: Performer) -> None:
    created = await performer.create(CREATE, "default")
    await client.delete(SANDBOX, "box", "default")
    await other_box(client)

    with pytest.raises(Conflict):
        await performer.delete(Delete(SANDBOX, "box", created["metadata"]["uid"]), "default")


async def test_what_has_changed_since_it_was_looked_at_is_not_deleted(client: Client, performer: Performer) -> None:
    created = await performer.create(CREATE, "default")
    await client.patch(SANDBOX, "box", MergePatch({"metadata": {"labels": {"claimed": "yes"}}}), "default")

    metadata = created["metadata"]
    with pytest.raises(Conflict):
        await performer.delete(Delete(SANDBOX, "box", metadata["uid"], metadata["resourceVersion"]), "default")


async def test_every_type_of_the_controllers_has_a_cache(performer: Performer, caches: Caches) -> None:
    await performer.create(Create(POD, new(POD, "pod", spec=pod_template()["spec"])), "default")
    assert Key("default", "pod") in caches.pods


async def test_what_the_cache_does_not_show_is_looked_for(client: Client, performer: Performer, caches: Caches) -> None:
    assert not await performer.look_for(SANDBOX, "box", "default")
    await other_box(client)
    assert await performer.look_for(SANDBOX, "box", "default")
    assert BOX in caches.sandboxes
