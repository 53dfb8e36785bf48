"""The end of a claim: shutdown time, finished TTL and policies. Edge case 43 of docs/compatibility.md."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sandpool.api.claim import DELETE, DELETE_FOREGROUND, RETAIN
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import CLAIM_TTL, CLAIM_UNBOUND_TTL, IDLE_SUSPEND_AFTER
from sandpool.api.resource import Object
from sandpool.engine.clock import timestamp
from sandpool.kube.client import MergePatch
from sandpool.kube.transport import Request
from sandpool.testing.clock import ManualClock
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference
from tests.support.object_queries import is_adoption, is_creation

EXPIRED = ("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.")


def in_seconds(world: World, seconds: float) -> str:
    return timestamp(world.clock.now() + timedelta(seconds=seconds))


def endings(requests: list[Request]) -> list[str]:
    """Return the writes about the end of a claim, in order."""
    told = []
    for request in requests:
        if request.method == "DELETE":
            told.append(f"delete {request.path.split('/')[-2]}")
        elif request.path.endswith("/status") and "/sandboxclaims/" in request.path:
            told.append("say so")
    return told


async def claimed(world: World, **lifecycle: object) -> str:
    """A claim that is ready; the name of its sandbox."""
    await world.template()
    await world.pool(1)
    await world.claim("mine", **({"lifecycle": lifecycle} if lifecycle else {}))
    name: str = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(1)
    return name


@pytest.mark.parametrize("policy", [DELETE, DELETE_FOREGROUND])
async def test_claim_with_policy_delete_is_marked_expired_and_deleted(world: World, policy: str) -> None:
    name = await claimed(world, shutdownTime=in_seconds(world, 60), shutdownPolicy=policy)
    since = len(world.wire.requests)
    await world.wait(58)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    await world.wait(4)
    await world.gone(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, name)
    await world.gone(POD, name)

    assert endings(world.wire.requests[since:]) == ["say so", "delete sandboxclaims"]
    (delete,) = [each for each in world.wire.requests[since:] if each.method == "DELETE"]
    assert delete.body["propagationPolicy"] == ("Foreground" if policy == DELETE_FOREGROUND else "Background")
    told = [(each["reason"], each["action"], each["note"]) for each in await world.events("mine")]
    assert sorted(told)[:2] == [
        ("ClaimExpired", "Claim Expired", "Claim expired"),
        ("ClaimExpired", "Deleting", f"Deleting Claim (ShutdownPolicy={policy})"),
    ]
    await world.filled(1)


@pytest.mark.parametrize("lifecycle", [{"shutdownPolicy": RETAIN}, {}], ids=["Retain", "by default"])
async def test_claim_with_policy_retain_loses_its_sandbox_and_reports_why(world: World, lifecycle: Object) -> None:
    name = await claimed(world, shutdownTime=in_seconds(world, 60), **lifecycle)
    since = len(world.wire.requests)
    await world.wait(62)
    await world.gone(SANDBOX, name)
    await world.gone(POD, name)
    await world.settle()

    assert endings(world.wire.requests[since:])[:2] == ["say so", "delete sandboxes"]
    claim = await world.get(SANDBOX_CLAIM, "mine")
    assert await world.conditions(SANDBOX_CLAIM, "mine") == {"Ready": EXPIRED}
    assert "sandbox" not in claim["status"]
    since = len(world.wire.requests)
    await world.wait(3600)
    assert [each for each in world.writes(since) if "/sandboxclaims" in each.path] == []
    assert not any(is_adoption(each) for each in world.wire.requests[since:])


async def test_e43_claim_expired_before_its_first_reconcile_gets_no_sandbox(world: World) -> None:
    await world.template()
    await world.pool(1)
    since = len(world.wire.requests)
    await world.claim("late", lifecycle={"shutdownTime": "2020-01-01T00:00:00Z"})
    await world.wait(1)

    assert await world.conditions(SANDBOX_CLAIM, "late") == {"Ready": EXPIRED}
    assert not [each for each in world.wire.requests[since:] if is_adoption(each) or is_creation(each)]


@pytest.mark.parametrize("ttl", [0, 30])
async def test_e43_claim_expires_after_its_pod_has_finished(world: World, ttl: int) -> None:
    """In two reconciles, even without time between them: the status reports the expiry before the deletion."""
    name = await claimed(world, ttlSecondsAfterFinished=ttl, shutdownPolicy=DELETE)
    since = len(world.wire.requests)
    await world.node.end(world.namespace, name, "Succeeded")
    await world.settle()
    if ttl:
        assert await world.conditions(SANDBOX_CLAIM, "mine") == {
            "Finished": ("True", "PodSucceeded", "Pod completed successfully"),
            "Ready": ("False", "PodSucceeded", "Pod completed successfully"),
        }
        await world.wait(ttl - 2)
        assert await world.exists(SANDBOX_CLAIM, "mine")
    await world.wait(3)
    await world.gone(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, name)

    assert endings(world.wire.requests[since:])[-2:] == ["say so", "delete sandboxclaims"]


async def test_finished_outlives_the_sandbox_of_a_retained_claim(world: World) -> None:
    name = await claimed(world, ttlSecondsAfterFinished=10)
    await world.node.end(world.namespace, name, "Failed")
    await world.settle()
    await world.wait(12)
    await world.gone(SANDBOX, name)
    await world.settle()

    told = await world.conditions(SANDBOX_CLAIM, "mine")
    assert told.pop("StateLost")[:2] == ("True", "PodFailed")
    assert told == {"Finished": ("True", "PodFailed", "Pod failed"), "Ready": EXPIRED}


@pytest.mark.parametrize("first", ["shutdownTime", "ttlSecondsAfterFinished"])
async def test_e43_earlier_of_shutdown_time_and_ttl_wins(world: World, first: str) -> None:
    time, ttl = (20, 100) if first == "shutdownTime" else (100, 20)
    name = await claimed(world, shutdownTime=in_seconds(world, time), ttlSecondsAfterFinished=ttl)
    await world.node.end(world.namespace, name, "Succeeded")
    await world.settle()
    await world.wait(17)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"][1] == "PodSucceeded"
    await world.wait(5)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"] == EXPIRED


async def test_e43_sandbox_of_another_owner_is_not_deleted(world: World) -> None:
    name = await claimed(world, shutdownTime=in_seconds(world, 60))
    await world.claim("other")
    other = await world.get(SANDBOX_CLAIM, "other")
    await world.controllers.stop()
    reference = owner_reference(other, controller=True, block=True)
    body = {"metadata": {"ownerReferences": [reference]}}
    await world.client.patch(SANDBOX, name, MergePatch(body), world.namespace)
    assert isinstance(world.clock, ManualClock)
    await world.clock.advance(62)
    world.controllers = world.new_controllers()
    await world.controllers.start()
    since = len(world.wire.requests)
    await world.wait(1)

    assert await world.conditions(SANDBOX_CLAIM, "mine") == {
        "Ready": (
            "False",
            "ClaimExpired",
            f'Claim expired. sandbox not owned by this claim: sandbox "{name}" is not owned by claim "mine"; deletion '
            "skipped.",
        )
    }
    assert "sandbox" not in (await world.get(SANDBOX_CLAIM, "mine"))["status"]
    assert await world.exists(SANDBOX, name)
    assert not [each for each in world.wire.requests[since:] if each.method == "DELETE"]


async def test_shutdown_time_moved_to_the_past_expires_at_once(world: World) -> None:
    await claimed(world, shutdownTime=in_seconds(world, 600))
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"lifecycle": {"shutdownTime": in_seconds(world, -1)}}})
    await world.wait(1)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"] == EXPIRED


async def test_expired_sandbox_is_reported_by_its_claim(world: World) -> None:
    name = await claimed(world)
    await world.patch(SANDBOX, name, {"spec": {"shutdownTime": in_seconds(world, 30)}})
    await world.wait(32)

    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"] == (
        "False",
        "SandboxExpired",
        "Underlying Sandbox resource has expired independently of the Claim.",
    )
    assert (await world.get(SANDBOX_CLAIM, "mine"))["status"]["sandbox"]["name"] == name
    assert "shutdownTime" not in (await world.get(SANDBOX_CLAIM, "mine"))["spec"].get("lifecycle", {})


# --- defaults of the pool --------------------------------------------------------------------------------------------


async def set_default(world: World, name: str, value: str | None) -> None:
    await world.patch(SANDBOX_WARM_POOL, "pool", {"metadata": {"annotations": {name: value}}})


async def test_claim_that_says_nothing_ends_when_its_pool_says(world: World) -> None:
    name = await claimed(world)
    since = len(world.wire.requests)
    await set_default(world, CLAIM_TTL, "1m")
    await world.wait(50)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    assert endings(world.wire.requests[since:]) == []
    await set_default(world, CLAIM_TTL, "2m")
    await world.wait(30)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    await world.wait(45)
    await world.gone(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, name)
    assert endings(world.wire.requests[since:]) == ["say so", "delete sandboxclaims"]


async def test_pool_default_costs_a_warm_claim_no_write(world: World) -> None:
    await world.template()
    await world.pool(2)
    counts = []
    for number, value in enumerate((None, "1h")):
        await set_default(world, CLAIM_TTL, value)
        await set_default(world, CLAIM_UNBOUND_TTL, value)
        since = len(world.wire.requests)
        await world.claim(f"mine-{number}")
        await world.served(number + 1)
        await world.wait(60)
        changes = [each for each in world.wire.requests[since:] if "/sandboxclaims/" in each.path]
        counts.append(len([each for each in changes if each.method in ("PATCH", "PUT", "POST")]))
    assert counts[0] == counts[1]


async def test_pool_says_when_the_sandboxes_of_its_claims_fall_asleep(world: World) -> None:
    name = await claimed(world)

    async def idle() -> str | None:
        await world.settle()
        annotations = (await world.get(POD, name))["metadata"].get("annotations") or {}
        return annotations.get(IDLE_SUSPEND_AFTER)

    assert await idle() is None
    for value in ("2h", "3h", None):
        await set_default(world, IDLE_SUSPEND_AFTER, value)
        await world.wait(30)
        assert await idle() == value
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


async def test_claim_that_never_gets_a_sandbox_ends(world: World) -> None:
    await world.pool(1, filled=False)  # its template does not exist
    await set_default(world, CLAIM_UNBOUND_TTL, "5m")
    await world.claim("mine")
    await world.wait(280)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"][1] == "TemplateNotFound"
    await world.wait(60)
    await world.gone(SANDBOX_CLAIM, "mine")


async def test_claim_that_was_served_does_not_end_as_one_that_never_was(world: World) -> None:
    await claimed(world)
    await set_default(world, CLAIM_UNBOUND_TTL, "1m")
    await world.wait(120)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
