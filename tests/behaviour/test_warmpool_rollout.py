"""Rolling updates of pools, and what a pool says of itself: status, Progressing and Available."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import PodView
from sandpool.api.warmpool import ON_REPLENISH, RECREATE, ROLLING_UPDATE
from sandpool.node.simulated import Fate, StartupStage
from sandpool.testing.world import World
from tests.support.backends import embedded
from tests.support.object_queries import image_of
from tests.support.sandbox_history import SandboxHistory, is_member

NEW = "example.com/image:2"
COMPLETE = ("True", "Complete", "all sandboxes are ready and of the current template")


def rolling(unavailable: int | str, surge: int | str) -> Object:
    return {"type": ROLLING_UPDATE, "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}


def is_ready_member(box: SharedObject) -> bool:
    return is_member(box) and is_ready(box) and "deletionTimestamp" not in box["metadata"]


def images(boxes: list[Object]) -> list[str]:
    return sorted(map(image_of, boxes))


def broken_from(made: int) -> Callable[[PodView], Fate]:
    """From the pod of that number on, none becomes ready: the template they are made from does not work."""
    seen: set[str] = set()

    def fate(pod: PodView) -> Fate:
        seen.add(pod.uid)
        return Fate.READY if len(seen) <= made else Fate.HANGING

    return fate


async def pool_of(world: World, replicas: int, strategy: Object) -> None:
    await world.template()
    await world.pool(replicas, updateStrategy=strategy)
    await world.wait(1)


# --- the bounds of a rollout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unavailable", "surge", "least", "most"),
    [
        (1, 0, 3, 4),
        (0, 1, 4, 5),
        *embedded((1, 1, 3, 5), (2, 0, 2, 4), ("25%", "50%", 3, 6), (0, "100%", 4, 8), (4, 4, 0, 8)),
    ],
)
async def test_rollout_keeps_its_bounds_at_every_instant(
    world: World, unavailable: int | str, surge: int | str, least: int, most: int
) -> None:
    world.node.delays = {StartupStage.READY: 1.0}
    await world.template()
    await world.pool(4, updateStrategy=rolling(unavailable, surge), filled=False)
    await world.wait(2)
    await world.filled(4)
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.change_template(NEW)
        await world.wait(30)
        await history.complete()

    assert images(await world.filled(4)) == [NEW] * 4
    assert history.most(is_member) <= most
    assert history.least(is_ready_member) >= least


async def test_rollout_without_bounds_uses_a_quarter(world: World) -> None:
    world.node.delays = {StartupStage.READY: 1.0}
    await world.template()
    await world.pool(4, strategy=ROLLING_UPDATE, filled=False)
    await world.wait(2)
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.change_template(NEW)
        await world.wait(30)
        await history.complete()

    assert images(await world.filled(4)) == [NEW] * 4
    assert (history.least(is_ready_member), history.most(is_member)) == (3, 5)


async def test_claims_during_a_rollout_get_a_current_sandbox_while_one_is_ready(world: World) -> None:
    """Otherwise they get one of the former template."""
    world.node.delays = {StartupStage.READY: 1.0}
    await world.template()
    await world.pool(2, updateStrategy=rolling(0, 1), filled=False)
    await world.wait(2)
    await world.filled(2)
    await world.change_template(NEW)
    await world.claim("early")
    assert image_of((await world.served(1))["early"]) == "example.com/image:1", "none of the new ones is ready yet"
    await world.wait(1)
    ready = [box for box in await world.members() if is_ready(box)]
    assert NEW in images(ready)
    await world.claim("later")
    assert image_of((await world.served(2))["later"]) == NEW
    await world.wait(30)
    assert images(await world.filled(2)) == [NEW] * 2


# --- a template that does not work -----------------------------------------------------------------------------------


async def test_template_that_never_becomes_ready_stops_the_rollout_and_is_reported(world: World) -> None:
    world.node.fate = broken_from(4)
    await pool_of(world, 4, rolling(1, 1))
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.change_template(NEW)
        await world.wait(2)
        told = await world.conditions(SANDBOX_WARM_POOL, "pool")
        assert told["Progressing"] == (
            "True",
            "RollingOut",
            "0 of 4 sandboxes are ready and of the current template",
        )
        await world.wait(1500)
        await history.complete()
    told = await world.conditions(SANDBOX_WARM_POOL, "pool")

    assert told["Progressing"] == (
        "False",
        "ProgressDeadlineExceeded",
        'sandboxes of template "python" do not become ready within 5m0s; the rollout is stopped and 3 sandboxes of the '
        "former template kept",
    )
    assert told["Available"] == ("True", "MinimumReplicasAvailable", "at least 3 of 4 sandboxes are ready")
    assert [image_of(box) for box in await world.members() if is_ready(box)] == ["example.com/image:1"] * 3
    assert history.least(is_ready_member) == 3
    assert history.most(is_member) <= 5
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    assert (status["replicas"], status["readyReplicas"]) == (5, 3)
    assert (status["updatedReplicas"], status.get("updatedReadyReplicas")) == (2, None)


async def test_stopped_rollout_continues_with_a_working_template(world: World) -> None:
    world.node.fate = broken_from(3)
    await pool_of(world, 3, rolling(1, 0))
    await world.change_template(NEW)
    await world.wait(500)
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"][:2] == (
        "False",
        "ProgressDeadlineExceeded",
    )
    world.node.fate = lambda pod: Fate.READY
    await world.change_template("example.com/image:3")
    await world.wait(5)

    assert images(await world.filled(3)) == ["example.com/image:3"] * 3
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == COMPLETE


async def test_reverted_rollout_keeps_the_members_that_are_current_again(world: World) -> None:
    world.node.fate = broken_from(3)
    await pool_of(world, 3, rolling(1, 0))
    before = {box["metadata"]["name"] for box in await world.members()}
    await world.change_template(NEW)
    await world.wait(5)
    world.node.fate = lambda pod: Fate.READY
    await world.change_template("example.com/image:1")
    await world.wait(5)
    after = {box["metadata"]["name"] for box in await world.filled(3)}

    assert len(before & after) == 2
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == COMPLETE


# --- what a pool says ------------------------------------------------------------------------------------------------


async def test_complete_pool_has_a_complete_status(world: World) -> None:
    await pool_of(world, 3, {"type": RECREATE})
    pool = await world.get(SANDBOX_WARM_POOL, "pool")
    status = dict(pool["status"])
    conditions = status.pop("conditions")

    assert status == {
        "replicas": 3,
        "readyReplicas": 3,
        "updatedReplicas": 3,
        "updatedReadyReplicas": 3,
        "selector": f"agents.x-k8s.io/warm-pool-sandbox={name_hash('pool')}",
        "observedGeneration": pool["metadata"]["generation"],
    }
    assert {each["observedGeneration"] for each in conditions} == {pool["metadata"]["generation"]}
    assert await world.conditions(SANDBOX_WARM_POOL, "pool") == {
        "Progressing": COMPLETE,
        "Available": ("True", "MinimumReplicasAvailable", "at least 3 of 3 sandboxes are ready"),
    }


async def test_e27_zero_counts_are_absent(world: World) -> None:
    await pool_of(world, 2, {"type": ON_REPLENISH})
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": 0}})
    await world.wait(1)
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]

    assert sorted(status) == ["conditions", "observedGeneration", "selector"]


async def test_filling_pool_reports_progress(world: World) -> None:
    world.node.delays = {StartupStage.READY: 5.0}
    await world.template()
    await world.pool(2, filled=False)
    await world.wait(1)
    assert await world.conditions(SANDBOX_WARM_POOL, "pool") == {
        "Progressing": ("True", "Replenishing", "0 of 2 sandboxes are ready"),
        "Available": ("False", "MinimumReplicasUnavailable", "fewer than 2 of 2 sandboxes are ready"),
    }
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    assert (status["replicas"], status.get("readyReplicas")) == (2, None)
    await world.wait(5)
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == COMPLETE


async def test_pool_with_stale_members_under_on_replenish_reports_it(world: World) -> None:
    await pool_of(world, 2, {"type": ON_REPLENISH})
    await world.change_template(NEW)
    await world.wait(1)
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == (
        "True",
        "OutdatedInUse",
        "2 sandboxes of the former template will be handed out before being replaced",
    )
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    assert (status["readyReplicas"], status.get("updatedReplicas")) == (2, None)
    await world.claim("mine")
    await world.wait(1)
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == (
        "True",
        "OutdatedInUse",
        "1 sandbox of the former template will be handed out before being replaced",
    )
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    assert (status["updatedReplicas"], status["updatedReadyReplicas"]) == (1, 1)


async def test_burst_writes_the_status_at_most_twice_a_second(world: World) -> None:
    await pool_of(world, 5, {"type": ON_REPLENISH})
    since = len(world.wire.requests)
    for number in range(10):
        await world.claim(f"claim-{number}")
        await world.wait(0.2)
    await world.served(10)
    written = [each for each in world.writes(since) if "/sandboxwarmpools/" in each.path]

    assert len(written) <= 5, "for two seconds"
    assert all(map(is_ready, await world.all(SANDBOX_CLAIM)))


# --- problems of members ---------------------------------------------------------------------------------------------


def crashed(name: str) -> Object:
    end = {"reason": "Error", "exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z", "message": "no module named app"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    container: Object = {"name": name, "image": "i", "imageID": "", "ready": False, "restartCount": 1}
    return {
        "status": {
            "containerStatuses": [{**container, "state": {"waiting": waiting}, "lastState": {"terminated": end}}]
        }
    }


async def test_pool_names_why_its_members_do_not_start(world: World) -> None:
    world.node.fate = lambda pod: Fate.HANGING
    await world.template()
    await world.pool(1, filled=False)
    await world.settle()
    (member,) = await world.members()
    await world.patch(POD, member["metadata"]["name"], crashed("main"), "status")

    async def told() -> bool:
        conditions = await world.conditions(SANDBOX_WARM_POOL, "pool")
        cause = 'container "main" ended with exit code 3 (Error): "no module named app"'
        progressing = ("True", "Replenishing", f"0 of 1 sandboxes are ready: {cause}")
        failure = ("True", "MemberNotStarting", cause)
        return (conditions["Progressing"], conditions.get("ReplicaFailure")) == (progressing, failure)

    async def recovered() -> bool:
        return "ReplicaFailure" not in await world.conditions(SANDBOX_WARM_POOL, "pool")

    await world.wait(2)
    await world.until(told)
    world.node.fate = lambda pod: Fate.READY
    await world.change_template(NEW)  # replaces the member at once, as it never became ready
    await world.filled(1)
    await world.wait(2)
    await world.until(recovered)


@pytest.mark.parametrize("strategy", [ON_REPLENISH, ROLLING_UPDATE])
async def test_fixed_template_replaces_members_that_never_became_ready_at_once(world: World, strategy: str) -> None:
    world.node.fate = broken_from(0)
    await world.template()
    await world.pool(3, strategy=strategy, filled=False)
    await world.wait(20)
    for member in await world.members():
        await world.patch(POD, member["metadata"]["name"], crashed("main"), "status")
    world.node.fate = lambda pod: Fate.READY
    await world.change_template(NEW)
    await world.wait(5)  # the grace period is 300 s
    assert images(await world.filled(3)) == [NEW] * 3
