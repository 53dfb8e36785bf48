"""Propagation of labels and annotations to the pod: added, kept and removed."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import (
    CREATED_BY,
    PROPAGATED_ANNOTATIONS,
    PROPAGATED_LABELS,
    SANDBOX_NAME_HASH,
    TEMPLATE_REF_HASH,
    WARM_POOL,
)
from sandpool.api.names import name_hash
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference

POOL = name_hash("pool")
# A pool without a template neither makes members nor judges those it has.
ROOM_FOR_ONE = {"replicas": 1, "sandboxTemplateRef": {"name": "missing"}}
TRACKING = {SANDBOX_NAME_HASH: name_hash("box")}


async def labels(world: World) -> dict[str, str]:
    found: dict[str, str] = (await world.get(POD))["metadata"]["labels"]
    return found


async def notes(world: World) -> dict[str, str]:
    found: dict[str, str] = (await world.get(POD))["metadata"].get("annotations", {})
    return found


async def say(world: World, **metadata: Any) -> None:
    """Change the metadata of the pod template."""
    await world.patch(SANDBOX, "box", {"spec": {"podTemplate": {"metadata": metadata}}})


async def test_changed_template_metadata_reach_the_pod_in_one_write(world: World) -> None:
    await world.sandbox(podTemplate=pod_template(labels={"a": "1", "b": "1"}, annotations={"x": "1"}))
    world.written()
    await say(world, labels={"a": "2", "b": None, "c": "1"}, annotations={"x": None, "y": "1"})
    assert world.written()[0] == "patch pods"
    assert world.written() == []
    assert await labels(world) == {"a": "2", "c": "1", **TRACKING}
    assert await notes(world) == {"y": "1", PROPAGATED_LABELS: "a,c", PROPAGATED_ANNOTATIONS: "y"}


async def test_emptied_key_lists_stay_empty(world: World) -> None:
    await world.sandbox(podTemplate=pod_template(labels={"a": "1"}, annotations={"x": "1"}))
    await say(world, labels=None, annotations=None)
    assert await labels(world) == TRACKING
    assert await notes(world) == {PROPAGATED_LABELS: "", PROPAGATED_ANNOTATIONS: ""}


async def test_foreign_metadata_of_the_pod_are_kept(world: World) -> None:
    await world.sandbox(podTemplate=pod_template(labels={"a": "1"}))
    await world.patch(POD, "box", {"metadata": {"labels": {"theirs": "1"}, "annotations": {"theirs": "1"}}})
    await say(world, labels={"a": None, "b": "1"})
    assert await labels(world) == {"b": "1", "theirs": "1", **TRACKING}
    assert (await notes(world))["theirs"] == "1"


async def test_metadata_removed_from_the_pod_are_restored(world: World) -> None:
    await world.sandbox(podTemplate=pod_template(labels={"a": "1"}))
    await world.patch(POD, "box", {"metadata": {"labels": {"a": "2", SANDBOX_NAME_HASH: None}}})
    assert await labels(world) == {"a": "1", **TRACKING}


@pytest.mark.parametrize(
    ("creator", "told"),
    [("go-client", "go-client"), ("python-client", "python-client"), ("controller", "controller"), ("me", "unknown")],
)
async def test_creator_label_has_one_of_four_values(world: World, creator: str, told: str) -> None:
    await world.sandbox(metadata={"labels": {CREATED_BY: creator}})
    assert (await labels(world))[CREATED_BY] == told
    await world.patch(SANDBOX, "box", {"metadata": {"labels": {CREATED_BY: None}}})
    assert await labels(world) == TRACKING


async def test_pool_and_template_labels_follow_the_controller(world: World) -> None:
    """The pool label requires a pool as controller, the template label a pool or a claim."""
    pool = await world.create(SANDBOX_WARM_POOL, "pool", spec=ROOM_FOR_ONE)
    claim = await world.create(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "other"}})
    await world.sandbox(metadata={"labels": {WARM_POOL: "11111111", TEMPLATE_REF_HASH: "22222222"}})
    assert await labels(world) == TRACKING, "it has no owner"
    for owner, told in ((claim, {}), (pool, {WARM_POOL: POOL}), (claim, {})):
        references = [owner_reference(owner, controller=True, block=True)]
        await world.patch(SANDBOX, "box", {"metadata": {"ownerReferences": references}})
        assert await labels(world) == {**TRACKING, TEMPLATE_REF_HASH: "22222222", **told}


async def test_owner_kind_is_recognised_in_any_version(world: World) -> None:
    pool = await world.create(SANDBOX_WARM_POOL, "pool", spec=ROOM_FOR_ONE)
    reference = {**owner_reference(pool, controller=True), "apiVersion": "extensions.agents.x-k8s.io/v1alpha1"}
    await world.sandbox(metadata={"labels": {WARM_POOL: POOL}, "ownerReferences": [reference]})
    assert await labels(world) == {**TRACKING, WARM_POOL: POOL}
