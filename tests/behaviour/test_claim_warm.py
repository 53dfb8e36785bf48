"""Claims that adopt a warm sandbox of their pool. Edge cases 32 to 51 of docs/compatibility.md."""

from __future__ import annotations

import pytest

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import SharedObject
from sandpool.kube.errors import InternalError
from sandpool.kube.transport import Request
from sandpool.node.simulated import StartupStage
from sandpool.testing.world import World, owner_of, owners
from tests.support.api_objects import owner_reference
from tests.support.intercepting_transport import Interceptor
from tests.support.object_queries import is_adoption, is_creation, is_warm, named_in

NEVER = 1e6  # seconds


async def set_ready(world: World, pod: str) -> None:
    """The kubelet says that a pod is ready."""
    conditions = (await world.get(POD, pod))["status"]["conditions"]
    changed = [{**each, "status": "True"} if each["type"] == "Ready" else each for each in conditions]
    await world.patch(POD, pod, {"status": {"conditions": changed}}, "status")


def sandbox_of(claim: SharedObject) -> str:
    name: str = ((claim.get("status") or {}).get("sandbox") or {}).get("name", "")
    return name


# --- what a claim is given -------------------------------------------------------------------------------------------


async def test_claim_copies_the_ready_condition_of_its_sandbox(world: World) -> None:
    """The transition time is that of the sandbox, which may be older than the claim (edge case 32)."""
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    await world.wait(60)
    await world.claim("mine")
    claim = await world.get(SANDBOX_CLAIM, "mine")

    (theirs,) = [each for each in member["status"]["conditions"] if each["type"] == "Ready"]
    assert claim["status"] == {
        "sandbox": {"name": member["metadata"]["name"], "podIPs": member["status"]["podIPs"]},
        "conditions": [{**theirs, "observedGeneration": claim["metadata"]["generation"]}],
    }
    assert await world.conditions(SANDBOX_CLAIM, "mine") == {"Ready": ("True", "DependenciesReady", "Pod is Ready")}


async def test_adopted_sandbox_is_owned_by_the_claim_alone(world: World) -> None:
    """It has one owner, the labels of the claim, and no label of the pool."""
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    claim = await world.claim("mine", metadata={"labels": {labels.CREATED_BY: "python-client"}})
    box = (await world.served(1))["mine"]

    assert box["metadata"]["uid"] == member["metadata"]["uid"]
    assert box["metadata"]["ownerReferences"] == [owner_reference(claim, controller=True, block=True)]
    assert box["metadata"]["labels"] == {
        labels.CLAIM_UID: claim["metadata"]["uid"],
        labels.CREATED_BY: "python-client",
        labels.LAUNCH_TYPE: "warm",
        labels.TEMPLATE_REF_HASH: name_hash("python"),
    }
    assert box["metadata"]["annotations"] == {
        labels.TEMPLATE_REF: "python",
        labels.POD_NAME: box["metadata"]["name"],
    }
    pod = await world.get(POD, box["metadata"]["name"])
    assert labels.WARM_POOL not in pod["metadata"]["labels"]
    assert pod["metadata"]["labels"][labels.CREATED_BY] == "python-client"
    assert pod["metadata"]["labels"][labels.TEMPLATE_REF_HASH] == name_hash("python")
    assert labels.SAFE_TO_EVICT not in pod["metadata"].get("annotations", {}), "it is in use now"
    (event,) = await world.events("mine")
    assert (event["reason"], event["note"]) == (
        "SandboxAdopted",
        f'Adopted warm pool Sandbox "{box["metadata"]["name"]}"',
    )


