"""Nodes that are leaving or failing are used last, until they recover."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import NODE, SANDBOX_WARM_POOL
from sandpool.api.resource import Key, Object
from sandpool.api.views import NodeView, SandboxView
from sandpool.controllers.claim.assignment.assigner import Assigner
from sandpool.controllers.claim.assignment.node_health import CLEARED, HALF_LIFE, SUSPECT, NodeHealth, has_failed
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest
from sandpool.controllers.claim.watches import watch_candidates
from sandpool.controllers.informers import Caches
from sandpool.controllers.revision import TemplateRevisions
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import Forbidden
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new
from sandpool.testing.world import NAMESPACE, World
from tests.support.claim_objects import claim, pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox, stored, template

POOL = warm_pool()


def node(**fields: Any) -> NodeView:
    return NodeView.from_object(stored(NODE, "a", **fields))


def ready(status: str) -> Object:
    return {"conditions": [{"type": "Ready", "status": status}]}


@pytest.mark.parametrize(
    ("view", "fit"),
    [
        (node(), True),
        (node(status=ready("True")), True),
        (node(status=ready("False")), False),
        (node(status=ready("Unknown")), False),
        (node(spec={"unschedulable": True}), False),
        (node(spec={"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}), False),
        (node(spec={"taints": [{"key": "example.com/gpu", "effect": "NoSchedule"}]}), True),
        (node(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"}), False),
    ],
)
def test_r7_node_is_fit_unless_it_is_leaving(view: NodeView, fit: bool) -> None:
    assert view.fit is fit


# --- what counts as a failure ----------------------------------------------------------------------------------------


def box(owner: Object | None = POOL, *, status: Object | None = None, **fields: Any) -> SandboxView:
    return SandboxView.from_object(sandbox(owner=owner, status=status or ready_status(), **fields))


def unready(reason: str = "DependenciesNotReady") -> Object:
    return ready_status(status="False", reason=reason)


@pytest.mark.parametrize("owner", [POOL, claim()])
@pytest.mark.parametrize("reason", ["DependenciesNotReady", "PodFailed"])
def test_r58_sandbox_that_loses_readiness_has_failed(owner: Object, reason: str) -> None:
    assert has_failed(box(owner), box(owner, status=unready(reason)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (box(), box()),
        (box(status=unready()), box(status=unready("PodFailed"))),
        (box(status=unready()), box()),
        (box(), box(status=unready("SandboxSuspended"))),
        (box(), box(status=unready("PodSucceeded"))),
        (box(), box(status=unready("SandboxExpired"))),
        (box(), box(status=unready("ReconcilerError"))),
        (box(), box(status=unready(), spec={"operatingMode": "Suspended"})),
        (box(), box(status=unready(), metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"})),
        (box(None), box(None, status=unready())),
    ],
)
def test_requested_change_is_no_failure(old: SandboxView, new: SandboxView) -> None:
    assert not has_failed(old, new)


# --- the memory ------------------------------------------------------------------------------------------------------


class Memory:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.node_health = NodeHealth(
            self.clock, lambda node: self.told.append(f"avoid {node}"), lambda node: self.told.append(f"trust {node}")
        )

    def record_failure(self, node: str, *sandboxes: str) -> None:
        for each in sandboxes:
            self.node_health.record_failure(node, each)


async def test_r58_node_with_failing_sandboxes_is_deprioritized() -> None:
    memory = Memory()
    memory.record_failure("a", "1", "2", "3")
    assert memory.told == ["avoid a"]
    assert memory.node_health.is_deprioritized("a")
    assert not memory.node_health.is_deprioritized("b")


async def test_r56_one_failure_does_not_deprioritize_the_node() -> None:
    memory = Memory()
    memory.record_failure("a", "1", "2")
    memory.record_failure("b", "3")
    assert memory.told == []


async def test_r56_repeated_failures_of_one_sandbox_count_once() -> None:
    memory = Memory()
    memory.record_failure("a", *"1111111")
    assert memory.told == []


async def test_r56_failures_far_apart_do_not_add_up() -> None:
    memory = Memory()
    for number in range(20):
        memory.record_failure("a", str(number))
        await memory.clock.advance(2 * HALF_LIFE)
    assert memory.told == []


async def test_r56_node_is_restored_when_its_failures_have_decayed() -> None:
    memory = Memory()
    memory.record_failure("a", "1", "2", "3")
    await memory.clock.advance(HALF_LIFE)
    memory.node_health.expire_records()
    assert memory.told == ["avoid a"], f"below {SUSPECT} and above {CLEARED} it stays where it is"
    await memory.clock.advance(HALF_LIFE)
    memory.node_health.expire_records()
    assert memory.told == ["avoid a", "trust a"]
    assert len(memory.node_health) == 0


async def test_r58_node_that_keeps_failing_stays_deprioritized_until_its_failures_decay() -> None:
    memory = Memory()
    memory.record_failure("a", *(str(number) for number in range(1000)))
    await memory.clock.advance(HALF_LIFE * 2)
    memory.record_failure("a", "x", "y")
    await memory.clock.advance(HALF_LIFE * 1.5)
    memory.node_health.expire_records()
    assert memory.told == ["avoid a"]
    await memory.clock.advance(HALF_LIFE * 2)
    memory.node_health.expire_records()
    assert memory.told == ["avoid a", "trust a"]


async def test_unfit_and_suspect_node_is_deprioritized_until_it_is_neither() -> None:
    memory = Memory()
    memory.node_health.set_fit("a", fit=False)
    memory.record_failure("a", "1", "2", "3")
    memory.node_health.set_fit("a", fit=True)
    assert memory.told == ["avoid a"]
    await memory.clock.advance(HALF_LIFE * 2)
    memory.node_health.expire_records()
    assert memory.told == ["avoid a", "trust a"]


async def test_records_of_nodes_expire() -> None:
    memory = Memory()
    for number in range(100):
        memory.record_failure(f"node-{number}", "1")
    await memory.clock.advance(HALF_LIFE)
    memory.record_failure("last", "1")
    assert len(memory.node_health) == 1


# --- what claims get -------------------------------------------------------------------------------------------------


class Scene:
    """Pools, sandboxes and nodes as the watch shows them."""

    def __init__(self) -> None:
        self.caches = Caches()
        self.clock = ManualClock()
        self.assigner = Assigner(lambda claim: None)
        self.node_health = NodeHealth(self.clock, self.assigner.deprioritize, self.assigner.restore)
        self._version = 10
        self.caches.templates.observe(template())
        self.caches.pools.observe(POOL)
        watch_candidates(self.caches, TemplateRevisions(self.caches), self.assigner, self.node_health)

    def member(self, name: str, node: str, status: Object | None = None) -> None:
        self._version += 1
        member = pool_member(name, pool=POOL, status=status or ready_status(node=node))
        member["metadata"]["resourceVersion"] = str(self._version)
        self.caches.sandboxes.observe(member)

    def node(self, name: str, *, cordoned: bool) -> None:
        self._version += 1
        whole = new(NODE, name, spec={"unschedulable": cordoned}, metadata={"resourceVersion": str(self._version)})
        self.caches.nodes.observe(whole)

    def take(self, *claims: str) -> list[str]:
        pool = Key("default", "pool")
        leases = [self.assigner.take(SandboxRequest(Key("default", claim), pool, None)) for claim in claims]
        return [lease.sandbox[1] for lease in leases if lease is not None]


def test_r7_cordoned_node_is_used_when_no_other_is_left() -> None:
    scene = Scene()
    for number in range(3):
        scene.member(f"bad-{number}", "bad")
    scene.member("good", "good")
    scene.node("bad", cordoned=True)
    assert scene.take("first", "second") == ["good", "bad-0"]
    scene.member("late", "good")
    assert scene.take("third") == ["late"]
    scene.node("bad", cordoned=False)
    scene.member("later", "good")
    assert scene.take("fourth") == ["bad-1"], "it has the most again"


def test_r7_node_cordoned_before_its_sandboxes_started_is_used_last() -> None:
    scene = Scene()
    scene.node("bad", cordoned=True)
    scene.member("bad", "bad")
    scene.member("good", "good")
    assert scene.take("first", "second") == ["good", "bad"]


def test_r58_node_that_breaks_sandboxes_is_used_last() -> None:
    scene = Scene()
    for number in range(6):
        scene.member(f"bad-{number}", "bad")
    scene.member("good", "good")
    for number in range(3):
        scene.member(f"bad-{number}", "bad", {**unready(), "nodeName": "bad"})
    assert scene.take("first", "second") == ["good", "bad-3"]


def test_failure_without_a_node_is_recorded_for_none() -> None:
    scene = Scene()
    for number in range(4):
        scene.member(f"box-{number}", "")
        scene.member(f"box-{number}", "", {**unready(), "nodeName": ""})
    assert len(scene.node_health) == 0


def test_r56_failures_on_all_nodes_deprioritize_none() -> None:
    scene = Scene()
    for number in range(9):
        scene.member(f"box-{number}", "abc"[number % 3])
    for number in range(9):
        scene.member(f"box-{number}", "abc"[number % 3], {**unready(), "nodeName": "abc"[number % 3]})
    for number in range(9):
        scene.member(f"box-{number}", "abc"[number % 3])
    assert all(scene.node_health.is_deprioritized(node) for node in "abc")
    assert len(scene.take(*map(str, range(9)))) == 9, "they are all that there is, so they are handed out"


# --- on an API -------------------------------------------------------------------------------------------------------


async def test_r7_node_cordoned_during_a_burst_is_used_last(world: World) -> None:
    await world.template()
    for name in ("node", "spare"):
        await world.client.create(NODE, new(NODE, name))
    await world.pool(4)
    # From now on pods find their place on another node.
    world.node.name = "spare"
    await world.client.patch(SANDBOX_WARM_POOL, "pool", MergePatch({"spec": {"replicas": 8}}), NAMESPACE)
    await world.filled(8)

    await world.client.patch(NODE, "node", MergePatch({"spec": {"unschedulable": True}}))
    await world.eventually(lambda: any(not each.fit for each in world.controllers.caches.nodes))
    await asyncio.gather(*(world.claim(f"claim-{number}") for number in range(4)))
    served = await world.served(4)
    assert {box["status"]["nodeName"] for box in served.values()} == {"spare"}


async def test_r7_claims_are_served_without_permission_to_list_nodes(world: World) -> None:
    await world.controllers.stop()
    world.controllers = world.new_controllers()
    refused: list[str] = []

    def refuse(request: Any) -> Exception | None:
        if request.path == "/api/v1/nodes":
            refused.append(request.path)
            return Forbidden("nodes is forbidden")
        return None

    world.wire.fault = refuse
    await world.controllers.start()
    await world.template()
    await world.pool(2)
    await world.claim("mine")
    assert (await world.served(1))["mine"]["metadata"]["name"].startswith("pool-")
    assert refused
    assert len(world.controllers.caches.nodes) == 0


def test_r7_all_sandboxes_of_good_nodes_go_before_those_of_bad_nodes() -> None:
    rng = Random(0)
    scene = Scene()
    where = {f"box-{number}": rng.randrange(10) for number in range(300)}
    for name, number in where.items():
        scene.member(name, f"node-{number}")
    for number in range(5):
        scene.node(f"node-{number}", cordoned=True)
    taken = scene.take(*map(str, range(300)))
    is_bad = [where[name] < 5 for name in taken]
    assert is_bad == sorted(is_bad)
    assert len(set(taken)) == 300
