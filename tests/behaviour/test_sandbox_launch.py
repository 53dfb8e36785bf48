"""A sandbox from its creation to its end: what its pod is made of, what every
condition says, word for word, and that neither a steady nor an ended sandbox is touched."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import PROPAGATED_ANNOTATIONS, PROPAGATED_LABELS, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.node.simulated import NO_NODE, Fate, Stage
from sandpool.testing.objects import owner_reference, pod_template
from sandpool.testing.world import World
from tests.support.sandbox_objects import pod_status

HASH = name_hash("box")
NOT_SUSPENDED = ("False", "NotSuspended", "Sandbox is not suspended")
SCHEDULED = ("True", "PodScheduled", "")
LASTING = 11  # seconds; what a launch that is under way says is written when it has lasted
NEVER = 1e6


async def test_a_ready_sandbox_says_so_in_three_conditions_and_where_it_is(world: World) -> None:
    await world.sandbox()
    box = await world.get()

    status = box["status"]
    conditions = status.pop("conditions")
    assert [(each["type"], each["status"], each["reason"], each["message"]) for each in conditions] == [
        ("Suspended", *NOT_SUSPENDED),
        ("PodScheduled", *SCHEDULED),
        ("Ready", "True", "DependenciesReady", "Pod is Ready"),
    ]
    assert {each["observedGeneration"] for each in conditions} == {1}
    assert status == {
        "nodeName": "node",
        "podIPs": ["10.0.0.1"],
        "selector": f"{SANDBOX_NAME_HASH}={HASH}",
    }


async def test_a_launch_is_one_pod_and_one_status(world: World) -> None:
    """However many stages the kubelet reports (3.8)."""
    world.node.delays = dict.fromkeys(Stage, 0.5)
    world.written()
    await world.sandbox()
    await world.wait(5)
    assert world.written() == ["create pods", "patch sandboxes/status"]
    assert await world.told() == {
        "Suspended": NOT_SUSPENDED,
        "PodScheduled": SCHEDULED,
        "Ready": ("True", "DependenciesReady", "Pod is Ready"),
    }
    await world.wait(3600)
    assert world.written() == [], "a steady sandbox costs nothing"


async def test_the_pod_is_what_the_template_says_and_the_sandboxs(world: World) -> None:
    """3.5: labels and annotations of the author, the tracking label, lists of what was copied, the spec word for word,
    a controller reference; and no secure defaults, which are the business of pools and claims (4.3)."""
    container = {
        "name": "main",
        "image": "example.com/image:1",
        "args": ["serve"],
        "env": [{"name": "A", "value": "1"}],
    }
    template = pod_template(
        spec={"containers": [container], "terminationGracePeriodSeconds": 7},
        labels={"color": "red", "app": "x"},
        annotations={"note": "hello"},
    )
    box = await world.sandbox(podTemplate=template)
    pod = await world.get(POD)

    metadata = pod["metadata"]
    assert metadata["labels"] == {"color": "red", "app": "x", SANDBOX_NAME_HASH: HASH}
    assert metadata["annotations"] == {
        "note": "hello",
        PROPAGATED_LABELS: "app,color",
        PROPAGATED_ANNOTATIONS: "note",
    }
    assert metadata["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    creators = {each["manager"] for each in metadata["managedFields"] if "subresource" not in each}
    assert creators == {"sandbox-controller"}
    spec = pod["spec"]
    assert container.items() <= spec["containers"][0].items()
    assert spec["terminationGracePeriodSeconds"] == 7
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec.get("automountServiceAccountToken") is None


async def test_a_pod_without_metadata_of_an_author_has_no_lists(world: World) -> None:
    await world.sandbox()
    metadata = (await world.get(POD))["metadata"]
    assert metadata["labels"] == {SANDBOX_NAME_HASH: HASH}
    assert metadata.get("annotations", {}) == {}


async def test_the_ready_message_follows_the_pod(world: World) -> None:
    """2.6, Ready rule 5: each message in turn, written when it has lasted."""
    world.node.delays = {Stage.SCHEDULED: NEVER}
    await world.sandbox()
    for status, message in (
        (pod_status("Pending", scheduled=None), "Pod exists with phase: Pending"),
        (pod_status("Running"), "Pod is Running but not Ready"),
        (pod_status("Running", ready=True), "Pod is Ready but has no podIPs yet"),
    ):
        await world.patch(POD, "box", {"status": status}, "status")
        await world.wait(LASTING)
        assert (await world.told())["Ready"] == ("False", "DependenciesNotReady", message)
    await world.patch(POD, "box", {"status": pod_status("Running", ready=True, ips=["10.0.0.9", "fd00::9"])}, "status")
    assert (await world.told())["Ready"] == ("True", "DependenciesReady", "Pod is Ready")
    assert (await world.get())["status"]["podIPs"] == ["10.0.0.9", "fd00::9"]

    await world.patch(POD, "box", {"status": pod_status("Running", ips=["10.0.0.9", "fd00::9"])}, "status")
    assert (await world.told())["Ready"] == ("False", "DependenciesNotReady", "Pod is Running but not Ready")


async def test_scheduling_is_told_as_the_pod_tells_it(world: World) -> None:
    """2.6, PodScheduled: nothing reported, no node found (at once), and a reason that is missing."""
    world.node.delays = {Stage.SCHEDULED: NEVER}
    await world.sandbox()
    await world.wait(LASTING)
    assert (await world.told())["PodScheduled"] == (
        "Unknown",
        "PodSchedulingUnknown",
        "Pod has not reported a PodScheduled condition yet",
    )
    for report, told in (
        (("False", "Unschedulable", "no room"), ("False", "Unschedulable", "no room")),
        (("Unknown", "", "who knows"), ("Unknown", "PodSchedulingUnknown", "who knows")),
        (("True", "", ""), SCHEDULED),
    ):
        status, reason, message = report
        body = pod_status("Pending", scheduled=status, reason=reason, message=message)
        await world.patch(POD, "box", {"status": body}, "status")
        await world.wait(0 if status == "False" else LASTING)
        assert (await world.told())["PodScheduled"] == told


async def test_a_pod_that_finds_a_node_after_all_becomes_ready(world: World) -> None:
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.sandbox()
    assert await world.told() == {
        "Suspended": NOT_SUSPENDED,
        "PodScheduled": ("False", "Unschedulable", NO_NODE),
        "Ready": ("False", "DependenciesNotReady", "Pod exists with phase: Pending"),
    }
    world.node.fate = lambda pod: Fate.READY
    world.node.reconsider()
    await world.settle()
    assert (await world.told())["Ready"] == ("True", "DependenciesReady", "Pod is Ready")


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (Fate.FAILED, ("PodFailed", "Pod failed")),
        (Fate.SUCCEEDED, ("PodSucceeded", "Pod completed successfully")),
    ],
    ids=["failed", "succeeded"],
)
async def test_a_pod_that_has_ended_is_told_of_and_not_replaced(
    world: World, fate: Fate, told: tuple[str, str]
) -> None:
    """2.6 Finished, Ready rule 4; 3.4 rule 6."""
    world.node.fate = lambda pod: fate
    await world.sandbox()
    await world.wait(600)
    assert await world.told() == {
        "Suspended": NOT_SUSPENDED,
        "Finished": ("True", *told),
        "PodScheduled": SCHEDULED,
        "Ready": ("False", *told),
    }
    assert world.written() == ["create pods", "patch sandboxes/status"]


async def test_a_pod_that_somebody_deletes_is_replaced_and_nothing_of_it_remains(world: World) -> None:
    world.node.fate = lambda pod: Fate.FAILED
    await world.sandbox()
    first = (await world.get(POD))["metadata"]["uid"]
    world.node.fate = lambda pod: Fate.READY
    await world.delete(POD, "box")
    assert (await world.get(POD))["metadata"]["uid"] != first
    told = await world.told()
    assert "Finished" not in told
    assert told["Ready"] == ("True", "DependenciesReady", "Pod is Ready")


async def test_the_time_of_a_condition_is_when_its_status_changed(world: World) -> None:
    """2.6, the last lines: not when its reason, its message or the generation did."""
    world.node.fate = lambda pod: Fate.HANGING
    await world.sandbox()
    await world.wait(LASTING)
    first = await _time_of_ready(world)
    await world.wait(30)
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    assert (await world.told())["Ready"][1] == "SandboxSuspended"
    assert await _time_of_ready(world) == first
    world.node.fate = lambda pod: Fate.READY
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})
    assert (await world.told())["Ready"][0] == "True"
    assert await _time_of_ready(world) > first


async def _time_of_ready(world: World) -> str:
    (ready,) = [each for each in (await world.get())["status"]["conditions"] if each["type"] == "Ready"]
    since: str = ready["lastTransitionTime"]
    return since


async def test_a_deleted_sandbox_takes_its_children_with_it(world: World) -> None:
    """3.2 rule 1: by garbage collection; the controller deletes nothing. 2.3: there are no finalizers."""
    claim: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    box = await world.sandbox(service=True, volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": claim}])
    assert "finalizers" not in box["metadata"]
    world.written()
    await world.delete(SANDBOX, "box")
    await world.gone(POD)
    assert world.written() == []


async def test_a_claim_takes_everything_with_it(world: World) -> None:
    await world.template()
    await world.pool(0)
    await world.claim("mine")
    await world.served(1)
    await world.delete(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, "mine")
    await world.gone(POD, "mine")