async def test_e51_claim_without_creator_removes_that_of_the_pool(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    box = (await world.served(1))["mine"]

    assert labels.CREATED_BY not in box["metadata"]["labels"]
    assert labels.CREATED_BY not in (await world.get(POD, box["metadata"]["name"]))["metadata"]["labels"]


async def test_metadata_of_a_claim_reach_its_pod_and_are_kept(world: World) -> None:
    """Later metadata of the template reach the sandbox with the next reconcile of the claim."""
    await world.template()
    await world.pool(1)
    own = {"labels": {"sandbox.users.io/team": "blue"}, "annotations": {"note": "mine"}}
    await world.claim("mine", additionalPodMetadata=own)
    name = (await world.served(1))["mine"]["metadata"]["name"]
    pod = (await world.get(POD, name))["metadata"]
    assert pod["labels"]["sandbox.users.io/team"] == "blue"
    assert pod["annotations"]["note"] == "mine"

    body = {"spec": {"podTemplate": {"metadata": {"labels": {"app": "agent"}}}}}
    await world.patch(SANDBOX_TEMPLATE, "python", body)
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"lifecycle": {"shutdownPolicy": "Delete"}}})
    pod = (await world.get(POD, name))["metadata"]
    assert pod["labels"]["app"] == "agent"
    assert pod["labels"]["sandbox.users.io/team"] == "blue"
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


@pytest.mark.parametrize("annotation", [labels.IDLE_FREEZE_AFTER, labels.IDLE_SUSPEND_AFTER, labels.IDLE_CPU])
async def test_sleep_annotations_of_a_claim_reach_its_warm_pod(world: World, annotation: str) -> None:
    await world.template()
    await world.pool(1)
    value = "50m" if annotation == labels.IDLE_CPU else "30s"
    await world.claim("mine", additionalPodMetadata={"annotations": {annotation: value}})
    box = (await world.served(1))["mine"]
    assert box["metadata"]["labels"][labels.LAUNCH_TYPE] == labels.LAUNCH_WARM
    assert (await world.get(POD, box["metadata"]["name"]))["metadata"]["annotations"][annotation] == value


async def test_deleting_a_claim_deletes_its_sandbox(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    name = (await world.served(1))["mine"]["metadata"]["name"]
    since = len(world.wire.requests)
    await world.delete(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX, name)
    await world.gone(POD, name)

    assert not [each for each in world.wire.requests[since:] if each.method == "DELETE"], "the garbage collector's work"
    await world.filled(1)


# --- waiting for what is on its way ----------------------------------------------------------------------------------


async def test_e33_empty_pool_causes_a_cold_start_at_once(world: World) -> None:
    await world.template()
    await world.pool(0, filled=False)
    before = world.clock.monotonic()
    await world.claim("cold")
    served = await world.served(1)

    assert served["cold"]["metadata"]["name"] == "cold"
    assert world.clock.monotonic() == before


async def test_e33_waiting_claim_has_no_conditions(world: World) -> None:
    world.node.delays = {StartupStage.ADDRESS: NEVER}
    await world.template()
    await world.pool(1, filled=False)
    await world.claim("mine")
    assert "status" not in await world.get(SANDBOX_CLAIM, "mine")
    await world.wait(60)
    assert (await world.get(SANDBOX_CLAIM, "mine"))["status"]["sandbox"]["name"] == "mine", "then one is made for it"
    assert await owners(world) == {("SandboxWarmPool", "pool"): 1, ("SandboxClaim", "mine"): 1}


async def test_waiting_claims_are_served_in_arrival_order(world: World) -> None:
    """Events serve them: no time passes between a sandbox becoming ready and its claim becoming ready."""
    world.node.delays = {StartupStage.READY: NEVER}
    await world.template()
    await world.pool(3, filled=False)
    for name in ("zoe", "adam", "mia"):
        await world.claim(name)
    before = world.clock.monotonic()
    members = [box["metadata"]["name"] for box in reversed(await world.members())]
    given = []
    for member, claim in zip(members, ("zoe", "adam", "mia"), strict=True):
        await set_ready(world, member)
        assert is_ready(await world.get(SANDBOX_CLAIM, claim))
        given.append(sandbox_of(await world.get(SANDBOX_CLAIM, claim)))

    assert given == members
    assert world.clock.monotonic() == before


async def test_e34_starting_sandbox_is_adopted_when_none_is_ready(world: World) -> None:
    """It has reported an address and is not ready when the claim stops waiting."""
    world.node.delays = {StartupStage.READY: NEVER}
    await world.template()
    await world.pool(1, filled=False)
    await world.wait(30)
    (member,) = await world.members()
    await world.claim("mine")
    await world.wait(5)

    assert sandbox_of(await world.get(SANDBOX_CLAIM, "mine")) == member["metadata"]["name"]
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"] == (
        "False",
        "DependenciesNotReady",
        "Pod is Running but not Ready",
    )
    await set_ready(world, member["metadata"]["name"])
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


