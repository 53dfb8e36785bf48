"""A sandbox from its creation to its end: what its pod is made of, what every
condition says, word for word, and that neither a steady nor an ended sandbox is touched."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import PROPAGATED_ANNOTATIONS, PROPAGATED_LABELS, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.node.simulated import NO_NODE, Fate, StartupStage
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World
from tests.support.api_objects import owner_reference
from tests.support.sandbox_objects import pod_status
from tests.support.simulated_nodes import reconsider

HASH = name_hash("box")
NOT_SUSPENDED = ("False", "NotSuspended", "Sandbox is not suspended")
SCHEDULED = ("True", "PodScheduled", "")
LASTING = 11  # seconds; what a launch that is under way says is written when it has lasted
NEVER = 1e6


async def test_ready_sandbox_has_three_conditions_and_its_location(world: World) -> None:
    await world.sandbox()
    box = await world.get()

    status = dict(box["status"])
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


async def test_launch_is_one_pod_and_one_status_write(world: World) -> None:
    """The number of stages that the kubelet reports does not matter."""
    world.node.delays = dict.fromkeys(StartupStage, 0.5)
    world.written()
    await world.sandbox()
    await world.wait(5)
    assert world.written() == ["create pods", "patch sandboxes/status"]
    assert await world.conditions() == {
        "Suspended": NOT_SUSPENDED,
        "PodScheduled": SCHEDULED,
        "Ready": ("True", "DependenciesReady", "Pod is Ready"),
    }
    await world.wait(3600)
    assert world.written() == [], "a steady sandbox costs nothing"


async def test_pod_has_spec_metadata_and_owner(world: World) -> None:
    """The pod has the template's metadata and spec, the tracking label and the lists of propagated keys.

    Secure defaults are added by pools and claims, not by the Sandbox controller.
    """
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


async def test_container_without_a_message_policy_falls_back_to_its_logs(world: World) -> None:
    """So the last output of a program that fails is in the status of the pod, and in the conditions that copy it."""
    image = "example.com/image:1"
    own = {"name": "own", "image": image, "terminationMessagePolicy": "File"}
    template = pod_template(
        spec={
            "containers": [{"name": "main", "image": image}, own],
            "initContainers": [{"name": "init", "image": image}],
        }
    )
    await world.sandbox(podTemplate=template)
    spec = (await world.get(POD))["spec"]
    policies = {
        each["name"]: each["terminationMessagePolicy"] for each in (*spec["initContainers"], *spec["containers"])
    }
    assert policies == {"init": "FallbackToLogsOnError", "main": "FallbackToLogsOnError", "own": "File"}


async def test_limits_without_requests_are_requested(world: World) -> None:
    """As on any Kubernetes; ``sandpool up`` runs the controllers with another default."""
    container = {"name": "main", "image": "example.com/image:1", "resources": {"limits": {"cpu": "2"}}}
    await world.sandbox(podTemplate=pod_template(spec={"containers": [container]}))
    assert (await world.get(POD))["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}


async def test_pod_without_template_metadata_has_no_key_lists(world: World) -> None:
    await world.sandbox()
    metadata = (await world.get(POD))["metadata"]
    assert metadata["labels"] == {SANDBOX_NAME_HASH: HASH}
    assert metadata.get("annotations", {}) == {}


async def test_ready_message_follows_the_pod(world: World) -> None:
    """Each message in turn, written after the delay of a status that is not urgent."""
    world.node.delays = {StartupStage.SCHEDULED: NEVER}
    await world.sandbox()
    for status, message in (
        (pod_status("Pending", scheduled=None), "Pod exists with phase: Pending"),
        (pod_status("Running"), "Pod is Running but not Ready"),
        (pod_status("Running", ready=True), "Pod is Ready but has no podIPs yet"),
    ):
        await world.patch(POD, "box", {"status": status}, "status")
        await world.wait(LASTING)
        assert (await world.conditions())["Ready"] == ("False", "DependenciesNotReady", message)
    await world.patch(POD, "box", {"status": pod_status("Running", ready=True, ips=["10.0.0.9", "fd00::9"])}, "status")
    assert (await world.conditions())["Ready"] == ("True", "DependenciesReady", "Pod is Ready")
    assert (await world.get())["status"]["podIPs"] == ["10.0.0.9", "fd00::9"]

    await world.patch(POD, "box", {"status": pod_status("Running", ips=["10.0.0.9", "fd00::9"])}, "status")
    assert (await world.conditions())["Ready"] == ("False", "DependenciesNotReady", "Pod is Running but not Ready")


async def test_pod_scheduled_follows_the_pod(world: World) -> None:
    """Three cases: nothing reported, no node found (written at once), and a missing reason."""
    world.node.delays = {StartupStage.SCHEDULED: NEVER}
    await world.sandbox()
    await world.wait(LASTING)
    assert (await world.conditions())["PodScheduled"] == (
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
        assert (await world.conditions())["PodScheduled"] == told


async def test_unschedulable_pod_becomes_ready_later(world: World) -> None:
    world.node.fate = lambda pod: Fate.UNSCHEDULABLE
    await world.sandbox()
    assert await world.conditions() == {
        "Suspended": NOT_SUSPENDED,
        "PodScheduled": ("False", "Unschedulable", NO_NODE),
        "Ready": ("False", "DependenciesNotReady", "Pod exists with phase: Pending"),
    }
    world.node.fate = lambda pod: Fate.READY
    reconsider(world.node)
    await world.settle()
    assert (await world.conditions())["Ready"] == ("True", "DependenciesReady", "Pod is Ready")


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (Fate.FAILED, ("PodFailed", "Pod failed")),
        (Fate.SUCCEEDED, ("PodSucceeded", "Pod completed successfully")),
    ],
    ids=["failed", "succeeded"],
)
async def test_finished_pod_is_reported_and_not_replaced(world: World, fate: Fate, told: tuple[str, str]) -> None:
    world.node.fate = lambda pod: fate
    await world.sandbox()
    await world.wait(600)
    assert await world.conditions() == {
        "Suspended": NOT_SUSPENDED,
        "Finished": ("True", *told),
        "PodScheduled": SCHEDULED,
        "Ready": ("False", *told),
    }
    assert world.written() == ["create pods", "patch sandboxes/status"]


async def test_deleted_pod_is_replaced_and_its_conditions_are_removed(world: World) -> None:
    world.node.fate = lambda pod: Fate.FAILED
    await world.sandbox()
    first = (await world.get(POD))["metadata"]["uid"]
    world.node.fate = lambda pod: Fate.READY
    await world.delete(POD, "box")
    assert (await world.get(POD))["metadata"]["uid"] != first
    told = await world.conditions()
    assert "Finished" not in told
    assert told["Ready"] == ("True", "DependenciesReady", "Pod is Ready")


async def test_transition_time_changes_only_with_the_status(world: World) -> None:
    """A change of reason, message or generation keeps the time."""
    world.node.fate = lambda pod: Fate.HANGING
    await world.sandbox()
    await world.wait(LASTING)
    first = await _time_of_ready(world)
    await world.wait(30)
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Suspended"}})
    assert (await world.conditions())["Ready"][1] == "SandboxSuspended"
    assert await _time_of_ready(world) == first
    world.node.fate = lambda pod: Fate.READY
    await world.patch(SANDBOX, "box", {"spec": {"operatingMode": "Running"}})
    assert (await world.conditions())["Ready"][0] == "True"
    assert await _time_of_ready(world) > first


async def _time_of_ready(world: World) -> str:
    (ready,) = [each for each in (await world.get())["status"]["conditions"] if each["type"] == "Ready"]
    since: str = ready["lastTransitionTime"]
    return since


async def test_deleting_a_sandbox_deletes_its_children(world: World) -> None:
    """The garbage collector deletes them: the controller deletes nothing and sets no finalizers."""
    claim: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    box = await world.sandbox(service=True, volumeClaimTemplates=[{"metadata": {"name": "data"}, "spec": claim}])
    assert "finalizers" not in box["metadata"]
    world.written()
    await world.delete(SANDBOX, "box")
    await world.gone(POD)
    assert world.written() == []


async def test_deleting_a_claim_deletes_all_its_objects(world: World) -> None:
    await world.template()
    await world.pool(0)
    await world.claim("mine")
    await world.served(1)
    await world.delete(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, "mine")
    await world.gone(POD, "mine")
