"""Every condition shows the generation that its controller has seen, so that clients can wait for it (kstatus)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.node.simulated import Fate
from sandpool.testing.world import World
from tests.behaviour.test_late_binding import ENV
from tests.behaviour.test_late_binding import template as opted_in_template


def in_seconds(world: World, seconds: float) -> str:
    return timestamp(world.clock.now() + timedelta(seconds=seconds))


async def generations(world: World, type: ResourceType, name: str) -> tuple[int, dict[str, int]]:
    """The generation of an object, and the one that each of its conditions shows."""
    found = await world.get(type, name)
    conditions = found["status"]["conditions"]
    return found["metadata"]["generation"], {each["type"]: each["observedGeneration"] for each in conditions}


async def change(world: World, type: ResourceType, name: str, spec: Object) -> None:
    """Change a spec, and check that all conditions follow with one write of the status at most."""
    before, _ = await generations(world, type, name)
    await world.settle()
    world.written()
    await world.patch(type, name, {"spec": spec})
    await world.wait(11)
    statuses = [each for each in world.written() if each == f"patch {type.plural}/status"]
    generation, shown = await generations(world, type, name)
    assert generation == before + 1
    assert set(shown.values()) == {generation}, shown
    assert len(statuses) <= 1
    await world.wait(60)
    assert [each for each in world.written() if each.endswith("/status")] == []


async def test_sandbox_conditions_follow_a_change_that_changes_nothing_else(world: World) -> None:
    await world.sandbox()
    await change(world, SANDBOX, "box", {"shutdownPolicy": "Delete"})


async def test_suspended_sandbox_conditions_follow(world: World) -> None:
    await world.sandbox(operatingMode="Suspended")
    await change(world, SANDBOX, "box", {"shutdownPolicy": "Delete"})


async def test_expired_sandbox_conditions_follow(world: World) -> None:
    await world.sandbox(shutdownTime=in_seconds(world, 60))
    await world.wait(62)
    await change(world, SANDBOX, "box", {"operatingMode": "Suspended"})


async def test_conditions_follow_the_change_that_makes_a_sandbox_expire(world: World) -> None:
    await world.sandbox()
    await world.patch(SANDBOX, "box", {"spec": {"shutdownTime": in_seconds(world, -5)}})
    await world.wait(5)
    assert await generations(world, SANDBOX, "box") == (2, {"Suspended": 2, "Ready": 2})


async def test_expired_sandbox_keeps_finished_at_the_new_generation(world: World) -> None:
    world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.sandbox(shutdownTime=in_seconds(world, 60))
    await world.wait(62)
    assert (await generations(world, SANDBOX, "box"))[1].keys() == {"Suspended", "Finished", "Ready"}
    await change(world, SANDBOX, "box", {"operatingMode": "Suspended"})


async def test_foreign_conditions_are_left_alone(world: World) -> None:
    """A condition that another controller writes has a generation of that controller."""
    await world.sandbox(shutdownTime=in_seconds(world, 60))
    theirs = {
        "type": "Audited",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": in_seconds(world, 0),
        "reason": "Checked",
        "message": "",
    }
    conditions = (await world.get())["status"]["conditions"]
    await world.patch(SANDBOX, "box", {"status": {"conditions": [*conditions, theirs]}}, "status")
    await world.wait(62)
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    await world.wait(11)
    assert await generations(world, SANDBOX, "box") == (2, {"Suspended": 2, "Ready": 2, "Audited": 1})


async def claimed(world: World, **lifecycle: object) -> str:
    """A claim that is ready; the name of its sandbox."""
    await world.template()
    await world.pool(1)
    await world.claim("mine", lifecycle=lifecycle)
    name: str = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(1)
    await world.wait(11)
    return name


async def test_claim_conditions_follow_a_change_that_changes_nothing_else(world: World) -> None:
    await claimed(world, shutdownPolicy="Retain")
    await change(world, SANDBOX_CLAIM, "mine", {"lifecycle": {"ttlSecondsAfterFinished": 7200}})


async def test_finished_claim_conditions_follow(world: World) -> None:
    world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.template()
    await world.pool(0)
    await world.claim("mine", lifecycle={"shutdownPolicy": "Retain"})
    await world.wait(11)
    assert (await generations(world, SANDBOX_CLAIM, "mine"))[1].keys() == {"Ready", "Finished"}
    await change(world, SANDBOX_CLAIM, "mine", {"lifecycle": {"ttlSecondsAfterFinished": 7200}})


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "running"])
async def test_expired_claim_conditions_follow(world: World, finished: bool) -> None:
    if finished:
        world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.template()
    await world.pool(0)
    await world.claim("mine", lifecycle={"shutdownPolicy": "Retain", "shutdownTime": in_seconds(world, 60)})
    await world.wait(75)
    expected = {"Ready", "Finished"} if finished else {"Ready"}
    assert (await generations(world, SANDBOX_CLAIM, "mine"))[1].keys() == expected
    await change(world, SANDBOX_CLAIM, "mine", {"lifecycle": {"ttlSecondsAfterFinished": 7200}})


async def test_conditions_follow_the_change_that_makes_a_finished_claim_expire(world: World) -> None:
    world.node.fate = lambda pod: Fate.SUCCEEDED
    await world.template()
    await world.pool(0)
    await world.claim("mine", lifecycle={"shutdownPolicy": "Retain"})
    await world.wait(11)
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"lifecycle": {"shutdownTime": in_seconds(world, -5)}}})
    await world.wait(5)
    assert await generations(world, SANDBOX_CLAIM, "mine") == (2, {"Ready": 2, "Finished": 2})


async def test_conditions_follow_the_change_that_makes_a_claim_with_variables_expire(world: World) -> None:
    """All of them with the write that reports the expiry: a client that sees it has nothing more to wait for."""
    await opted_in_template(world)
    await world.pool(2)
    await world.claim("mine", env=ENV, lifecycle={"shutdownPolicy": "Retain"})
    await world.served(1)
    await world.wait(11)
    assert await generations(world, SANDBOX_CLAIM, "mine") == (1, {"EnvironmentBound": 1, "Ready": 1})
    since = len(world.wire.requests)
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"lifecycle": {"shutdownTime": in_seconds(world, -5)}}})
    await world.wait(11)
    first, *_ = (each for each in world.wire.requests[since:] if each.path.endswith("/sandboxclaims/mine/status"))
    shown = {each["type"]: each for each in first.body["status"]["conditions"]}
    assert shown["Ready"]["reason"] == "ClaimExpired"
    assert {type: each["observedGeneration"] for type, each in shown.items()} == {"EnvironmentBound": 2, "Ready": 2}


async def test_conditions_follow_after_a_lost_pod(world: World) -> None:
    """StateLost, which stays, shows the new generation as all others do, also when the sandbox has expired."""
    name = await claimed(world, shutdownPolicy="Retain")
    await world.delete(POD, name)
    await world.wait(30)
    for type, object_name in ((SANDBOX, name), (SANDBOX_CLAIM, "mine")):
        assert "StateLost" in (await generations(world, type, object_name))[1]
    await change(world, SANDBOX_CLAIM, "mine", {"lifecycle": {"ttlSecondsAfterFinished": 7200}})
    await change(world, SANDBOX, name, {"shutdownPolicy": "Delete"})
    await world.patch(SANDBOX, name, {"spec": {"shutdownPolicy": "Retain", "shutdownTime": in_seconds(world, 5)}})
    await world.wait(30)
    generation, shown = await generations(world, SANDBOX, name)
    assert "StateLost" in shown
    assert set(shown.values()) == {generation}


async def test_rejected_claim_conditions_follow(world: World) -> None:
    """The pool does not exist, and still does not after the change."""
    await world.claim("mine", lifecycle={"shutdownPolicy": "Retain"})
    await change(world, SANDBOX_CLAIM, "mine", {"lifecycle": {"ttlSecondsAfterFinished": 7200}})


async def test_sandbox_conditions_follow_what_its_claim_changes(world: World) -> None:
    """Adoption may change the spec of the sandbox. The status follows off the path of the claim."""
    await world.template()
    await world.pool(1)
    await world.filled(1)
    world.written()
    metadata = {"labels": {"sandbox.users.io/team": "blue"}}
    await world.claim("mine", additionalPodMetadata=metadata)
    name: str = (await world.served(1))["mine"]["metadata"]["name"]
    assert "patch sandboxes/status" not in world.written()[:2]
    await world.wait(11)
    generation, shown = await generations(world, SANDBOX, name)
    assert generation > 1
    assert set(shown.values()) == {generation}
    pod = await world.get(POD, name)
    assert SANDBOX_NAME_HASH in pod["metadata"]["labels"]


@pytest.mark.parametrize("has_template", [True, False])
async def test_pool_conditions_follow(world: World, has_template: bool) -> None:
    if has_template:
        await world.template()
    await world.pool(1, filled=has_template)
    await world.wait(5)
    await change(world, SANDBOX_WARM_POOL, "pool", {"updateStrategy": {"type": "Recreate"}})
    pool = await world.get(SANDBOX_WARM_POOL, "pool")
    assert pool["status"]["observedGeneration"] == pool["metadata"]["generation"]


async def test_conditions_of_a_pool_with_failing_members_follow(world: World) -> None:
    world.node.fate = lambda pod: Fate.HANGING
    await world.template()
    await world.pool(1, filled=False)
    await world.settle()
    (member,) = await world.members()
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    await world.patch(POD, member["metadata"]["name"], {"status": status}, "status")
    await world.wait(5)
    assert "ReplicaFailure" in (await generations(world, SANDBOX_WARM_POOL, "pool"))[1]
    await change(world, SANDBOX_WARM_POOL, "pool", {"updateStrategy": {"type": "Recreate"}})
