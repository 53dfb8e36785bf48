"""Moving the storage of a cluster with live pods, both ways, and with kills at every write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from sandpool.api.kinds import CONFIG_MAP, LEASE, POD, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.labels import CLAIM_UID, VOLUME_STAMP
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.errors import InstallError
from sandpool.install.storage import choose_storage
from sandpool.install.storage_move import Direction
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.server.aggregated.aggregated_server import ServingOptions
from sandpool.server.aggregated.process import AggregatedProcess, ApiServerOptions
from sandpool.server.aggregated.storage_move import RECORD
from sandpool.server.aggregated.volume import WrongVolume
from sandpool.server.aggregated.volume_record import VolumeRecord
from sandpool.testing.objects import new
from tests.install.moving_world import NS, Dying, Killed, MovingWorld
from tests.support.api_objects import owner_reference
from tests.support.shared_template import NAME, change_shared_template, create_shared_template

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[MovingWorld]:
    world = MovingWorld(tmp_path)
    await world.start()
    yield world
    await world.stop()
    assert not world.would_collect


async def test_storage_moves_both_ways_and_pods_stay(world: MovingWorld) -> None:
    await world.claim("a")
    await world.claim("b")
    await world.filled()
    # What users attach: an object that belongs to a claim, and a finalizer.
    owner = owner_reference(await world.client.get(SANDBOX_CLAIM, "a", NS))
    await world.client.create(CONFIG_MAP, new(CONFIG_MAP, "of-a", metadata={"ownerReferences": [owner]}), NS)
    finalizers = {"metadata": {"finalizers": ["example.com/kept"]}}
    await world.client.patch(SANDBOX_CLAIM, "b", MergePatch(finalizers), NS)
    children, held, uids = await world.children(), await world.held(), await world.uids()
    await world.mover().move("aggregated")
    assert not await world.defined()
    assert (await world.children(), await world.held(), await world.uids()) == (children, held, uids)
    claim = await world.client.get(SANDBOX_CLAIM, "b", NS)
    assert claim["metadata"]["finalizers"] == ["example.com/kept"]
    await world.claim("c")  # the controllers work
    await world.filled()
    children, held = await world.children(), await world.held()
    assert VolumeRecord.read(await world.client.get(LEASE, names.LEASE, names.NAMESPACE)) is not None
    await world.mover().move("crd")
    assert not world.passes_on("agents.x-k8s.io")
    assert (await world.children(), await world.held()) == (children, held)
    renewed = await world.uids()
    assert renewed.keys() >= uids.keys()
    assert not set(renewed.values()) & set(uids.values())
    assert not await world.unowned()
    assert (await world.client.get(SANDBOX_CLAIM, "b", NS))["metadata"]["finalizers"] == ["example.com/kept"]
    attached = (await world.client.get(CONFIG_MAP, "of-a", NS))["metadata"]["ownerReferences"]
    assert attached == [{**owner, "uid": renewed[SANDBOX_CLAIM.kind, "a"]}]
    claims = {uid for (kind, _), uid in renewed.items() if kind == SANDBOX_CLAIM.kind}
    for pod in (await world.client.list(POD, NS))["items"]:
        label = pod["metadata"].get("labels", {}).get(CLAIM_UID)
        assert label is None or label in claims
        assert not any("moving" in key for key in pod["metadata"].get("annotations") or ())
        assert VOLUME_STAMP not in (pod["metadata"].get("annotations") or {})
    assert VolumeRecord.read(await world.client.get(LEASE, names.LEASE, names.NAMESPACE)) is None
    await world.claim("d")
    await world.filled()
    assert await world.held() == {**held, "d": (await world.held())["d"]}


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
async def test_mover_and_server_killed_at_every_write_of_the_mover_continue(world: MovingWorld, sent: bool) -> None:
    """Every run gets one write further than the one before."""
    await world.claim("a")
    await world.filled()
    directions: tuple[Direction, ...] = ("aggregated", "crd")
    for to in directions:
        children, held = await world.children(), await world.held()
        kills = 0
        while True:
            kills += 1
            try:
                await world.mover(Dying(world.client.transport, kills, sent=sent)).move(to)
                break
            except* Killed:
                pass
            await world.crash_process()
        assert kills > 10
        await world.served()
        assert (await world.children(), await world.held()) == (children, held)
        assert not await world.unowned()
        await world.claim(f"after-{to}")
        await world.filled()
        with pytest.raises(NotFound):
            await world.client.get(CONFIG_MAP, RECORD, names.NAMESPACE)


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
async def test_server_killed_at_every_request_finishes_its_part(world: MovingWorld, sent: bool) -> None:
    """Every process gets one request further than the one before, until one gets far enough."""
    await world.claim("a")
    await world.filled()
    world.killed_after_sending = sent
    directions: tuple[Direction, ...] = ("aggregated", "crd")
    for to in directions:
        children, held = await world.children(), await world.held()
        kills, world.killed_after = world.kills, 0
        if to == "crd":
            await world.crash_process()
        await world.mover().move(to)
        assert world.kills - kills > 10
        world.killed_after = inf
        await world.crash_process()
        await world.served()
        assert (await world.children(), await world.held()) == (children, held)
        assert not await world.unowned()
        await world.claim(f"after-{to}")
        await world.filled()


async def test_fields_keep_their_managers(world: MovingWorld) -> None:
    await create_shared_template(world.client, NS)
    for number, to in enumerate(get_args(Direction)):
        before = await managers(world)
        await world.mover().move(to)
        assert await managers(world) == before
        await change_shared_template(world.client, NS, f"after-{number}")


async def managers(world: MovingWorld) -> list[tuple[str, str, Object]]:
    """Which fields of the shared template belong to its two writers."""
    metadata = (await world.client.get(SANDBOX_TEMPLATE, NAME, NS))["metadata"]
    return [
        (each["manager"], each["operation"], each["fieldsV1"])
        for each in metadata["managedFields"]
        if each["manager"] in ("alice", "bob")
    ]


async def test_dry_run_says_what_would_happen_and_changes_nothing(world: MovingWorld) -> None:
    await world.claim("a")
    revision = world.api.store.revision
    world.told.clear()
    await world.mover().move("aggregated", dry_run=True)
    assert "1 sandboxtemplates, 1 sandboxwarmpools, 1 sandboxclaims" in world.told[0]
    assert "statefulset.apps/agent-sandbox-apiserver would be configured" in world.told
    assert "deployment.apps/agent-sandbox-controller would be deleted" in world.told
    assert not any("namespace" in line for line in world.told)
    with pytest.raises(NotFound):
        await world.client.get(CONFIG_MAP, RECORD, names.NAMESPACE)
    assert revision <= world.api.store.revision


async def test_writes_are_refused_while_objects_are_copied(world: MovingWorld) -> None:
    await world.mover().move("aggregated")
    refused: list[int] = []

    def told(line: str) -> None:
        world.told.append(line)

    mover = world.mover()
    copy = mover._copy

    async def copied() -> None:
        with pytest.raises(ServiceUnavailable, match="the storage of these objects moves") as error:
            await world.client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, "late", spec={}), NS)
        refused.append(error.value.details["retryAfterSeconds"])
        await copy()

    mover._copy = copied  # type: ignore[method-assign]
    await mover.move("crd")
    assert refused == [1]


async def test_moves_that_cannot_begin_say_why(world: MovingWorld) -> None:
    world.told.clear()
    await world.mover().move("crd")
    assert world.told == ["nothing to do: the storage is crd"]
    with pytest.raises(Killed):
        await world.mover(Dying(world.client.transport, 3, sent=True)).move("aggregated")
    with pytest.raises(InstallError, match="a move to aggregated is under way: finish it first"):
        await world.mover().move("crd")
    with pytest.raises(InstallError, match=r"a move of the storage is under way: .*storage move --to aggregated"):
        await choose_storage(world.client, None)
    await world.mover().move("aggregated")
    assert await choose_storage(world.client, None) == "aggregated"


async def test_volume_that_was_moved_out_does_not_replace_the_custom_resources(world: MovingWorld) -> None:
    """A StatefulSet that is created by mistake finds its old volume, with all that the custom resources have now."""
    await world.claim("a")
    await world.mover().move("aggregated")
    await world.filled()
    await world.mover().move("crd")
    serving = ServingOptions(world.directory / "volume", "127.0.0.1", 0, ("localhost",), names.NAMESPACE)
    options = ApiServerOptions(serving, names.LEASE, names.NAMESPACE)
    await world.end_controllers()
    transport = world.client.transport
    process = AggregatedProcess(transport, transport, SystemClock(), Random(1), options)
    await process.start()
    with pytest.raises(WrongVolume, match="its sandboxes may be custom resources"):
        await process.wait()
    await process.stop()
