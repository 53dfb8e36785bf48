"""Limits of a namespace: claims beyond them wait in line and say the number, and pools stay smaller than they ask."""

from __future__ import annotations

import pytest

from sandpool.api.conditions import find_condition, is_ready
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.labels import MAX_CLAIMS, MAX_WARM_SANDBOXES
from sandpool.controllers.options import ControllerOptions
from sandpool.explain.blockers import blocker
from sandpool.explain.observe import observe_claim
from sandpool.kube.transport import Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.world import World
from tests.support import namespace_limits
from tests.support.object_queries import is_adoption, is_creation

REASON = "ClaimLimitReached"


async def limit(world: World, annotation: str, value: str | None) -> None:
    """Set a limit, and settle."""
    await namespace_limits.limit(world, annotation, value)
    await world.settle()


async def ready_claims(world: World) -> list[str]:
    return sorted(each["metadata"]["name"] for each in await world.all(SANDBOX_CLAIM) if is_ready(each))


async def waiting_claims(world: World) -> list[str]:
    """Claims that say that they wait because of the limit."""
    found = []
    for each in await world.all(SANDBOX_CLAIM):
        ready = find_condition((each.get("status") or {}).get("conditions") or [], "Ready")
        if ready is not None and ready["reason"] == REASON:
            found.append(each["metadata"]["name"])
    return sorted(found)


async def test_claim_beyond_the_limit_waits_and_says_the_number(world: World) -> None:
    await world.template()
    await world.pool(3)
    await limit(world, MAX_CLAIMS, "2")
    for name in ("a", "b"):
        await world.claim(name)
    await world.served(2)
    since = len(world.wire.requests)
    await world.claim("c")
    told = (await world.conditions(SANDBOX_CLAIM, "c"))["Ready"]
    assert told[:2] == ("False", REASON)
    assert "as many claims with a sandbox as it may have (2)" in told[2]
    (event,) = [each for each in await world.events("c") if each["reason"] == REASON]
    assert "(2)" in event["note"]
    assert not [each for each in world.wire.requests[since:] if is_adoption(each) or is_creation(each)]

    observed = await observe_claim(world.client, world.namespace, "c", world.clock.now())
    found = blocker(observed)
    assert found is not None and "(2)" in found.cause and MAX_CLAIMS in found.advice

    await world.delete(SANDBOX_CLAIM, "a")
    await world.gone(SANDBOX_CLAIM, "a")
    assert sorted(await world.served(2)) == ["b", "c"]


async def test_waiting_claims_are_served_in_the_order_of_their_creation(world: World) -> None:
    await world.template()
    await world.pool(3)
    await limit(world, MAX_CLAIMS, "1")
    await world.claim("first")
    await world.served(1)
    order = ["second", "third"]
    for name in order:
        await world.claim(name)
    served = "first"
    for name in order:
        await world.delete(SANDBOX_CLAIM, served)
        await world.gone(SANDBOX_CLAIM, served)
        names = [name]

        async def is_served(names: list[str] = names) -> bool:
            return await ready_claims(world) == names

        await world.until(is_served)
        served = name


async def test_burst_beyond_the_limit_gets_exactly_the_limit(world: World) -> None:
    await world.template()
    await world.pool(4)
    await limit(world, MAX_CLAIMS, "3")
    for number in range(8):
        await world.client.create(
            SANDBOX_CLAIM,
            {
                "apiVersion": SANDBOX_CLAIM.api_version,
                "kind": SANDBOX_CLAIM.kind,
                "metadata": {"name": f"claim-{number}"},
                "spec": {"warmPoolRef": {"name": "pool"}},
            },
            world.namespace,
        )
    await world.settle()

    async def all_told() -> bool:
        return len(await ready_claims(world)) == 3 and len(await waiting_claims(world)) == 5

    await world.until(all_told)
    owned = [box for box in await world.all(SANDBOX) if box["metadata"]["ownerReferences"][0]["kind"] == "SandboxClaim"]
    assert len(owned) == 3


async def test_lowered_limit_takes_no_sandbox_away_and_a_raised_one_serves_at_once(world: World) -> None:
    await world.template()
    await world.pool(3)
    for name in ("a", "b"):
        await world.claim(name)
    await world.served(2)
    await limit(world, MAX_CLAIMS, "1")
    await world.wait(120)
    assert await ready_claims(world) == ["a", "b"]
    await world.claim("c")
    assert await waiting_claims(world) == ["c"]
    await world.delete(SANDBOX_CLAIM, "a")
    await world.gone(SANDBOX_CLAIM, "a")
    await world.wait(1)
    assert await waiting_claims(world) == ["c"]
    await limit(world, MAX_CLAIMS, "unlimited")
    assert sorted(await world.served(2)) == ["b", "c"]