async def test_e35_ready_sandbox_is_preferred_over_an_older_starting_one(world: World) -> None:
    world.node.delays = {StartupStage.READY: NEVER}
    await world.template()
    await world.pool(2, filled=False)
    *_, last = await world.members()
    await set_ready(world, last["metadata"]["name"])
    await world.claim("mine")

    assert sandbox_of(await world.get(SANDBOX_CLAIM, "mine")) == last["metadata"]["name"]


# --- what a claim was assigned before ------------------------------------------------------------------


@pytest.mark.parametrize("where", ["annotations", "labels"])
async def test_e34_e36_assigned_sandbox_is_adopted_and_no_other(world: World, where: str) -> None:
    """A controller ended between recording an assignment and making it. The sandbox need not even have an address."""
    world.node.delays = {StartupStage.ADDRESS: NEVER}
    await world.template()
    await world.pool(3, filled=False)
    chosen = (await world.members())[1]["metadata"]["name"]
    await world.claim("mine", metadata={where: {labels.SANDBOX_NAME: chosen}})

    assert sandbox_of(await world.get(SANDBOX_CLAIM, "mine")) == chosen
    assert owner_of(await world.get(SANDBOX, chosen)) == ("SandboxClaim", "mine")
    tried = [named_in(each) for each in world.wire.requests if is_adoption(each)]
    assert tried == [chosen]


async def test_legacy_label_becomes_an_annotation(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    name = member["metadata"]["name"]
    await world.claim("mine", metadata={"labels": {labels.SANDBOX_NAME: name}})
    await world.served(1)
    metadata = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]

    assert metadata["annotations"][labels.SANDBOX_NAME] == name
    assert labels.SANDBOX_NAME not in metadata.get("labels", {})


