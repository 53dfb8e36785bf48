from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, NAMESPACE, SANDBOX
from sandpool.api.resource import Key
from sandpool.kube.client import MergePatch
from sandpool.server import api_server
from sandpool.server.api_server import ApiServer
from sandpool.server.store.journal import DATABASE, StoreDamaged, StoreInUse
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install

WIDGET = custom_type("example.com")


async def test_restarted_server_has_all_objects(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    await install(client, definition(WIDGET))
    widget = await client.create(WIDGET, new(WIDGET, "w", spec={"a": 1}), "default")
    await server.stop()
    assert not server.ready

    await server.start()
    client = server.client()
    assert await client.get(WIDGET, "w", "default") == widget
    assert (await client.get(CUSTOM_RESOURCE_DEFINITION, WIDGET.group_resource))["spec"]["group"] == "example.com"
    await server.stop()


async def test_second_start_writes_nothing(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    for _ in range(2):
        await server.start()
        for each in (server.crds, server.collector, server.namespaces):
            await each.controller.queue.settled()
        await server.stop()
    settled = server.store.revision
    await server.start()
    for each in (server.crds, server.collector, server.namespaces):
        await each.controller.queue.settled()
    assert server.store.revision == settled
    await server.stop()


async def test_second_server_on_a_directory_is_refused(tmp_path: Path) -> None:
    server, second = ApiServer(tmp_path), ApiServer(tmp_path)
    await server.start()
    with pytest.raises(StoreInUse, match="stop that one or choose another"):
        await second.start()
    await server.client().list(NAMESPACE)
    await server.stop()
    await second.start()
    await second.stop()


async def test_damaged_store_leaves_no_lock_behind(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    await server.stop()
    database = tmp_path / DATABASE
    content = bytearray(database.read_bytes())
    at = content.index(b'"kube-system"')
    content[at : at + 6] = b'"KUBE-'
    database.write_bytes(content)
    for _ in range(2):  # the second time it must not be "in use"
        with pytest.raises(StoreDamaged, match="checksum"):
            await server.start()


async def test_failed_start_releases_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(objects: object, client_ca: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(api_server, "bootstrap", fail)
        await ApiServer(tmp_path).start()
    server = ApiServer(tmp_path)
    await server.start()
    await server.stop()


async def test_controller_that_ends_by_itself_is_logged(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    async def crash() -> None:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.CRITICAL, api_server.__name__):
        task = server._run(crash(), "a test controller")
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "a test controller has stopped" in caplog.text
    assert "a bug" in caplog.text


async def test_stop_logs_no_ended_controller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    await server.stop()
    assert not caplog.records


async def test_stop_waits_for_accepted_writes(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    client = server.client()
    creating = [asyncio.create_task(client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{i}"), "default")) for i in range(20)]
    await asyncio.sleep(0)
    await server.stop()
    assert all(task.done() and not task.exception() for task in creating)
    await server.start()
    assert len((await server.client().list(CONFIG_MAP, "default"))["items"]) == 20
    await server.stop()


async def test_sandbox_kinds_are_updated_at_start(tmp_path: Path) -> None:
    """A new release comes with new definitions; the stored ones are those of the old."""
    server = ApiServer(tmp_path)
    await server.start()
    name = SANDBOX.group_resource
    current = await server.client().get(CUSTOM_RESOURCE_DEFINITION, name)
    old: Any = {"spec": {"names": {**current["spec"]["names"], "shortNames": ["older"]}}}
    await server.client().patch(CUSTOM_RESOURCE_DEFINITION, name, MergePatch(old))
    await server.stop()
    await server.start()
    updated = await server.client().get(CUSTOM_RESOURCE_DEFINITION, name)
    assert updated["spec"] == current["spec"]
    await server.stop()


async def test_deleting_a_kind_deletes_objects_accepted_meanwhile(server: ApiServer) -> None:
    """An object that is accepted while its definition's deletion is being synced is not left behind."""
    client = server.client()
    await install(client, definition(WIDGET))
    deleting = asyncio.create_task(client.delete(CUSTOM_RESOURCE_DEFINITION, WIDGET.group_resource))
    while not server.store._syncing:  # noqa: ASYNC110 - exactly this moment is what the test is about
        await asyncio.sleep(0)
    await client.create(WIDGET, new(WIDGET, "late"), "default")
    await deleting

    async def gone() -> bool:
        return server.store.get(CUSTOM_RESOURCE_DEFINITION.group_resource, Key("", WIDGET.group_resource)) is None

    await until(gone)
    assert server.store.count(WIDGET.group_resource) == 0
