"""Lifecycle, leaks and recovery: nothing is left behind, in any order. R41 to R57 of docs/guarantees.md."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import permutations, product

import pytest

from sandpool.api.claim import DELETE
from sandpool.api.conditions import READY, is_ready
from sandpool.api.kinds import (
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.engine.clock import timestamp
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate, StartupStage
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import pod_template
from sandpool.testing.world import WRITES, World, owner_of, owners
from tests.support.backends import embedded
from tests.support.object_queries import is_creation, is_deletion

DISK: Object = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def in_seconds(world: World, seconds: float) -> str:
    return timestamp(world.clock.now() + timedelta(seconds=seconds))


async def until_left(world: World, type: ResourceType, count: int) -> None:
    """Wait until the garbage collector has left that many. Disks count as gone when they are on their way out: of a
    Kubernetes without nodes no kubelet ever reports that they are unused."""

    async def left() -> bool:
        found = await world.all(type)
        if type is PERSISTENT_VOLUME_CLAIM:
            found = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return len(found) == count

    await world.until(left)


# --- R41 to R43: who dies, is cancelled or fails between two steps leaves nothing ------------------------------------


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "bound"])
async def test_r41_claim_of_a_dead_client_expires_and_frees_everything(world: World, waits: bool) -> None:
    """No client reads or deletes it; its shutdown time ends it."""
    world.node.delays = {StartupStage.READY: 1e6} if waits else {}
    await world.template()
    await world.pool(1, filled=not waits)
    end = in_seconds(world, 60)
    await world.claim("forgotten", lifecycle={"shutdownTime": end, "shutdownPolicy": DELETE})
    await world.wait(62)
    await until_left(world, SANDBOX_CLAIM, 0)
    await until_left(world, SANDBOX, 1)
    await until_left(world, POD, 1)

    assert await owners(world) == {("SandboxWarmPool", "pool"): 1}
    assert len(world.controllers.claims.assigner) == 1


async def test_r41_claim_deleted_while_waiting_passes_its_turn_on(world: World) -> None:
    world.node.delays = {StartupStage.READY: 1.0}
    await world.template()
    await world.pool(1, filled=False)
    await world.claim("first")
    await world.claim("second")
    await world.delete(SANDBOX_CLAIM, "first")
    await world.wait(5)
    served = await world.served(1)

    assert list(served) == ["second"]
    await world.wait(5)
    assert await owners(world) == {("SandboxWarmPool", "pool"): 1, ("SandboxClaim", "second"): 1}


@pytest.mark.parametrize("step", [1, *embedded((0,), (2,), (3,), (4,), (5,))])
async def test_r42_reconciles_cancelled_at_any_request_leak_nothing(world: World, step: int) -> None:
    """The controllers are stopped without any grace while the request of that number hangs, and others start."""
    await world.template()
    await world.pool(2)
    count = 0

    def hang(request: Request) -> Fault | None:
        nonlocal count
        if request.method not in WRITES or request.path.endswith("/events"):
            return None
        count += 1
        return Fault.HOLD if count > step else None

    world.wire.fault = hang
    await world.claim("mine")
    assert count > step
    world.wire.heal()
    await world.restart(grace=0)
    await world.wait(5)
    served = await world.served(1)
    await world.filled(2)

    assert owner_of(served["mine"]) == ("SandboxClaim", "mine")
    assert await owners(world) == {("SandboxWarmPool", "pool"): 2, ("SandboxClaim", "mine"): 1}
    assert len(await world.all(POD)) == 3


@pytest.mark.parametrize(("step", "fault"), [(2, Fault.LOSE), *embedded(*product(range(6), [Fault.CUT, Fault.LOSE]))])
async def test_r43_failure_of_any_step_after_creation_leaks_nothing(world: World, step: int, fault: Fault) -> None:
    """A cold claim with a disk and a service: sandbox, disk, pod, service, and what is said of them."""
    await world.template(volumeClaimTemplatesPolicy="Allowed", service=True)
    await world.pool(0, filled=False)
    count = 0

    def fail(request: Request) -> Fault | None:
        nonlocal count
        if request.method not in WRITES or request.path.endswith("/events"):
            return None
        count += 1
        return fault if count == step + 1 else None

    world.wire.fault = fail
    await world.claim("mine", volumeClaimTemplates=[DISK])
    await world.wait(5)
    await world.served(1)
    assert count > step
    for type in (SANDBOX, PERSISTENT_VOLUME_CLAIM, POD, SERVICE):
        assert len(await world.all(type)) == 1, type
    await world.delete(SANDBOX_CLAIM, "mine")
    for type in (SANDBOX, PERSISTENT_VOLUME_CLAIM, POD, SERVICE):
        await until_left(world, type, 0)


# --- R44 and R45: everything can be deleted, in every order and state ------------------------------------------------


ORDERS = permutations(["claim", "pool", "template"])


@pytest.mark.parametrize("order", [("template", "pool", "claim"), *embedded(*((order,) for order in ORDERS))], ids=str)
async def test_r44_claim_pool_and_template_can_be_deleted_in_any_order(world: World, order: tuple[str, ...]) -> None:
    types = {
        "claim": (SANDBOX_CLAIM, "mine"),
        "pool": (SANDBOX_WARM_POOL, "pool"),
        "template": (SANDBOX_TEMPLATE, "python"),
    }
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    await world.filled(1)
    for kind in order:
        await world.delete(*types[kind])
    for type in (SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE, SANDBOX, POD):
        await until_left(world, type, 0)


STATES = [Fate.READY, Fate.FAILED, Fate.SUCCEEDED, Fate.UNSCHEDULABLE, "suspended"]


@pytest.mark.parametrize("state", [Fate.HANGING, "expired", *embedded(*((each,) for each in STATES))], ids=str)
async def test_r45_sandbox_can_be_deleted_in_every_state(world: World, state: Fate | str) -> None:
    if isinstance(state, Fate):
        world.node.fate = lambda pod: state
    await world.sandbox(shutdownTime=in_seconds(world, 60))
    if state == "suspended":
        await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    if state == "expired":
        await world.wait(61)
        assert (await world.conditions())[READY][1] == "SandboxExpired"
    await world.delete(SANDBOX, "box")
    await until_left(world, SANDBOX, 0)
    await until_left(world, POD, 0)


@pytest.mark.parametrize("state", ["waiting", *embedded(("without pool",), ("refused",), ("not ready",), ("ready",))])
async def test_r45_claim_can_be_deleted_in_every_state(world: World, state: str) -> None:
    await world.template()
    if state != "without pool":
        world.node.fate = (lambda pod: Fate.HANGING) if state in ("waiting", "not ready") else lambda pod: Fate.READY
        await world.pool(1, filled=False)
    await world.claim("mine", env=[{"name": "A", "value": "b"}] if state == "refused" else [])
    if state == "not ready":
        await world.wait(3)
        assert (await world.get(SANDBOX_CLAIM, "mine"))["status"]["sandbox"]["name"]
    await world.delete(SANDBOX_CLAIM, "mine")
    await until_left(world, SANDBOX_CLAIM, 0)
    members = 0 if state == "without pool" else 1
    await until_left(world, SANDBOX, members)
    assert len(await world.members()) == members
    assert len(world.controllers.claims.assigner) == members


# --- R46 and R47: pods that end --------------------------------------------------------------------------------------


async def test_r46_service_and_volume_of_a_killed_pod_are_deleted_with_the_claim(world: World) -> None:
    """Out of memory: the pod is Failed, and neither the service nor the disk is to stay behind."""
    await world.template(volumeClaimTemplatesPolicy="Allowed", service=True)
    await world.pool(0, filled=False)
    lifecycle = {"ttlSecondsAfterFinished": 30, "shutdownPolicy": DELETE}
    await world.claim("mine", volumeClaimTemplates=[DISK], lifecycle=lifecycle)
    await world.served(1)
    await world.node.end(world.namespace, "mine")
    await world.settle()
    told = await world.conditions(SANDBOX_CLAIM, "mine")
    assert told["Finished"] == ("True", "PodFailed", "Pod failed")
    assert told["Ready"] == ("False", "PodFailed", "Pod failed")
    await world.wait(33)
    for type in (SANDBOX_CLAIM, SANDBOX, POD, SERVICE, PERSISTENT_VOLUME_CLAIM):
        await until_left(world, type, 0)


async def test_r46_member_with_a_killed_pod_is_replaced(world: World) -> None:
    await world.template()
    await world.pool(2)
    (first, _) = await world.members()
    since = len(world.wire.requests)
    await world.node.end(world.namespace, first["metadata"]["name"])
    await world.wait(460)  # the grace period, and half of it again at most
    await until_left(world, SANDBOX, 2)

    assert first["metadata"]["name"] not in [box["metadata"]["name"] for box in await world.members()]
    assert sum(map(is_deletion, world.wire.requests[since:])) == 1


async def test_r47_evicted_pod_is_created_again_with_the_same_volume(world: World) -> None:
    await world.sandbox(volumeClaimTemplates=[DISK])
    disk = await world.get(PERSISTENT_VOLUME_CLAIM, "data-box")
    before = await world.get(POD, "box")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "box"}}
    await world.client.create(POD, eviction, world.namespace, name="box", subresource="eviction")
    await world.settle()

    async def is_back() -> bool:
        try:
            pod = await world.get(POD, "box")
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] != before["metadata"]["uid"]) and is_ready(await world.get())

    await world.until(is_back)
    assert (await world.get(PERSISTENT_VOLUME_CLAIM, "data-box"))["metadata"]["uid"] == disk["metadata"]["uid"]
    (volume,) = [each for each in (await world.get(POD, "box"))["spec"]["volumes"] if each["name"] == "data"]
    assert volume["persistentVolumeClaim"]["claimName"] == "data-box"


# --- R48 and R49: moments that count ---------------------------------------------------------------------------------


async def test_r48_claim_expires_at_its_time_and_reports_it_once(world: World) -> None:
    await world.template()
    await world.pool(1)
    end = in_seconds(world, 100)
    await world.claim("mine", lifecycle={"shutdownTime": end})
    to_go = (at(end) - world.clock.now()).total_seconds()
    await world.wait(to_go - 0.001)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))[READY][0] == "True"
    await world.wait(0.001)
    told = await world.conditions(SANDBOX_CLAIM, "mine")
    assert told[READY] == ("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.")
    since = len(world.wire.requests)
    await world.wait(30)
    assert sum(map(is_deletion, world.wire.requests[since:])) <= 1, "what it does is done once"
    await until_left(world, SANDBOX, 1)
    (event,) = [each for each in await world.events("mine") if each["reason"] == "ClaimExpired"]
    assert "series" not in event
    await world.restart()
    await world.wait(100)
    assert [each["reason"] for each in await world.events("mine")].count("ClaimExpired") == 1


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_r49_concurrent_suspend_resume_and_delete_leave_nothing(world: World) -> None:
    await world.sandbox()
    patches = [MergePatch({"spec": {"operatingMode": mode}}) for mode in ("Suspended", "Running", "Suspended")]
    requests = [world.client.patch(SANDBOX, "box", patch, world.namespace) for patch in patches]
    requests.insert(2, world.client.delete(SANDBOX, "box", world.namespace))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    await world.settle()
    await world.wait(5)
    await until_left(world, SANDBOX, 0)
    await until_left(world, POD, 0)

    assert not [each for each in answers if isinstance(each, BaseException) and not isinstance(each, NotFound)]
    assert world.controllers.sandboxes.controller.failures == 0


@pytest.mark.parametrize("last", ["Suspended", "Running"])
async def test_r49_quick_changes_end_with_the_last(world: World, last: str) -> None:
    world.node.termination = 5.0
    await world.sandbox()
    first = "Running" if last == "Suspended" else "Suspended"
    for mode in (first, last) * 3:
        body = MergePatch({"spec": {"operatingMode": mode}})
        await world.client.patch(SANDBOX, "box", body, world.namespace)
    await world.settle()
    await world.wait(10)
    told = await world.conditions()
    if last == "Suspended":
        assert told["Suspended"] == ("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended")
        assert not await world.exists(POD)
    else:
        assert told["Ready"] == ("True", "DependenciesReady", "Pod is Ready")
        assert told["Suspended"] == ("False", "NotSuspended", "Sandbox is not suspended")
        assert await world.exists(POD)


# --- R54 and R57: books and claimed state ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [4, *embedded((0,), (2,), (6,), (8,), (10,))])
async def test_r54_counts_match_the_objects_after_a_crash_at_any_write(world: World, step: int) -> None:
    await world.template()
    await world.pool(3)
    count = 0

    def hang(request: Request) -> Fault | None:
        nonlocal count
        if request.method not in WRITES or request.path.endswith("/events"):
            return None
        count += 1
        return Fault.HOLD if count > step else None

    world.wire.fault = hang
    await world.claim("first")
    await world.claim("second")
    assert count > step
    world.wire.heal()
    await world.restart(grace=0)
    await world.wait(5)
    await world.served(2)
    members = await world.filled(3)

    status = (await world.get(SANDBOX_WARM_POOL, "pool"))["status"]
    assert (status["replicas"], status["readyReplicas"]) == (len(members), len(members))
    assert len(world.controllers.claims.assigner) == len(members), "the assigner knows exactly the free members"
    await world.delete(SANDBOX_CLAIM, "first")
    await world.delete(SANDBOX_CLAIM, "second")
    await until_left(world, SANDBOX, 3)
    assert len(world.controllers.claims.assigner) == 3


@pytest.mark.parametrize("strategy", [RECREATE, ROLLING_UPDATE])
async def test_r57_rollout_never_touches_a_claimed_sandbox(world: World, strategy: str) -> None:
    disk = {"podTemplate": pod_template(), "volumeClaimTemplates": [DISK]}
    await world.create(SANDBOX_TEMPLATE, "python", spec=disk)
    await world.pool(2, strategy=strategy)
    await world.claim("mine")
    name = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(2)
    kinds = ((SANDBOX, name), (POD, name), (PERSISTENT_VOLUME_CLAIM, f"data-{name}"))
    before = [(await world.get(*each))["metadata"]["uid"] for each in kinds]
    spec = (await world.get(SANDBOX, name))["spec"]
    since = len(world.wire.requests)
    await world.change_template("example.com/image:2")
    await world.wait(60)
    await world.delete(SANDBOX_TEMPLATE, "python")
    await world.delete(SANDBOX_WARM_POOL, "pool")
    await until_left(world, SANDBOX, 1)

    assert [(await world.get(*each))["metadata"]["uid"] for each in kinds] == before
    assert (await world.get(SANDBOX, name))["spec"] == spec
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    rolled = world.wire.requests[since:]
    assert any(map(is_creation, rolled))
    assert not any(name in each.path for each in rolled if is_deletion(each))