async def test_e45_owner_reference_of_an_old_version_is_accepted(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    box = (await world.served(1))["mine"]
    (reference,) = box["metadata"]["ownerReferences"]
    old = {**reference, "apiVersion": "extensions.agents.x-k8s.io/v1alpha1"}
    await world.patch(SANDBOX, box["metadata"]["name"], {"metadata": {"ownerReferences": [old]}})
    await world.restart()
    await world.wait(5)

    assert (await world.served(1))["mine"]["metadata"]["uid"] == box["metadata"]["uid"]
    assert len(await world.all(SANDBOX)) == 2


async def test_e46_foreign_sandbox_of_the_claim_name_is_an_error(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.sandbox("mine")
    await world.claim("mine")
    told = await world.conditions(SANDBOX_CLAIM, "mine")

    assert told == {
        "Ready": (
            "False",
            "ReconcilerError",
            'Error seen: sandbox "mine" is not controlled by claim "mine". Please use a different claim name or delete '
            "the sandbox manually",
        )
    }
    await world.delete(SANDBOX, "mine")
    await world.wait(600)
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine")), "it is tried again"


async def test_e48_missing_launch_type_is_added_and_never_changed(world: World) -> None:
    await world.template()
    await world.pool(2)
    for claim, noted in (("first", None), ("second", "cold")):
        await world.claim(claim)
        name = sandbox_of(await world.get(SANDBOX_CLAIM, claim))
        await world.patch(SANDBOX, name, {"metadata": {"labels": {labels.LAUNCH_TYPE: noted}}})
        await world.patch(SANDBOX_CLAIM, claim, {"spec": {"lifecycle": {"shutdownPolicy": "Delete"}}})
        box = await world.get(SANDBOX, name)
        assert box["metadata"]["labels"][labels.LAUNCH_TYPE] == (noted or "warm")


# --- when something goes wrong ----------------------------------------------------------------


async def test_e38_sandbox_deleted_before_adoption_is_reported_and_replaced(world: World) -> None:
    await world.template()
    await world.pool(1)
    (member,) = await world.members()
    name = member["metadata"]["name"]
    said: list[str] = []

    def note(request: Request) -> None:
        if request.path.endswith("/sandboxclaims/mine/status"):
            said.extend(each["message"] for each in request.body["status"].get("conditions", []))

    async def delete_first(request: Request) -> None:
        if is_adoption(request) and named_in(request) == name:
            await world.client.delete(SANDBOX, name, world.namespace)

    Interceptor.behind(world.wire).before = delete_first
    world.wire.fault = note
    await world.claim("mine")
    await world.wait(5)
    await world.served(1)

    assert said[0] == (
        f"adoption write conflict: sandbox {name} deleted before adoption completed; the next pass retries from a "
        "converged view"
    )
    assert len([each for each in world.wire.requests if is_adoption(each) and named_in(each) == name]) == 1


async def test_e42_failed_write_of_the_sandbox_keeps_its_name_in_the_status(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    name = sandbox_of(await world.get(SANDBOX_CLAIM, "mine"))
    world.wire.fault = lambda request: (
        InternalError("not now") if request.method == "PATCH" and request.path.endswith(f"/sandboxes/{name}") else None
    )
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": {"podTemplate": {"metadata": {"labels": {"app": "new"}}}}})
    since = len(world.wire.requests)
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"lifecycle": {"shutdownPolicy": "Delete"}}})
    await world.wait(30)

    assert sandbox_of(await world.get(SANDBOX_CLAIM, "mine")) == name
    assert not [each for each in world.wire.requests[since:] if is_creation(each) and named_in(each) == "mine"]
    world.wire.heal()
    await world.wait(60)
    assert (await world.get(POD, name))["metadata"]["labels"]["app"] == "new"


async def test_deleted_sandbox_is_replaced(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    name = sandbox_of(await world.get(SANDBOX_CLAIM, "mine"))
    await world.filled(1)
    await world.delete(SANDBOX, name)
    await world.wait(1)
    box = (await world.served(1))["mine"]

    assert box["metadata"]["name"] != name
    assert is_warm(box)
    assert len(await world.all(SANDBOX)) == 2


# --- watches ---------------------------------------------------------------------------------------


async def test_change_of_uncopied_sandbox_fields_does_not_enqueue_the_claim(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    name = sandbox_of(await world.get(SANDBOX_CLAIM, "mine"))
    await world.filled(1)
    claims = world.controllers.claims.controller
    before = claims.reconciles
    await world.patch(SANDBOX, name, {"metadata": {"labels": {"example.com/a": "b"}}})
    await world.patch(SANDBOX, name, {"status": {"nodeName": "elsewhere"}}, "status")
    assert claims.reconciles == before
    await world.patch(SANDBOX, name, {"status": {"podIPs": ["10.1.2.3"]}}, "status")
    assert claims.reconciles > before


async def test_e44_bound_claims_are_enqueued_by_a_new_template_and_not_by_their_pool(world: World) -> None:
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.filled(1)
    claims = world.controllers.claims.controller
    before = claims.reconciles
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": 2}})
    await world.filled(2)
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}})
    assert claims.reconciles == before
    await world.delete(SANDBOX_TEMPLATE, "python")
    await world.template()
    assert claims.reconciles > before
