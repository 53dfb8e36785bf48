"""A sandbox that loses its state says so, and so does its claim: condition and event, once, with the reason."""

from __future__ import annotations

from sandpool.api.kinds import POD, SANDBOX_CLAIM
from sandpool.api.resource import Object
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
    assert "StateLost" not in await world.told(SANDBOX_CLAIM, "mine")
    await world.patch(POD, name, RESTARTED, "status")

    async def told() -> bool:
        return "StateLost" in await world.told(SANDBOX_CLAIM, "mine")

    await world.until(told)
    for status, reason, message in (
        (await world.told(name=name))["StateLost"],
        (await world.told(SANDBOX_CLAIM, "mine"))["StateLost"],
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
    assert "StateLost" not in await world.told(name=name)
    await world.claim("mine")
    await world.served(1)
    assert "StateLost" not in await world.told(SANDBOX_CLAIM, "mine")
