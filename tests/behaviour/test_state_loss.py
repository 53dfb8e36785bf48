"""A sandbox that loses its state says so, and so does its claim: condition and event, once, with the reason."""

from __future__ import annotations

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD, SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.controllers.metrics import STATE_LOSSES
from sandpool.testing.world import World

RESTARTED: Object = {
    "status": {
        "containerStatuses": [
            {
                "name": "main",
                "image": "example.com/image:1",
                "imageID": "",
                "ready": True,
                "restartCount": 1,
                "state": {"running": {}},
                "lastState": {
                    "terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2199-01-01T00:00:00Z"}
                },
            }
        ]
    }
}


async def test_oom_kill_is_told_by_sandbox_and_claim(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.filled(1)
    await world.claim("mine")
    (box,) = (await world.served(1)).values()
    name = box["metadata"]["name"]
    assert "StateLost" not in await world.conditions(SANDBOX_CLAIM, "mine")
    await world.patch(POD, name, RESTARTED, "status")

    async def told() -> bool:
        return "StateLost" in await world.conditions(SANDBOX_CLAIM, "mine")

    await world.until(told)
    for status, reason, message in (
        (await world.conditions(name=name))["StateLost"],
        (await world.conditions(SANDBOX_CLAIM, "mine"))["StateLost"],
    ):
        assert (status, reason) == ("True", "OOMKilled")
        assert "ran out of memory and was killed with exit code 137" in message
    for regarding in (name, "mine"):
        events = [each for each in await world.events(regarding) if each["reason"] == "StateLost"]
        assert [each["type"] for each in events] == ["Warning"]


async def test_idle_pool_member_that_restarts_tells_nothing_also_after_it_is_claimed(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.filled(1)
    name = member["metadata"]["name"]
    earlier = {"lastState": {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": "2001-01-01T00:00:00Z"}}}
    (container,) = RESTARTED["status"]["containerStatuses"]
    await world.patch(POD, name, {"status": {"containerStatuses": [{**container, **earlier}]}}, "status")
    await world.settle()
    assert "StateLost" not in await world.conditions(name=name)
    await world.claim("mine")
    await world.served(1)
    assert "StateLost" not in await world.conditions(SANDBOX_CLAIM, "mine")


async def claimed(world: World) -> str:
    """Claim a sandbox and return its name, which is also that of its pod."""
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    (box,) = (await world.served(1)).values()
    name: str = box["metadata"]["name"]
    return name


async def replaced(world: World, name: str, uid: str) -> None:
    """Wait until another pod serves the sandbox, and its status shows that."""

    async def serves() -> bool:
        if not await world.exists(POD, name) or (await world.get(POD, name))["metadata"]["uid"] == uid:
            return False
        told = await world.conditions(name=name)
        return told["Ready"][0] == "True" and "Finished" not in told

    await world.until(serves)
    await world.settle()


async def losses(world: World, name: str) -> tuple[list[str], list[str], float]:
    """The causes that the events of sandbox and claim name, and how many losses are counted."""
    told = [
        [each["note"].partition(":")[0] for each in await world.events(regarding) if each["reason"] == "StateLost"]
        for regarding in (name, "mine")
    ]
    exposed = (await world.controllers.metrics.render())[0].decode().splitlines()
    mine = f'{STATE_LOSSES.name}{{namespace="{world.namespace}",'
    return told[0], told[1], sum(float(line.split()[-1]) for line in exposed if line.startswith(mine))


STOPPED: Object = {"reason": "Error", "exitCode": 143, "finishedAt": "2199-01-01T00:00:00Z"}


def failed(reason: str = "", **state: Object) -> Object:
    container = {"name": "main", "image": "example.com/image:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed", "containerStatuses": [{**container, "state": state}] if state else []}
    return {"status": {**status, "reason": reason} if reason else status}


async def test_deleted_pod_that_fails_while_it_stops_is_one_loss(world: World) -> None:
    """As with ``kubectl delete pod``: the node ends the containers, and the pod fails before it is gone."""
    name = await claimed(world)
    pod = await world.patch(POD, name, {"metadata": {"finalizers": ["example.com/kept"]}})
    await world.delete(POD, name)
    await world.patch(POD, name, failed(terminated=STOPPED), "status")
    await world.patch(POD, name, {"metadata": {"finalizers": None}})
    await replaced(world, name, pod["metadata"]["uid"])
    assert await losses(world, name) == (["PodReplaced"], ["PodReplaced"], 1)


async def test_evicted_pod_that_is_deleted_later_is_one_loss(world: World) -> None:
    name = await claimed(world)
    pod = await world.patch(POD, name, failed("Evicted"), "status")

    async def told() -> bool:
        return "StateLost" in await world.conditions(SANDBOX_CLAIM, "mine")

    await world.until(told)
    await world.delete(POD, name)
    await replaced(world, name, pod["metadata"]["uid"])
    assert await losses(world, name) == (["Evicted"], ["Evicted"], 1)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["StateLost"][1] == "Evicted", "also after its replacement"


async def test_pod_of_a_lost_node_is_one_loss(world: World) -> None:
    """Its pods are marked as not ready, and deleted without waiting for the node."""
    name = await claimed(world)
    pod = await world.get(POD, name)
    ready = condition_of(pod, "Ready")
    assert ready is not None
    others = [each for each in pod["status"]["conditions"] if each["type"] != "Ready"]
    silent = {"conditions": [*others, {**ready, "status": "False", "reason": "NodeLost"}]}
    await world.patch(POD, name, {"status": silent}, "status")
    await world.delete(POD, name, grace_period_seconds=0)
    await replaced(world, name, pod["metadata"]["uid"])
    assert await losses(world, name) == (["PodReplaced"], ["PodReplaced"], 1)


async def test_second_restart_is_a_second_loss(world: World) -> None:
    name = await claimed(world)
    (container,) = RESTARTED["status"]["containerStatuses"]
    for count, finished in ((1, "2199-01-01T00:00:00Z"), (2, "2199-01-01T00:01:00Z")):
        end = {**container["lastState"]["terminated"], "finishedAt": finished, "exitCode": 136 + count}
        again = {**container, "restartCount": count, "lastState": {"terminated": end}}
        await world.patch(POD, name, {"status": {"containerStatuses": [again]}}, "status")
        await world.settle()
    assert await losses(world, name) == (["OOMKilled"] * 2, ["OOMKilled"] * 2, 2)