async def test_claim_that_leaves_the_line_makes_room_for_the_next(world: World) -> None:
    await world.template()
    await world.pool(3)
    await limit(world, MAX_CLAIMS, "1")
    await world.claim("a")
    await world.served(1)
    await world.claim("b")
    await world.claim("c")
    await world.delete(SANDBOX_CLAIM, "b")
    await world.delete(SANDBOX_CLAIM, "a")
    await world.gone(SANDBOX_CLAIM, "a")
    assert sorted(await world.served(1)) == ["c"]


async def test_claim_that_cannot_be_served_takes_no_place(world: World) -> None:
    await world.template()
    await world.pool(2)
    await limit(world, MAX_CLAIMS, "1")
    await world.claim("without-a-pool", warmPoolRef={"name": "none"})
    await world.claim("with-variables", env=[{"name": "A", "value": "1"}])  # the template does not allow them
    await world.claim("a")

    async def is_served() -> bool:
        return await ready_claims(world) == ["a"]

    await world.until(is_served)
    assert (await world.conditions(SANDBOX_CLAIM, "without-a-pool"))["Ready"][1] in ("WarmPoolNotFound", REASON)


@pytest.mark.parametrize("grace", [10.0, 0.0], ids=["stopped", "killed"])
async def test_successor_knows_the_places_of_its_predecessor(world: World, grace: float) -> None:
    await world.template()
    await world.pool(3)
    await limit(world, MAX_CLAIMS, "2")
    for name in ("a", "b", "c"):
        await world.claim(name)
    await world.restart(grace)
    await world.settle()
    await world.claim("d")
    assert await ready_claims(world) == ["a", "b"]
    assert await waiting_claims(world) == ["c", "d"]


async def test_adoption_without_an_answer_keeps_its_place(world: World) -> None:
    await world.template()
    await world.pool(3)
    await limit(world, MAX_CLAIMS, "1")
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if lost or not is_adoption(request):
            return None
        lost.append(request)
        return Fault.LOSE

    world.wire.fault = lose
    await world.claim("a")
    await world.claim("b")
    await world.wait(5)
    assert lost
    assert await ready_claims(world) == ["a"]
    assert await waiting_claims(world) == ["b"]


async def test_flag_applies_to_namespaces_without_an_annotation(world: World) -> None:
    await world.restart(settings=ControllerOptions(max_claims_per_namespace=1, max_warm_sandboxes_per_namespace=2))
    await world.template()
    await world.pool(5, filled=False)
    await world.filled(2)
    await world.claim("a")
    await world.claim("b")
    assert await waiting_claims(world) == ["b"]
    await limit(world, MAX_CLAIMS, "2")
    await world.served(2)
    await limit(world, MAX_CLAIMS, "many")  # not a number: the flag applies again
    await world.claim("c")
    assert await waiting_claims(world) == ["c"]


async def test_pools_share_the_limit_of_the_namespace_the_oldest_first(world: World) -> None:
    await world.template()
    await limit(world, MAX_WARM_SANDBOXES, "4")
    await world.pool(3, name="a")
    await world.pool(3, name="b", filled=False)
    await world.filled(4)
    await world.wait(1)
    assert (await world.get(SANDBOX_WARM_POOL, "a"))["status"]["replicas"] == 3
    progressing = (await world.conditions(SANDBOX_WARM_POOL, "b"))["Progressing"]
    assert progressing[:2] == ("False", "SizeLimited")
    assert "to 4: this pool keeps 1 of 3" in progressing[2]
    (event,) = [each for each in await world.events("b") if each["reason"] == "SizeLimited"]
    assert event["note"] == progressing[2]

    await world.patch(SANDBOX_WARM_POOL, "a", {"spec": {"replicas": 1}})
    await world.filled(4)
    await world.wait(1)
    assert (await world.conditions(SANDBOX_WARM_POOL, "b"))["Progressing"][1] == "Complete"
    await limit(world, MAX_WARM_SANDBOXES, "0")

    async def none_left() -> bool:
        return not await world.members()

    await world.until(none_left)
    await limit(world, MAX_WARM_SANDBOXES, None)
    await world.filled(4)


async def test_limit_costs_a_claim_that_is_served_no_write(world: World) -> None:
    await world.template()
    await world.pool(2)
    counts = []
    for number, value in enumerate((None, "5")):
        await limit(world, MAX_CLAIMS, value)
        since = len(world.wire.requests)
        await world.claim(f"mine-{number}")
        await world.served(number + 1)
        await world.wait(60)
        counts.append(len([each for each in world.writes(since) if "/sandboxclaims/" in each.path]))
    assert counts[0] == counts[1]
