"""The scheduler: placement, waiting pods and their conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.api.kinds import NODE, POD, RUNTIME_CLASS
from sandpool.api.labels import UNAVAILABLE_RUNTIMES
from sandpool.kube.client import MergePatch
from sandpool.testing.objects import new

if TYPE_CHECKING:
    from tests.node.scheduling.conftest import SchedulerRig


async def test_pod_is_bound(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("one")
    assert await rig.topologies("one") == "node-1"
    assert ("Scheduled", "Successfully assigned default/one to node-1") in await rig.events()


async def test_pods_spread_over_nodes(rig: SchedulerRig) -> None:
    await rig.node("a")
    await rig.node("b")
    for name in ("one", "two", "three", "four"):
        await rig.pod(name)
    assert [await rig.topologies(name) for name in ("one", "two", "three", "four")] == ["a", "b", "a", "b"]


async def test_pod_waits_for_the_first_node(rig: SchedulerRig) -> None:
    await rig.pod("one")
    assert await rig.why("one") == "no nodes available to schedule pods"
    await rig.node()
    assert await rig.topologies("one") == "node-1"


async def test_insufficient_resource_is_named(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("large", requests={"cpu": "8", "memory": "16Gi"})
    assert await rig.why("large") == (
        "0/1 nodes are available: 1 Insufficient cpu (8 requested, 4 free), "
        "1 Insufficient memory (16Gi requested, 8Gi free)."
    )
    assert ("FailedScheduling", await rig.why("large")) in await rig.events()


async def test_freed_resources_go_to_the_first_waiting_pod(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("one", requests={"cpu": "3"})
    for name in ("two", "three"):
        await rig.pod(name, requests={"cpu": "3"})
        assert await rig.why(name) == "0/1 nodes are available: 1 Insufficient cpu (3 requested, 1 free)."
    await rig.client.delete(POD, "one", "default", grace_period_seconds=0)
    await rig.settle()
    assert (await rig.topologies("two"), await rig.topologies("three")) == ("node-1", "")


async def test_ended_pod_uses_no_resources(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("one", requests={"cpu": "3"})
    await rig.pod("two", requests={"cpu": "3"})
    await rig.client.patch(POD, "one", MergePatch({"status": {"phase": "Succeeded"}}), "default", subresource="status")
    await rig.settle()
    assert await rig.topologies("two") == "node-1"


async def test_large_pod_does_not_block_small_ones(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("large", requests={"cpu": "8"})
    await rig.pod("small", requests={"cpu": "1"})
    assert (await rig.topologies("large"), await rig.topologies("small")) == ("", "node-1")


async def test_number_of_pods_is_limited(rig: SchedulerRig) -> None:
    await rig.node(amounts={"cpu": "4", "memory": "8Gi", "pods": "1"})
    await rig.pod("one")
    await rig.pod("two")
    assert await rig.why("two") == "0/1 nodes are available: 1 Too many pods (1 requested, 0 free)."


async def test_largest_init_container_counts(rig: SchedulerRig) -> None:
    await rig.node()
    init = [{"name": "init", "image": "i", "resources": {"requests": {"cpu": "5"}}}]
    await rig.pod("one", requests={"cpu": "1"}, initContainers=init)
    assert await rig.why("one") == "0/1 nodes are available: 1 Insufficient cpu (5 requested, 4 free)."


async def test_runtime_class_without_a_node_is_reported(rig: SchedulerRig) -> None:
    await rig.client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, "strong", handler="gvisor"))
    missing = '{"crun": "it is too old", "gvisor": "runsc is not installed"}'
    await rig.node(handlers=("bwrap",), annotations={UNAVAILABLE_RUNTIMES: missing})
    await rig.pod("one", runtimeClassName="strong")
    assert await rig.why("one") == (
        "0/1 nodes are available: 1 runtime gvisor is not available on this node: runsc is not installed."
    )
    await rig.node("node-2", handlers=("bwrap", "gvisor"))
    assert await rig.topologies("one") == "node-2"


async def test_new_runtime_of_a_node_schedules_waiting_pods(rig: SchedulerRig) -> None:
    await rig.client.create(RUNTIME_CLASS, new(RUNTIME_CLASS, "strong", handler="gvisor"))
    await rig.node(handlers=("bwrap",))
    await rig.pod("one", runtimeClassName="strong")
    assert await rig.why("one") == "0/1 nodes are available: 1 runtime gvisor is not available on this node."
    status = {"runtimeHandlers": [{"name": "bwrap"}, {"name": "gvisor"}]}
    await rig.client.patch(NODE, "node-1", MergePatch({"status": status}), subresource="status")
    await rig.settle()
    assert await rig.topologies("one") == "node-1"


async def test_nodes_that_are_not_ready_or_cordoned_are_not_used(rig: SchedulerRig) -> None:
    await rig.node("sick", ready="False")
    await rig.node("closed", unschedulable=True)
    await rig.pod("one")
    assert await rig.why("one") == (
        "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unschedulable}, "
        "1 node(s) were not ready."
    )
    await rig.client.patch(NODE, "closed", MergePatch({"spec": {"unschedulable": None}}))
    await rig.settle()
    assert await rig.topologies("one") == "closed"


async def test_condition_is_written_once(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("one", requests={"cpu": "8"})
    writes = len(rig.wire.requests)
    await rig.client.patch(POD, "one", MergePatch({"metadata": {"labels": {"a": "b"}}}), "default")
    await rig.client.patch(NODE, "node-1", MergePatch({"metadata": {"labels": {"a": "b"}}}))
    await rig.settle()
    assert len(rig.wire.requests) == writes


async def test_gated_and_foreign_pods_are_left_alone(rig: SchedulerRig) -> None:
    await rig.node()
    await rig.pod("gated", schedulingGates=[{"name": "example.com/wait"}])
    await rig.pod("foreign", schedulerName="another")
    assert (await rig.topologies("gated"), await rig.topologies("foreign")) == ("", "")
    await rig.client.patch(POD, "gated", MergePatch({"spec": {"schedulingGates": None}}), "default")
    await rig.settle()
    assert await rig.topologies("gated") == "node-1"


async def test_failed_binding_is_retried(rig: SchedulerRig) -> None:
    await rig.node()
    failures = iter([ConnectionError("cut")])
    rig.wire.fault = lambda request: next(failures, None) if request.path.endswith("/binding") else None
    await rig.pod("one")
    while not await rig.topologies("one"):
        await rig.clock.jump()
        await rig.settle()
    assert await rig.topologies("one") == "node-1"


async def test_restarted_scheduler_counts_used_resources(rig: SchedulerRig) -> None:
    from random import Random

    from sandpool.kube.client import Client
    from sandpool.node.scheduling.scheduler import Scheduler

    await rig.node()
    await rig.pod("one", requests={"cpu": "3"})
    await rig.scheduler.stop()
    rig.scheduler = Scheduler(Client(rig.wire), rig.clock, Random(1))
    await rig.scheduler.start()
    await rig.pod("two", requests={"cpu": "3"})
    assert await rig.why("two") == "0/1 nodes are available: 1 Insufficient cpu (3 requested, 1 free)."


async def test_equal_unschedulable_pods_cost_one_check(rig: SchedulerRig) -> None:
    await rig.node()
    for number in range(20):
        await rig.pod(f"pod-{number}", requests={"cpu": "8"})
    passes = rig.scheduler.controller.reconciles
    await rig.pod("small")
    await rig.client.delete(POD, "small", "default", grace_period_seconds=0)
    await rig.settle()
    assert rig.scheduler.controller.reconciles <= passes + 2
