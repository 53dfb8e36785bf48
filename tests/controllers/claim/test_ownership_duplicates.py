"""A claim that owns two sandboxes because a delayed request was executed."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.events import CLAIM_CONTROLLER, WARNING, EventSpec, duplicates_deleted
from sandpool.api.kinds import EVENT, SANDBOX
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.ownership import duplicate_deletions, duplicates, primary_sandbox
from sandpool.controllers.writer import Delete
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.waiting import until
from sandpool.testing.world import NAMESPACE, World, owner_of
from tests.support.claim_objects import claim
from tests.support.sandbox_objects import sandbox


def view(**fields: Any) -> ClaimView:
    return ClaimView.from_object(claim(**fields))


def own(name: str, created: str = "2026-11-01T12:00:00Z", **metadata: Any) -> SandboxView:
    identity = {labels.CLAIM_UID: "sandboxclaim-claim"}
    whole = sandbox(name, owner=claim(), metadata={"creationTimestamp": created, "labels": identity, **metadata})
    return SandboxView.from_object(whole)


OLD, YOUNG = own("pool-z", "2026-11-01T11:00:00Z"), own("pool-a", "2026-11-01T11:30:00Z")


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        (view(status={"sandbox": {"name": "pool-a"}}), "pool-a"),
        (view(metadata={"annotations": {labels.SANDBOX_NAME: "pool-a"}}), "pool-a"),
        (view(status={"sandbox": {"name": "pool-z"}}, metadata={"annotations": {labels.SANDBOX_NAME: "a"}}), "pool-z"),
        (view(), "pool-z"),
        (view(name="pool-a"), "pool-a"),
        (view(status={"sandbox": {"name": "gone"}}), "pool-z"),
    ],
)
def test_named_sandbox_is_kept_otherwise_the_oldest(claimed: ClaimView, expected: str) -> None:
    for owned in permutations((OLD, YOUNG, own("pool-m"))):
        assert primary_sandbox(claimed, owned).name == expected


def test_sandboxes_of_the_same_age_are_ordered_by_name() -> None:
    for owned in permutations((own("b"), own("a"), own("c"))):
        assert primary_sandbox(view(), owned).name == "a"


def test_other_owned_sandboxes_are_duplicates() -> None:
    assert duplicates(view(), (OLD, YOUNG), OLD) == (YOUNG,)
    assert duplicates(view(), (OLD,), OLD) == ()


def test_sandbox_being_deleted_is_no_duplicate() -> None:
    going = own("pool-b", deletionTimestamp="2026-11-01T12:00:00Z")
    assert duplicates(view(), (OLD, going), OLD) == ()


def test_no_duplicate_is_deleted_while_the_kept_one_is_being_deleted() -> None:
    going = own("pool-b", deletionTimestamp="2026-11-01T12:00:00Z")
    assert duplicates(view(), (OLD, going), going) == ()


def test_r10_owned_sandbox_without_claim_labels_is_no_duplicate() -> None:
    foreign = own("pool-b", labels={})
    assert duplicates(view(), (OLD, foreign), OLD) == ()


def test_duplicate_is_deleted_by_uid_and_version_if_the_status_names_the_other() -> None:
    bound = view(status={"sandbox": {"name": "pool-z"}})
    delete = Delete(SANDBOX, "pool-a", "sandbox-pool-a", "1")
    assert duplicate_deletions(view(), bound, OLD, (YOUNG,)) == (delete,)
    assert duplicate_deletions(view(), view(), OLD, (YOUNG,)) == ()
    assert duplicate_deletions(view(), view(status={"sandbox": {"name": "pool-a"}}), OLD, (YOUNG,)) == ()
    assert duplicate_deletions(view(), replace(bound, uid="another"), OLD, (YOUNG,)) == ()
    assert duplicate_deletions(view(), replace(bound, deletion_timestamp=OLD.creation_timestamp), OLD, (YOUNG,)) == ()


def test_deletion_of_a_duplicate_is_recorded_as_an_event() -> None:
    note = 'Deleted duplicate Sandbox "a": the claim already has Sandbox "b"'
    assert duplicates_deleted("a", "b") == EventSpec(
        CLAIM_CONTROLLER, WARNING, "SurplusSandboxDeleted", "Deleting", note
    )


def is_adoption(request: Request) -> bool:
    return request.method == "PATCH" and "ownerReferences" in ((request.body or {}).get("metadata") or {})


async def taken_over(world: World) -> Request:
    """A claim whose adoption was sent and not carried out before another process took over, which has not begun yet.
    The request that was sent."""
    await world.template()
    await world.pool(3)
    sent: list[Request] = []

    def hold(request: Request) -> Fault | None:
        if is_adoption(request) and not sent:
            sent.append(request)
            return Fault.HOLD
        return None

    world.wire.fault = hold
    await world.claim("mine")
    await world.eventually(lambda: sent)
    await world.controllers.stop(grace=0.0)
    world.controllers = world.new_controllers()
    return sent[0]


async def of(world: World, claim: str) -> list[str]:
    """The sandboxes a claim owns."""
    boxes = await world.all(SANDBOX)
    return [box["metadata"]["name"] for box in boxes if owner_of(box) == ("SandboxClaim", claim)]


async def test_r14_adoption_executed_before_the_successor_reads_is_found(world: World) -> None:
    late = await taken_over(world)
    await world.wire.transport.request(late)
    await world.controllers.start()
    served = await world.served(1)
    assert late.path.endswith(served["mine"]["metadata"]["name"])
    await world.filled(3)
    assert len(await of(world, "mine")) == 1


async def test_r1_r14_adoption_executed_after_that_of_the_successor_is_undone(world: World) -> None:
    late = await taken_over(world)
    await world.controllers.start()
    served = (await world.served(1))["mine"]
    member = (await world.filled(3))[0]
    name, version = member["metadata"]["name"], member["metadata"]["resourceVersion"]
    body = {**late.body, "metadata": {**late.body["metadata"], "resourceVersion": version}}
    await world.wire.transport.request(replace(late, path=f"{late.path.rpartition('/')[0]}/{name}", body=body))

    async def alone() -> bool:
        return len(await of(world, "mine")) == 1

    await until(alone)
    assert await of(world, "mine") == [served["metadata"]["name"]], "who uses it keeps it"
    with pytest.raises(NotFound):
        await world.client.get(SANDBOX, name, NAMESPACE)
    await world.filled(3)
    assert (await world.served(1))["mine"]["metadata"]["uid"] == served["metadata"]["uid"]

    async def told() -> bool:
        found = await world.client.list(EVENT, NAMESPACE)
        return any(each["reason"] == "SurplusSandboxDeleted" for each in found["items"])

    await until(told)


async def test_r14_adoption_executed_while_the_successor_binds_another_is_undone(world: World) -> None:
    late = await taken_over(world)
    original = world.wire.transport.request
    bound: list[str] = []

    async def be_late(request: Request) -> object:
        if is_adoption(request) and not bound:
            bound.append(request.path.rpartition("/")[2])
            member = next(box for box in await world.members() if box["metadata"]["name"] not in bound)
            version = member["metadata"]["resourceVersion"]
            body = {**late.body, "metadata": {**late.body["metadata"], "resourceVersion": version}}
            await original(
                replace(late, path=f"{late.path.rpartition('/')[0]}/{member['metadata']['name']}", body=body)
            )
            owned = world.controllers.caches.owned_sandboxes
            uid = late.body["metadata"]["ownerReferences"][0]["uid"]
            await world.eventually(lambda: owned(uid))
        return await original(request)

    world.wire.transport.request = be_late  # type: ignore[method-assign]
    await world.controllers.start()
    await world.served(1)

    async def alone() -> bool:
        return len(await of(world, "mine")) == 1

    await until(alone)
    assert await of(world, "mine") == bound, "who uses it keeps it"
