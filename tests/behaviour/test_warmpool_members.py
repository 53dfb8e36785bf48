"""The members of a warm pool. Edge cases 21 to 31 of docs/compatibility.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.conditions import find_condition, is_ready
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.warmpool import ON_REPLENISH, RECREATE
from sandpool.controllers.options import WarmPoolOptions
from sandpool.kube.errors import ApiError, namespace_terminating
from sandpool.kube.transport import Request
from sandpool.node.simulated import Fate, all_ready
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference
from tests.support.backends import embedded
from tests.support.object_queries import image_of, is_adoption, is_creation, is_deletion, is_warm

DISK: Object = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def names(boxes: list[Object]) -> set[str]:
    return {box["metadata"]["name"] for box in boxes}


def creations(world: World, since: int = 0) -> int:
    return sum(map(is_creation, world.wire.requests[since:]))


async def scale(world: World, replicas: int) -> None:
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": replicas}})


# --- what a member is ----------------------------------------------------------------------------------


async def test_member_has_the_spec_of_its_template_and_the_labels_of_its_pool(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    pool = await world.get(SANDBOX_WARM_POOL, "pool")
    metadata = member["metadata"]
    marks = metadata["labels"]

    assert metadata["name"].startswith("pool-")
    assert metadata["ownerReferences"] == [owner_reference(pool, controller=True, block=True)]
    own = {
        labels.WARM_POOL: name_hash("pool"),
        labels.TEMPLATE_REF_HASH: name_hash("python"),
        labels.TEMPLATE_HASH: marks[labels.TEMPLATE_HASH],
        labels.POD_TEMPLATE_HASH: marks[labels.POD_TEMPLATE_HASH],
    }
    assert marks == {**own, labels.LAUNCH_TYPE: "warm", labels.CREATED_BY: "controller"}
    assert metadata["annotations"][labels.TEMPLATE_REF] == "python"
    template = member["spec"]["podTemplate"]
    assert template["metadata"]["labels"] == own
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["dnsPolicy"] == "None"
    assert member["spec"]["operatingMode"] == "Running"
    pod = await world.get(POD, metadata["name"])
    assert pod["metadata"]["labels"][labels.WARM_POOL] == name_hash("pool")


async def test_e27_pool_without_replicas_has_one_member(world: World) -> None:
    await world.template()
    spec = {"sandboxTemplateRef": {"name": "python"}, "updateStrategy": {}}
    await world.create(SANDBOX_WARM_POOL, "pool", spec=spec)
    await world.filled(1)
    assert (await world.get(SANDBOX_WARM_POOL, "pool"))["spec"]["updateStrategy"] == {"type": ON_REPLENISH}


@pytest.mark.parametrize("said", [None, *embedded(("false",), ("true",))])
async def test_e31_eviction_setting_of_the_template_wins(world: World, said: str | None) -> None:
    metadata = {} if said is None else {"annotations": {labels.SAFE_TO_EVICT: said}}
    await world.template(podTemplate={**pod_template(), "metadata": metadata})
    await world.pool(1)
    (member,) = await world.members()
    pod = await world.get(POD, member["metadata"]["name"])
    assert pod["metadata"]["annotations"].get(labels.SAFE_TO_EVICT) == (said or "true")
    await world.claim("mine")
    name = (await world.served(1))["mine"]["metadata"]["name"]
    pod = await world.get(POD, name)
    assert pod["metadata"].get("annotations", {}).get(labels.SAFE_TO_EVICT) == said, "the pool never sets it"


# --- how many there are ------------------------------------------------------------------


async def test_pool_fills_follows_its_size_and_can_be_emptied(world: World) -> None:
    await world.template()
    await world.pool(3)
    await scale(world, 5)
    five = names(await world.filled(5))
    await scale(world, 2)
    assert names(await world.filled(2)) < five
    await scale(world, 0)
    assert await world.members() == []
    assert creations(world) == 5


async def test_pool_without_template_creates_nothing_deletes_surplus_and_reports_it(world: World) -> None:
    """No member is stale without a template."""
    await world.template()
    await world.pool(3, strategy=RECREATE)
    await world.delete(SANDBOX_TEMPLATE, "python")
    since = len(world.wire.requests)
    await world.wait(60)
    assert not [each for each in world.wire.requests[since:] if is_deletion(each) or is_creation(each)]
    assert (await world.conditions(SANDBOX_WARM_POOL, "pool"))["Progressing"] == (
        "False",
        "TemplateNotFound",
        'SandboxTemplate "python" not found',
    )
    await scale(world, 2)
    await world.filled(2)
    await scale(world, 4)
    await world.wait(60)
    assert len(await world.members()) == 2
    before = world.clock.monotonic()
    await world.template()
    await world.filled(4)
    assert world.clock.monotonic() == before, "the template enqueues it"


async def test_deleting_a_pool_deletes_its_members_and_no_claimed_sandbox(world: World) -> None:
    await world.template()
    await world.pool(2)
    await world.claim("mine")
    name = (await world.served(1))["mine"]["metadata"]["name"]
    await world.filled(2)
    await world.delete(SANDBOX_WARM_POOL, "pool")

    async def one_is_left() -> bool:
        return names(await world.all(SANDBOX)) == {name}

    await world.until(one_is_left)
    assert is_ready(await world.get(SANDBOX, name))


async def test_claimed_or_deleted_member_is_replaced(world: World) -> None:
    await world.template()
    await world.pool(2)
    first = names(await world.members())
    await world.claim("mine")
    second = names(await world.filled(2))
    assert len(second - first) == 1
    await world.delete(SANDBOX, (second & first).pop())
    assert len(await world.filled(2)) == 2
    assert creations(world) == 4


async def test_creation_is_limited_by_batch_size_and_rate(world: World) -> None:
    settings = replace(world.settings, warm_pool=WarmPoolOptions(max_batch_size=2, max_refill_rate=2.0))
    await world.restart(settings=settings)
    await world.template()
    await world.pool(6, filled=False)
    assert creations(world) == 2
    await world.wait(1)
    assert 3 <= creations(world) <= 4
    await world.wait(2)
    await world.filled(6)


async def test_e29_claimed_members_are_replaced_after_the_burst(world: World) -> None:
    settings = replace(world.settings, warm_pool=WarmPoolOptions(replenish_delay=10))
    await world.restart(settings=settings)
    await world.template()
    before = world.clock.monotonic()
    await world.pool(4)
    assert world.clock.monotonic() == before, "the first filling waits for nothing"
    await world.claim("first")
    await world.wait(8)
    await world.claim("second")
    await world.wait(8)
    assert len(await world.members()) == 2, "each claim starts the delay anew"
    await world.wait(2)
    await world.filled(4)


async def test_e30_fractional_rate_creates_one_at_a_time(world: World) -> None:
    settings = replace(world.settings, warm_pool=WarmPoolOptions(max_refill_rate=0.5))
    await world.restart(settings=settings)
    await world.template()
    await world.pool(3, filled=False)
    made = [creations(world)]
    for _ in range(3):
        await world.wait(2.01)
        made.append(creations(world))
    assert made == [1, 2, 3, 3]


# --- members of a former template ----------------------------------------------------------------------

OTHER_DISK = {**DISK, "metadata": {"name": "other"}}
STALE: list[tuple[str, Object]] = [
    ("another image", {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/image:2"}]}}}),
    ("another disk", {"volumeClaimTemplates": [OTHER_DISK]}),
    ("no disk", {"volumeClaimTemplates": None}),
    ("one more disk", {"volumeClaimTemplates": [DISK, OTHER_DISK]}),
    ("a service", {"service": True}),
]
FRESH: list[tuple[str, Object]] = [
    ("a label of the pod", {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}),
    ("an annotation of the pod", {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}),
    ("a label of a disk", {"volumeClaimTemplates": [{**DISK, "metadata": {"name": "data", "labels": {"a": "b"}}}]}),
    ("explicit default", {"podTemplate": {"spec": {"automountServiceAccountToken": False}}}),
    ("a policy about variables", {"envVarsInjectionPolicy": "Allowed"}),
    ("no network policy of ours", {"networkPolicyManagement": "Managed"}),
]


def ids(cases: list[tuple[str, Object]]) -> list[str]:
    return [name for name, _ in cases]


@pytest.mark.parametrize(("what", "change"), [STALE[0], *embedded(*STALE[1:])], ids=ids(STALE))
async def test_e24_changed_template_makes_members_stale(world: World, what: str, change: Object) -> None:
    await world.template(volumeClaimTemplates=[DISK])
    await world.pool(2, strategy=RECREATE)
    before = names(await world.members())
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": change})
    assert not names(await world.filled(2)) & before


@pytest.mark.parametrize(("what", "change"), [FRESH[0], *embedded(*FRESH[1:])], ids=ids(FRESH))
async def test_e24_e25_equivalent_template_does_not_make_members_stale(world: World, what: str, change: Object) -> None:
    """They also keep the mark of what they were made from."""
    await world.template(volumeClaimTemplates=[DISK])
    await world.pool(2, strategy=RECREATE)
    before = {box["metadata"]["uid"]: box["metadata"]["labels"] for box in await world.members()}
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": change})
    assert {box["metadata"]["uid"]: box["metadata"]["labels"] for box in await world.filled(2)} == before


async def test_e24_another_template_with_the_same_spec_makes_members_stale(world: World) -> None:
    await world.template()
    await world.template(name="twin")
    await world.pool(2, strategy=RECREATE)
    before = names(await world.members())
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"sandboxTemplateRef": {"name": "twin"}}})
    after = await world.filled(2)
    assert not names(after) & before
    assert {box["metadata"]["annotations"][labels.TEMPLATE_REF] for box in after} == {"twin"}


@pytest.mark.parametrize("strategy", ["", ON_REPLENISH])
async def test_e27_on_replenish_assigns_stale_members_and_creates_current_ones(world: World, strategy: str) -> None:
    await world.template()
    await world.pool(2, strategy=strategy)
    before = names(await world.members())
    await world.change_template("example.com/image:2")
    assert names(await world.members()) == before
    for claim in ("first", "second"):
        await world.claim(claim)
    served = await world.served(2)
    assert names(list(served.values())) == before
    assert {image_of(box) for box in await world.filled(2)} == {"example.com/image:2"}


async def test_e22_recreate_creates_after_its_deletions(world: World) -> None:
    """The replacements come after the deletions, so there are never more pods than there should be."""
    await world.template()
    await world.pool(2, strategy=RECREATE)
    since = len(world.wire.requests)
    await world.change_template("example.com/image:2")
    await world.filled(2)
    order = ["delete" if is_deletion(each) else "create" for each in world.wire.requests[since:] if about(each)]
    assert order == ["delete", "delete", "create", "create"]


def about(request: Any) -> bool:
    return is_deletion(request) or is_creation(request)


# --- orphans -------------------------------------------------------------------------------------------


async def orphaned(world: World) -> Object:
    """A member whose pool was deleted and left it behind."""
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    await world.delete(SANDBOX_WARM_POOL, "pool", propagation_policy="Orphan")

    async def is_orphan() -> bool:
        return owner_of(await world.get(SANDBOX, member["metadata"]["name"])) == ("", "")

    await world.until(is_orphan)
    await world.gone(SANDBOX_WARM_POOL, "pool")
    return member


async def test_matching_orphan_is_adopted(world: World) -> None:
    member = await orphaned(world)
    since = len(world.wire.requests)
    await world.pool(1)
    (taken,) = await world.members()

    assert taken["metadata"]["uid"] == member["metadata"]["uid"]
    assert creations(world, since) == 0
    await world.claim("mine")
    assert is_warm((await world.served(1))["mine"])


async def test_e26_orphan_with_a_forged_hash_is_deleted(world: World) -> None:
    """Its mark says that it was made from the current template; its image says otherwise."""
    member = await orphaned(world)
    name = member["metadata"]["name"]
    evil = {"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "example.com/evil:1"}]}}}}
    await world.patch(SANDBOX, name, evil)
    await world.pool(1, filled=False)
    await world.gone(SANDBOX, name)
    (made,) = await world.filled(1)

    assert image_of(made) == "example.com/image:1"
    assert not any(is_adoption(each) for each in world.wire.requests)


async def test_removed_labels_of_a_member_are_restored(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    lost = {labels.LAUNCH_TYPE: None, labels.WARM_POOL: None}
    await world.patch(SANDBOX, member["metadata"]["name"], {"metadata": {"labels": lost}})
    (member,) = await world.members()

    assert member["metadata"]["labels"][labels.LAUNCH_TYPE] == "warm"
    assert member["metadata"]["labels"][labels.WARM_POOL] == name_hash("pool")


async def test_change_that_no_plan_reads_does_not_reconcile_the_pool(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    pools = world.controllers.warm_pools.controller
    before = pools.reconciles
    await world.patch(SANDBOX, member["metadata"]["name"], {"metadata": {"annotations": {"example.com/a": "b"}}})
    await world.settle()
    assert pools.reconciles == before


# --- members that do not become ready ------------------------------------------------------------------


async def test_e22_hanging_member_is_replaced_after_its_grace_period(world: World) -> None:
    await world.template()
    await world.pool(1)
    old = names(await world.members())
    world.node.fate = lambda pod: Fate.HANGING
    await scale(world, 2)
    hanging = names(await world.members()) - old
    await world.wait(290)
    assert names(await world.members()) == old | hanging
    world.node.fate = all_ready
    since = len(world.wire.requests)
    await world.wait(180)

    assert names(await world.filled(2)) & (old | hanging) == old
    order = ["delete" if is_deletion(each) else "create" for each in world.wire.requests[since:] if about(each)]
    assert order == ["delete", "create"], "one for one, and one after the other"


async def test_pool_in_a_terminating_namespace_attempts_one_creation_and_reports_it_once(world: World) -> None:
    def refuse(request: Request) -> ApiError | None:
        return namespace_terminating(SANDBOX, "", world.namespace) if request.method == "POST" else None

    await world.template()
    await world.pool(3)
    since = len(world.wire.requests)
    world.wire.fault = refuse
    for member in await world.members():
        await world.client.delete(SANDBOX, member["metadata"]["name"], world.namespace)
        await world.wait(45)
    assert creations(world, since) == 1
    said = [request for request in world.wire.requests[since:] if is_said_of_pool(request)]
    assert len(said) <= 4, "once for each member that went, and why none comes"
    progressing = find_condition((await world.get(SANDBOX_WARM_POOL, "pool"))["status"]["conditions"], "Progressing")
    assert progressing is not None
    assert progressing["message"].startswith("creating sandboxes failed once, pausing for 5m0s: ")
    world.wire.heal()


def is_said_of_pool(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/sandboxwarmpools/pool/status")
