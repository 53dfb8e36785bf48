"""Assignment and ownership: a claim has one sandbox, a sandbox one claim. R1 to R16 of docs/guarantees.md."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product

import pytest

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    RUNTIME_CLASS,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
)
from sandpool.api.labels import LAUNCH_TYPE, SANDBOX_NAME, TEMPLATE_HASH, TEMPLATE_REF_HASH, WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.warmpool import RECREATE, ROLLING_UPDATE
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import AlreadyExists, InternalError
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate, StartupStage
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from sandpool.testing.world import World, owner_of, owners
from tests.support.api_objects import owner_reference
from tests.support.backends import embedded
from tests.support.intercepting_transport import Interceptor, nothing
from tests.support.object_queries import image_of, is_adoption, is_creation, is_deletion, is_warm, named_in
from tests.support.sandbox_history import SandboxHistory, is_member


def assert_a_matching(served: dict[str, Object]) -> None:
    """Every claim has a sandbox of its own."""
    assert all(owner_of(box) == ("SandboxClaim", claim) for claim, box in served.items())
    assert len({box["metadata"]["uid"] for box in served.values()}) == len(served)


def assert_at_most_one_claim_each(history: SandboxHistory) -> None:
    assert {uid: claims for uid, claims in history.claims().items() if len(claims) > 1} == {}


def is_about_claims(request: Request) -> bool:
    """Whether a write is one that claims cost: the sandbox of a claim or the claim itself."""
    return request.method in ("PATCH", "POST") and ("/sandboxclaims/" in request.path or is_adoption(request))


@pytest.mark.parametrize("writes", [2, *embedded((1,), (3,), (5,))])
async def test_r1_reconciles_over_a_frozen_cache_take_no_second_sandbox(world: World, writes: int) -> None:
    """No event arrives after the first ``writes`` writes for claims, and every claim is reconciled repeatedly."""
    interceptor = Interceptor.behind(world.wire)
    await world.restart()
    await world.template()
    await world.pool(6)
    seen: list[Request] = []

    async def freeze(request: Request) -> None:
        if is_about_claims(request):
            seen.append(request)
            if len(seen) >= writes:
                interceptor.hold_watches()

    interceptor.before = freeze
    for number in range(3):
        await world.client.create(SANDBOX_CLAIM, a_claim(f"claim-{number}"), world.namespace)
    await eventually(lambda: len(seen) >= writes)
    claims = world.controllers.claims.controller
    for _ in range(5):
        for claim in list(world.controllers.caches.claims):
            claims.enqueue(Key(claim.namespace, claim.name))
        await claims.queue.settled()
    taken = Counter(owner_of(box) for box in await world.all(SANDBOX) if owner_of(box)[0] == "SandboxClaim")
    interceptor.before = nothing
    interceptor.release_watches()

    assert taken
    assert set(taken.values()) == {1}
    assert_a_matching(await world.served(3))
    await world.filled(6)
    found = await owners(world)
    assert found == {("SandboxWarmPool", "pool"): 6, **{("SandboxClaim", f"claim-{each}"): 1 for each in range(3)}}


async def test_r2_two_concurrent_controllers_never_assign_one_sandbox_twice(world: World) -> None:
    """The second is not supposed to be there; whatever the two do to each other, the API has the last word."""
    await world.template()
    await world.pool(6)
    other = world.new_controllers()
    await other.start()
    async with SandboxHistory(world.client, world.namespace) as history:
        await burst(world, (f"claim-{number}" for number in range(12)))
        await world.wait(5)
        await other.stop()
        served = await world.served(12)
        await history.complete()

    assert_a_matching(served)
    assert_at_most_one_claim_each(history)


async def test_r3_sandbox_written_by_others_is_adopted_and_no_other(world: World) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(3)
    since = len(world.wire.requests)
    written: list[str] = []

    async def write_first(request: Request) -> None:
        if is_adoption(request) and len(written) < 2:
            written.append(named_in(request))
            body = {"metadata": {"annotations": {"example.com/touched": str(len(written))}}}
            await world.client.patch(SANDBOX, written[-1], MergePatch(body), world.namespace)

    interceptor.before = write_first
    await world.claim("mine")
    served = await world.served(1)

    assert len(written) == 2
    tried = [named_in(each) for each in world.wire.requests[since:] if is_adoption(each)]
    assert tried == [served["mine"]["metadata"]["name"]] * 3, "the same one until it is had"
    assert served["mine"]["metadata"]["annotations"]["example.com/touched"] == "2"
    await world.filled(3)


async def test_r3_lost_response_is_resolved_with_the_same_sandbox(world: World) -> None:
    await world.template()
    await world.pool(3)
    lost: list[str] = []

    def lose(request: Request) -> Fault | None:
        if is_adoption(request) and not lost:
            lost.append(named_in(request))
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.claim("mine")
    await world.wait(1)
    served = await world.served(1)
    await world.filled(3)

    assert lost == [served["mine"]["metadata"]["name"]]
    assert (await owners(world))["SandboxClaim", "mine"] == 1


async def test_r3_sandbox_deleted_before_adoption_costs_one_write_and_is_replaced(world: World) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(2)
    since = len(world.wire.requests)
    gone: list[str] = []

    async def delete_first(request: Request) -> None:
        if is_adoption(request) and not gone:
            gone.append(named_in(request))
            await world.client.delete(SANDBOX, gone[0], world.namespace)

    interceptor.before = delete_first
    await world.claim("mine")
    await world.wait(5)
    served = await world.served(1)

    assert_a_matching(served)
    tried = [named_in(each) for each in world.wire.requests[since:] if is_adoption(each)]
    assert tried.count(gone[0]) == 1
    assert served["mine"]["metadata"]["name"] != gone[0]
    await world.filled(2)


async def test_r4_claim_that_names_the_sandbox_of_another_gets_another(world: World) -> None:
    """It lost, and its controller ended before it could forget."""
    await world.template()
    await world.pool(2)
    await world.claim("winner")
    won = (await world.served(1))["winner"]["metadata"]["name"]
    await world.claim("loser", metadata={"annotations": {SANDBOX_NAME: won}})
    served = await world.served(2)

    assert_a_matching(served)
    assert served["winner"]["metadata"]["name"] == won
    corrected = (await world.get(SANDBOX_CLAIM, "loser"))["metadata"]["annotations"][SANDBOX_NAME]
    assert corrected == served["loser"]["metadata"]["name"]


async def test_r4_claim_that_names_a_missing_sandbox_gets_another(world: World) -> None:
    await world.template()
    await world.pool(1)
    metadata = {"annotations": {SANDBOX_NAME: "pool-gone"}, "labels": {SANDBOX_NAME: "pool-gone"}}
    await world.claim("late", metadata=metadata)
    served = await world.served(1)

    assert is_warm(served["late"])
    metadata = (await world.get(SANDBOX_CLAIM, "late"))["metadata"]
    assert metadata["annotations"][SANDBOX_NAME] == served["late"]["metadata"]["name"]
    assert SANDBOX_NAME not in metadata.get("labels", {})
    await world.filled(1)


async def test_r5_claim_written_by_others_keeps_its_sandbox(world: World) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(3)
    since = len(world.wire.requests)
    conflicts = 0

    async def write_first(request: Request) -> None:
        nonlocal conflicts
        if request.path.endswith("/sandboxclaims/mine/status") and conflicts < 3:
            conflicts += 1
            body = {"metadata": {"annotations": {"example.com/touched": str(conflicts)}}}
            await world.client.patch(SANDBOX_CLAIM, "mine", MergePatch(body), world.namespace)

    interceptor.before = write_first
    await world.claim("mine")
    served = await world.served(1)
    await world.filled(3)

    assert conflicts == 3
    assert [named_in(each) for each in world.wire.requests[since:] if is_adoption(each)] == [
        served["mine"]["metadata"]["name"]
    ]
    assert await owners(world) == {("SandboxWarmPool", "pool"): 3, ("SandboxClaim", "mine"): 1}


async def test_r6_sandbox_without_address_or_readiness_is_not_assigned(world: World) -> None:
    """Both members run; one of them never becomes ready."""
    await world.template()
    await world.pool(1)
    (good,) = await world.members()
    world.node.fate = lambda pod: Fate.HANGING
    await scale(world, 2)
    assert [bool(pod["status"].get("podIPs")) for pod in await world.all(POD)] == [True, True]
    await world.claim("mine")
    served = await world.served(1)
    assert served["mine"]["metadata"]["name"] == good["metadata"]["name"]


async def test_r6_claim_waits_for_ready_and_not_for_running(world: World) -> None:
    world.node.delays = {StartupStage.CONTAINERS_READY: 1.0}
    await world.template()
    await world.pool(1, filled=False)
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.claim("mine")
        assert owner_of((await world.all(SANDBOX))[0]) == ("SandboxWarmPool", "pool"), "it runs, and is not ready"
        await world.wait(1)
        served = await world.served(1)
        await history.complete()

    assert is_warm(served["mine"])
    name = served["mine"]["metadata"]["name"]
    at_hand_over = next(
        state[name] for state in history.states if name in state and owner_of(state[name])[0] == "SandboxClaim"
    )
    assert is_ready(at_hand_over)
    assert at_hand_over["status"]["podIPs"]


@pytest.mark.parametrize("strategy", [RECREATE, ROLLING_UPDATE])
async def test_r8_burst_during_a_rollout_gets_no_stale_sandbox_while_a_current_one_is_ready(
    world: World, strategy: str
) -> None:
    await world.template()
    await world.pool(4, strategy=strategy)
    async with SandboxHistory(world.client, world.namespace) as history:
        await world.change_template("example.com/image:2")
        await burst(world, (f"claim-{number}" for number in range(8)))
        served = await world.served(8)
        await world.filled(4)
        await history.complete()

    assert_a_matching(served)
    if strategy == RECREATE:
        assert {image_of(box) for box in served.values()} == {"example.com/image:2"}, "never a former one"
    for before, after in zip(history.states, history.states[1:], strict=False):
        for name, box in after.items():
            if name in before and is_member(before[name]) and owner_of(box)[0] == "SandboxClaim":
                free = {image_of(each) for each in before.values() if is_member(each) and is_ready(each)}
                assert image_of(box) == "example.com/image:2" or "example.com/image:2" not in free


async def test_r9_sandbox_of_another_runtime_is_not_assigned(world: World) -> None:
    """Two pools, and one that has changed its runtime and must not give away what it had before."""
    for runtime in ("gvisor", "kata"):
        with suppress(AlreadyExists):
            await world.client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, runtime, handler=runtime))
        spec = {"runtimeClassName": runtime, "containers": [{"name": "main", "image": "example.com/image:1"}]}
        await world.create(SANDBOX_TEMPLATE, runtime, spec={"podTemplate": {"spec": spec}})
        reference = {"sandboxTemplateRef": {"name": runtime}}
        await world.pool(2, name=runtime, strategy=RECREATE, filled=False, **reference)
    await world.filled(4)
    for pool, number in product(("gvisor", "kata"), range(3)):
        await world.claim(f"{pool}-{number}", warmPoolRef={"name": pool})
    served = await world.served(6)
    await world.filled(4)
    changed = {"spec": {"podTemplate": {"spec": {"runtimeClassName": "kata"}}}}
    await world.patch(SANDBOX_TEMPLATE, "gvisor", changed)
    await world.claim("gvisor-later", warmPoolRef={"name": "gvisor"})
    served |= await world.served(7)

    assert_a_matching(served)
    for claim, box in served.items():
        wanted = "kata" if claim == "gvisor-later" else claim.split("-")[0]
        assert box["spec"]["podTemplate"]["spec"]["runtimeClassName"] == wanted


@pytest.mark.parametrize("disguise", ["labels alone", "an owner of the pool's name", "an owner of another kind"])
async def test_r10_disguised_sandbox_is_never_assigned(world: World, disguise: str) -> None:
    """A user who can create Sandboxes tries to have the claim of another user run on one of them."""
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    fake = {
        "apiVersion": "v1" if disguise == "an owner of another kind" else SANDBOX_WARM_POOL.api_version,
        "kind": "ConfigMap" if disguise == "an owner of another kind" else "SandboxWarmPool",
        "name": "pool",
        "uid": "00000000-0000-0000-0000-000000000000",
        "controller": True,
    }
    if disguise == "an owner of another kind":
        config = await world.create(CONFIG_MAP, "theirs")
        fake = owner_reference(config, controller=True)
    metadata = {
        "labels": member["metadata"]["labels"],
        "annotations": {labels.TEMPLATE_REF: "python"},
        **({"ownerReferences": [fake]} if disguise != "labels alone" else {}),
    }
    evil = {"containers": [{"name": "main", "image": "example.com/evil:1"}]}
    await world.create(SANDBOX, "pool-evil", metadata=metadata, spec={"podTemplate": {"spec": evil}})
    await burst(world, (f"claim-{number}" for number in range(3)))
    served = await world.served(3)

    assert_a_matching(served)
    assert {image_of(box) for box in served.values()} == {"example.com/image:1"}


async def test_r11_sandbox_of_a_same_named_pool_in_another_namespace_is_not_assigned(world: World) -> None:
    """The other one is filled by a controller of its own, this one has nothing to give."""
    elsewhere = f"{world.namespace}-2"
    await world.client.create(NAMESPACE, new(NAMESPACE, elsewhere))
    await world.template()
    await world.pool(0, filled=False)
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 0, "sandboxTemplateRef": {"name": "python"}})
    theirs = await world.client.create(SANDBOX_WARM_POOL, pool, elsewhere)
    await world.client.create(SANDBOX, free_sandbox("pool-theirs", theirs), elsewhere)
    body = {"status": {"podIPs": ["10.9.9.9"], "conditions": [READY_CONDITION]}}
    await world.client.patch(SANDBOX, "pool-theirs", MergePatch(body), elsewhere, subresource="status")
    await world.claim("mine")
    served = await world.served(1)

    assert served["mine"]["metadata"]["name"] == "mine", "made for it"
    assert owner_of(await world.client.get(SANDBOX, "pool-theirs", elsewhere)) == ("SandboxWarmPool", "pool")
    await world.client.delete(NAMESPACE, elsewhere)


@pytest.mark.parametrize("by", ["scaling down", "a new template"])
async def test_r12_sandbox_claimed_between_plan_and_deletion_survives(world: World, by: str) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    one_by_one = {"type": ROLLING_UPDATE, "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    await world.pool(1, updateStrategy=one_by_one)
    (member,) = await world.members()
    name = member["metadata"]["name"]
    asked: list[str] = []

    async def is_claimed() -> bool:
        return owner_of(await world.get(SANDBOX, name)) == ("SandboxClaim", "quick")

    async def claim_first(request: Request) -> None:
        if is_deletion(request) and not asked:
            asked.append(named_in(request))
            await world.client.create(SANDBOX_CLAIM, a_claim("quick"), world.namespace)
            await until(is_claimed)

    interceptor.before = claim_first
    if by == "scaling down":
        await scale(world, 0)
    else:
        await world.change_template("example.com/image:2")
    served = await world.served(1)

    assert asked == [name]
    assert served["quick"]["metadata"]["uid"] == member["metadata"]["uid"]
    assert "deletionTimestamp" not in served["quick"]["metadata"]
    await world.filled(0 if by == "scaling down" else 1)


async def test_r13_failed_deletions_leave_no_zombie(world: World) -> None:
    """Half of them are refused and half are carried out without an answer, and the pool comes to be as it should."""
    await world.template()
    await world.pool(4)
    failed: list[str] = []

    def fail(request: Request) -> Fault | Exception | None:
        if is_deletion(request) and len(failed) < 4:
            failed.append(named_in(request))
            return Fault.LOSE if len(failed) % 2 else InternalError("not now")
        return None

    world.wire.fault = fail
    await scale(world, 2)
    await world.wait(60)
    await world.filled(2)
    assert len(failed) == 3, "one of the two was refused first"
    await scale(world, 4)
    members = await world.filled(4)
    assert len(world.controllers.claims.assigner) == 4
    await burst(world, (f"claim-{number}" for number in range(4)))
    served = await world.served(4)

    assert {box["metadata"]["name"] for box in served.values()} == {box["metadata"]["name"] for box in members}


@pytest.mark.parametrize("writes", [1, 3, *embedded((0,), (2,), (4,))])
async def test_r14_crash_at_any_write_never_assigns_a_used_sandbox_again(world: World, writes: int) -> None:
    """The controllers end after ``writes`` of the four writes or more for two claims, one of which is then deleted."""
    await world.template()
    await world.pool(2)
    count = 0

    def crash(request: Request) -> Fault | None:
        nonlocal count
        count += is_about_claims(request)
        # A process that has ended sends nothing; that its last events are written does not matter here.
        return Fault.HOLD if count > writes and not request.path.endswith("/events") else None

    async with SandboxHistory(world.client, world.namespace) as history:
        world.wire.fault = crash
        await burst(world, ["first", "second"])
        assert count >= writes
        world.wire.heal()
        await world.restart(grace=0)
        await world.delete(SANDBOX_CLAIM, "first")
        await burst(world, (f"later-{number}" for number in range(3)))
        await world.wait(5)
        served = await world.served(4)
        await world.filled(2)
        await history.complete()

    assert_a_matching(served)
    assert_at_most_one_claim_each(history)
    assert len(await world.all(SANDBOX)) == 6


async def test_r15_pod_deleted_under_a_claim_does_not_block_its_replacement(world: World) -> None:
    await world.template()
    await world.pool(2)
    await world.claim("mine")
    name = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(2)
    before = await world.get(POD, name)
    await world.delete(POD, name)
    served = await world.served(1)
    assert (await world.get(POD, name))["metadata"]["uid"] != before["metadata"]["uid"]
    assert served["mine"]["metadata"]["name"] == name, "the claim keeps its sandbox"
    await world.filled(2)
    assert await owners(world) == {("SandboxWarmPool", "pool"): 2, ("SandboxClaim", "mine"): 1}
    await scale(world, 4)
    await world.filled(4)


async def test_r16_members_with_owner_references_of_an_old_version_are_assigned_warm(world: World) -> None:
    """After an upgrade: every member was made by a predecessor that wrote another version of the API."""
    await world.template()
    await world.pool(3)
    for member in await world.members():
        (reference,) = member["metadata"]["ownerReferences"]
        old = {**reference, "apiVersion": "extensions.agents.x-k8s.io/v1alpha1"}
        await world.patch(SANDBOX, member["metadata"]["name"], {"metadata": {"ownerReferences": [old]}})
    await world.restart()
    since = len(world.wire.requests)
    await burst(world, (f"claim-{number}" for number in range(3)))
    served = await world.served(3)
    await world.filled(3)

    assert all(map(is_warm, served.values()))
    assert len([each for each in world.wire.requests[since:] if is_creation(each)]) == 3, "only what was used up"


# --- what these tests need -------------------------------------------------------------------------------------------

READY_CONDITION: Object = {
    "type": "Ready",
    "status": "True",
    "reason": "DependenciesReady",
    "message": "Pod is Ready",
    "lastTransitionTime": "2026-11-01T12:00:00Z",
}


def free_sandbox(name: str, pool: SharedObject) -> Object:
    identity = {
        WARM_POOL: name_hash("pool"),
        TEMPLATE_REF_HASH: name_hash("python"),
        TEMPLATE_HASH: "1111111111111111",
        LAUNCH_TYPE: "warm",
    }
    metadata = {"labels": identity, "ownerReferences": [owner_reference(pool, controller=True, block=True)]}
    spec = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/image:1"}]}}}
    return new(SANDBOX, name, metadata=metadata, spec=spec)


async def eventually(probe: Callable[[], bool]) -> None:
    """Poll, for tests that hold watches and therefore never reach quiescence."""

    async def ask() -> bool:
        return probe()

    await until(ask)


async def burst(world: World, names: Iterable[str]) -> None:
    """Claims that are made at once."""
    create = world.client.create
    await asyncio.gather(*(create(SANDBOX_CLAIM, a_claim(name), world.namespace) for name in names))
    await world.settle()


def a_claim(name: str) -> Object:
    return new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}})


async def scale(world: World, replicas: int) -> None:
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": replicas}})
