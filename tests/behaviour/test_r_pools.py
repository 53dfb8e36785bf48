"""Pool replenishment: never too many members, and never too few for long. R18 to R29 of docs/guarantees.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sandpool.api.conditions import AVAILABLE, PROGRESSING, is_ready
from sandpool.api.kinds import SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.metrics import CLAIM_CREATIONS
from sandpool.api.resource import Key, Object
from sandpool.api.warmpool import RECREATE
from sandpool.controllers.options import WarmPoolOptions
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import Forbidden
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate, StartupStage, all_ready
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.waiting import until
from sandpool.testing.world import World, owner_of
from tests.support.backends import embedded
from tests.support.intercepting_transport import Interceptor, nothing
from tests.support.object_queries import image_of, is_adoption, is_creation, is_deletion, is_warm, named_in
from tests.support.sandbox_history import SandboxHistory, is_member
from tests.support.simulated_nodes import reconsider

HELD = "3/3 sandboxes are unschedulable past the 5m0s readiness grace period"
BECAUSE = ": 0/1 nodes are available: 1 Insufficient cpu."


async def scale(world: World, replicas: int) -> None:
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": replicas}})


def names(boxes: list[Object]) -> set[str]:
    return {box["metadata"]["name"] for box in boxes}


def creations(world: World, since: int = 0) -> int:
    return sum(map(is_creation, world.wire.requests[since:]))


async def test_r18_stale_list_creates_no_surplus_member(world: World) -> None:
    """No watch event arrives after the first creation, and the pool is reconciled repeatedly."""
    interceptor = Interceptor.behind(world.wire)
    await world.restart()
    await world.template()

    async def freeze(request: Request) -> None:
        if is_creation(request):
            interceptor.hold_watches()

    async with SandboxHistory(world.client, world.namespace) as history:
        interceptor.before = freeze
        spec = {"replicas": 5, "sandboxTemplateRef": {"name": "python"}}
        body = {"apiVersion": SANDBOX_WARM_POOL.api_version, "kind": "SandboxWarmPool", "metadata": {"name": "pool"}}
        await world.client.create(SANDBOX_WARM_POOL, {**body, "spec": spec}, world.namespace)
        pools = world.controllers.warm_pools.controller

        async def all_are_made() -> bool:
            return creations(world) == 5

        await until(all_are_made)
        for _ in range(8):
            pools.enqueue(Key(world.namespace, "pool"))
            await pools.queue.settled()
        interceptor.before = nothing
        interceptor.release_watches()
        await world.filled(5)
        await world.wait(600)
        await history.complete()

    assert creations(world) == 5
    assert history.most(is_member) == 5


async def test_r18_lost_responses_create_no_surplus_member(world: World) -> None:
    await world.template()
    lost: list[str] = []

    def lose(request: Request) -> Fault | None:
        if is_creation(request) and len(lost) < 4:
            lost.append(named_in(request))
            return Fault.LOSE
        return None

    async with SandboxHistory(world.client, world.namespace) as history:
        world.wire.fault = lose
        await world.pool(6, filled=False)
        await world.wait(60)
        await world.filled(6)
        await history.complete()

    assert len(lost) == 4
    assert history.most(is_member) == 6
    assert creations(world) == 6


async def test_r19_slowly_terminating_members_are_counted(world: World) -> None:
    await world.template()
    await world.pool(3, strategy=RECREATE)
    for member in await world.members():
        body = {"metadata": {"finalizers": ["example.com/slow"]}}
        await world.patch(SANDBOX, member["metadata"]["name"], body)
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.change_template("example.com/image:2")
        await world.wait(120)
        assert all("deletionTimestamp" in box["metadata"] for box in await world.members())
        slow = names(await world.members())
        for left, name in enumerate(sorted(slow), start=1):
            await world.patch(SANDBOX, name, {"metadata": {"finalizers": None}})
            assert sum(image_of(box) == "example.com/image:2" for box in await world.members()) == left
        await world.filled(3)
        await history.complete()

    assert history.most(is_member) == 3


async def test_r20_deleting_a_deleted_member_does_not_block_the_pool(world: World) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(3)
    gone: list[str] = []

    async def delete_first(request: Request) -> None:
        if is_deletion(request):
            gone.append(named_in(request))
            await world.client.delete(SANDBOX, gone[-1], world.namespace)

    interceptor.before = delete_first
    before = world.clock.monotonic()
    await scale(world, 1)
    await scale(world, 3)
    await world.filled(3)

    assert len(gone) == 2
    assert world.clock.monotonic() == before, "at once"


async def test_r21_hour_without_capacity_creates_and_deletes_nothing(world: World) -> None:
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.template()
    await world.pool(3, filled=False)
    await world.wait(3600)

    assert creations(world) == 3
    assert not any(map(is_deletion, world.wire.requests))
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))[PROGRESSING] == (
        "False",
        "Unschedulable",
        HELD + BECAUSE,
    )


async def test_r22_quiet_pool_requeues_itself_and_reports_once(world: World) -> None:
    """Not one event comes for two hours."""
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.template()
    await world.pool(3, filled=False)
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))[PROGRESSING][:2] == ("True", "Replenishing")
    await world.wait(2 * 3600)

    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))[PROGRESSING] == (
        "False",
        "Unschedulable",
        HELD + BECAUSE,
    )
    (event,) = await world.events("pool")
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "WarmPoolNotProgressing", "Reconciling")
    assert event["note"] == (f"{HELD}; holding them instead of replacing (replacements would be equally unschedulable)")
    assert "series" not in event
    # There is room again, and starting takes longer than the pool waits before it looks again.
    world.node.fate, world.node.delays = all_ready, {StartupStage.READY: 90}
    reconsider(world.node)
    await world.wait(100)
    await world.filled(3)
    assert sorted(each["reason"] for each in await world.events("pool")) == [
        "WarmPoolNotProgressing",
        "WarmPoolProgressing",
    ]
    assert creations(world) == 3, "those that waited so long are the ones that start"


async def test_r23_pools_warmed_together_requeue_at_different_times(world: World) -> None:
    """All members of ten pools run out of grace at the same moment."""
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.template()
    for number in range(10):
        await world.pool(1, name=f"pool-{number}", filled=False)
    told: dict[str, float] = {}

    def note(request: Request) -> None:
        if request.path.endswith("/status") and "Unschedulable" in str(request.body):
            told.setdefault(named_in(request), world.clock.monotonic())

    world.wire.fault = note
    begin = world.clock.monotonic()
    await world.wait(500)
    moments = sorted(moment - begin for moment in told.values())

    assert len(moments) == 10
    assert moments[0] >= 300
    assert len({round(moment) for moment in moments}) > 5, "spread over two minutes and a half"


async def test_r24_burst_is_served_before_the_pool_is_refilled(world: World) -> None:
    """As many claims as there are members, then one more; the refill waits for 30 seconds without arrivals."""
    settings = replace(world.settings, warm_pool=WarmPoolOptions(replenish_delay=30))
    await world.restart(settings=settings)
    await world.template()
    await world.pool(5)
    since = len(world.wire.requests)
    for number in range(6):
        await world.claim(f"claim-{number}")
        await world.wait(1)
    served = await world.served(6)

    assert [is_warm(served[f"claim-{number}"]) for number in range(6)] == [True] * 5 + [False]
    requests = world.wire.requests[since:]
    assert sum(map(is_adoption, requests)) == 5
    assert [named_in(each) for each in requests if is_creation(each)] == ["claim-5"], "nothing but what was asked for"
    await world.wait(30)
    await world.filled(5)


async def test_r24_extra_claim_is_served_at_once_without_refill_delay(world: World) -> None:
    await world.template()
    await world.pool(5)
    before = world.clock.monotonic()
    for number in range(6):
        await world.claim(f"claim-{number}")
    served = await world.served(6)

    assert all(map(is_warm, served.values()))
    assert world.clock.monotonic() == before


async def test_r25_claimed_member_is_replaced_without_time_passing(world: World) -> None:
    await world.template()
    await world.pool(2)
    before = world.clock.monotonic()
    await world.claim("mine")
    await world.delete(SANDBOX, (await world.members())[0]["metadata"]["name"])
    await world.filled(2)

    assert world.clock.monotonic() == before


async def test_r26_scaling_down_deletes_unready_members_and_then_the_newest(world: World) -> None:
    await world.template()
    await world.pool(2)
    old = names(await world.members())
    world.node.fate = lambda pod: Fate.HANGING
    await scale(world, 4)
    hanging = names(await world.members()) - old
    assert len(hanging) == 2
    await scale(world, 3)
    assert len(names(await world.members()) & hanging) == 1
    await scale(world, 2)
    assert names(await world.filled(2)) == old
    await scale(world, 1)
    assert names(await world.filled(1)) < old


QUOTA = 'sandboxes.agents.x-k8s.io is forbidden: exceeded quota: "sandboxes"'


async def test_r27_repeated_creation_failures_pause_the_pool_report_why_and_recover(world: World) -> None:
    await world.template()
    world.wire.fault = lambda request: Forbidden(QUOTA) if is_creation(request) else None
    await world.pool(4, filled=False)
    await world.wait(10)
    told = await world.conditions(SANDBOX_WARM_POOL, "pool")
    attempts = creations(world)
    assert 4 <= attempts <= 5, "after pauses of at most 1, 2, 4 and 8 seconds, and at least half of that"
    assert told[PROGRESSING] == (
        "False",
        "CreationFailing",
        f"creating sandboxes failed {attempts} times in a row, pausing for {2 ** (attempts - 1)}s: {QUOTA}",
    )
    assert told[AVAILABLE] == ("False", "MinimumReplicasUnavailable", "fewer than 3 of 4 sandboxes are ready")
    await world.wait(3600 - 10)
    assert creations(world) <= 10 + 3600 // 150, "pauses of up to five minutes between attempts"
    world.wire.heal()
    await world.wait(450)
    await world.filled(4)
    await world.wait(1)
    told = await world.conditions(SANDBOX_WARM_POOL, "pool")
    assert told[PROGRESSING] == ("True", "Complete", "all sandboxes are ready and of the current template")
    assert told[AVAILABLE] == ("True", "MinimumReplicasAvailable", "at least 3 of 4 sandboxes are ready")


async def test_r28_autoscaled_pool_serves_every_claim(world: World) -> None:
    """It comes with the pool, sees no load yet, and goes down to one just before the burst."""
    await world.template()
    await world.pool(4)
    scaled = MergePatch({"spec": {"replicas": 1}})
    await world.client.patch(SANDBOX_WARM_POOL, "pool", scaled, world.namespace, subresource="scale")
    for number in range(4):
        await world.claim(f"claim-{number}")
    await scale(world, 4)
    served = await world.served(4)
    members = await world.filled(4)
    await world.wait(1)

    assert len({box["metadata"]["uid"] for box in (*served.values(), *members)}) == 8
    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    shown = await world.client.get(SANDBOX_WARM_POOL, "pool", world.namespace, subresource="scale")
    assert shown["status"] == {"replicas": 4, "selector": status["selector"]}


async def test_r29_pools_of_one_template_are_counted_separately(world: World) -> None:
    await world.template()
    await world.pool(2, name="mine", filled=False)
    await world.pool(3, name="theirs", filled=False)
    await world.filled(5)
    for number in range(2):
        await world.claim(f"claim-{number}", warmPoolRef={"name": "mine"})
    await world.served(2)
    await world.filled(5)
    await world.wait(1)

    counted = Counter[str]()
    for values, count in world.controllers.metrics.counter(CLAIM_CREATIONS).copy().samples:
        counted[dict(zip(CLAIM_CREATIONS.labels, values, strict=True))["warmpool_name"]] += int(count)
    assert counted == {"mine": 2}
    for pool, replicas in (("mine", 2), ("theirs", 3)):
        status = (await world.get(SANDBOX_WARM_POOL, pool))["status"]
        assert (status["replicas"], status["readyReplicas"]) == (replicas, replicas)
    made = Counter(owner_of(box) for box in await world.members() if is_ready(box))
    assert made == {("SandboxWarmPool", "mine"): 2, ("SandboxWarmPool", "theirs"): 3}


@pytest.mark.parametrize("fate", [Fate.HANGING, *embedded((Fate.FAILED,), (Fate.UNSCHEDULABLE,))])
async def test_members_that_do_not_become_ready_never_multiply(world: World, fate: Fate) -> None:
    """Whatever is wrong with its members, a pool never exceeds its size (R18, R21, R27)."""
    world.node.fate = lambda pod: fate
    await world.template()
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.pool(3, filled=False)
        await world.wait(3600)
        await history.complete()

    assert history.most(is_member) == 3
    # Each gets five minutes, or no time at all where it has ended for good, and is then replaced one for one.
    assert creations(world) <= 3 * (1 + 3600 // 300)
