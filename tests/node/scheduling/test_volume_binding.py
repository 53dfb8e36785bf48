"""Pods with claims run where their volumes are and wait for missing ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from sandpool.api.resource import SharedObject
from sandpool.kube.client import MergePatch
from sandpool.node.volumes.provisioner import CLASS, STORAGE
from sandpool.testing.objects import new

if TYPE_CHECKING:
    from tests.node.scheduling.conftest import SchedulerRig

HOSTNAME = "kubernetes.io/hostname"
CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
PATIENCE = 2.0


@pytest.fixture
async def two(rig: SchedulerRig) -> AsyncIterator[SchedulerRig]:
    for name in ("a", "b"):
        await rig.node(name, labels={HOSTNAME: name})
    yield rig


async def claim(rig: SchedulerRig, name: str = "data", storage_class: str = CLASS, **spec: Any) -> SharedObject:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = new(PERSISTENT_VOLUME_CLAIM, name, spec={**asked, "storageClassName": storage_class, **spec})
    made = await rig.client.create(PERSISTENT_VOLUME_CLAIM, body, "default")
    if "volumeName" in spec:
        await bind(rig, name)
    await rig.settle()
    return made


async def bind(rig: SchedulerRig, name: str) -> None:
    status = MergePatch({"status": {"phase": "Bound"}})
    await rig.client.patch(PERSISTENT_VOLUME_CLAIM, name, status, "default", subresource="status")
    await rig.settle()


async def volume(rig: SchedulerRig, name: str, node: str) -> None:
    expression = {"key": HOSTNAME, "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "local": {"path": f"/data/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }
    await rig.client.create(PERSISTENT_VOLUME, new(PERSISTENT_VOLUME, name, spec=spec))
    await rig.settle()


async def pod(rig: SchedulerRig, name: str, *claims: str, **spec: Any) -> None:
    volumes = [{"name": f"v-{each}", "persistentVolumeClaim": {"claimName": each}} for each in claims]
    await rig.pod(name, volumes=volumes, **spec)


async def ripen(rig: SchedulerRig) -> None:
    """Wait until the pod's condition reports missing volumes."""
    await rig.clock.advance(PATIENCE)
    await rig.settle()


async def test_volume_decides_even_if_its_node_is_fuller(two: SchedulerRig) -> None:
    await two.pod("first")  # a node takes turns: without its volume the next pod would go to b
    assert await two.topologies("first") == "a"
    await volume(two, "there", "a")
    await claim(two, volumeName="there")
    await pod(two, "one", "data")
    assert await two.topologies("one") == "a"


async def test_node_without_the_volume_is_filtered(two: SchedulerRig) -> None:
    await volume(two, "there", "a")
    await claim(two, volumeName="there")
    await two.client.patch(NODE, "a", MergePatch({"spec": {"unschedulable": True}}))
    await pod(two, "one", "data")
    taint = "node(s) had untolerated taint {node.kubernetes.io/unschedulable}"
    assert await two.why("one") == f"0/2 nodes are available: 1 {CONFLICT}, 1 {taint}."
    await two.client.patch(NODE, "a", MergePatch({"spec": {"unschedulable": None}}))
    await two.settle()
    assert await two.topologies("one") == "a"


async def test_pod_waits_for_the_node_of_its_volume(two: SchedulerRig) -> None:
    await volume(two, "there", "c")
    await claim(two, volumeName="there")
    await pod(two, "one", "data")
    assert await two.why("one") == f"0/2 nodes are available: 2 {CONFLICT}."
    await two.node("c", labels={HOSTNAME: "c"})
    assert await two.topologies("one") == "c"


async def test_node_must_reach_all_volumes(two: SchedulerRig) -> None:
    for name, node in (("x", "a"), ("y", "b")):
        await volume(two, name, node)
        await claim(two, name, volumeName=name)
    await pod(two, "one", "x", "y")
    assert await two.why("one") == f"0/2 nodes are available: 2 {CONFLICT}."


async def test_missing_claim_is_named_and_awaited(rig: SchedulerRig) -> None:
    await rig.node(labels={HOSTNAME: "node-1"})
    await pod(rig, "one", "data")
    await ripen(rig)
    assert await rig.why("one") == '0/1 nodes are available: persistentvolumeclaim "data" not found.'
    await volume(rig, "there", "node-1")
    await claim(rig, volumeName="there")
    assert await rig.topologies("one") == "node-1"


async def test_pod_waits_silently_while_its_volume_is_made(two: SchedulerRig) -> None:
    await pod(two, "one", "data")
    await claim(two)
    await volume(two, "there", "b")
    named = MergePatch({"spec": {"volumeName": "there"}})
    await two.client.patch(PERSISTENT_VOLUME_CLAIM, "data", named, "default")
    await two.settle()
    assert await two.topologies("one") == "", "a node would find a claim that is not bound"
    await bind(two, "data")
    assert await two.topologies("one") == "b"
    assert [request for request in two.wire.requests if request.path.endswith("/status")] == []
    assert [reason for reason, _ in await two.events()] == ["Scheduled"]


async def test_unbound_claim_is_reported_after_a_delay(rig: SchedulerRig) -> None:
    await rig.node()
    await claim(rig)
    await pod(rig, "one", "data")
    await ripen(rig)
    assert await rig.why("one") == UNBOUND
    writes = len(rig.wire.requests)
    await rig.client.patch(NODE, "node-1", MergePatch({"metadata": {"labels": {"a": "b"}}}))
    await rig.settle()
    assert len(rig.wire.requests) == writes


async def test_lost_volume_is_named(rig: SchedulerRig) -> None:
    await rig.node()
    await claim(rig, volumeName="gone")
    await pod(rig, "one", "data")
    await ripen(rig)
    missing = 'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"'
    assert await rig.why("one") == f"0/1 nodes are available: {missing}."


@pytest.mark.parametrize("provisioner", ["example.com/disks", STORAGE["provisioner"]])
async def test_wait_for_first_consumer_does_not_delay_binding(rig: SchedulerRig, provisioner: str) -> None:
    """Our own provisioner binds at once, so its volumes are awaited whatever the binding mode of the class."""
    wait_for_consumer = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    await rig.client.create(STORAGE_CLASS, new(STORAGE_CLASS, "later", **wait_for_consumer))
    await rig.node()
    await claim(rig, storage_class="later")
    await pod(rig, "one", "data")
    assert await rig.topologies("one") == ("node-1" if provisioner == "example.com/disks" else "")


async def test_renamed_node_still_has_its_volumes(rig: SchedulerRig) -> None:
    await rig.node("new", labels={HOSTNAME: "new"})
    await rig.node("old", labels={HOSTNAME: "old"}, ready="False")
    rig.scheduler.instance, rig.scheduler.has_volume = "new", lambda volume: volume == "there"
    await volume(rig, "there", "old")
    await claim(rig, volumeName="there")
    await pod(rig, "one", "data")
    assert await rig.topologies("one") == "new"


async def test_pods_without_claims_need_no_volume_lookup(rig: SchedulerRig) -> None:
    await rig.node()
    before = len(rig.wire.requests)
    await rig.pod("one")
    paths = [request.path.rpartition("/")[2] for request in rig.wire.requests[before:]]
    assert sorted(paths) == ["binding", "events"]


async def test_claim_change_enqueues_only_its_own_pods(rig: SchedulerRig) -> None:
    await rig.node()
    for number in range(20):
        await pod(rig, f"pod-{number}", f"claim-{number}")
    passes = rig.scheduler.controller.reconciles
    await claim(rig, "claim-7")
    assert rig.scheduler.controller.reconciles == passes + 1
