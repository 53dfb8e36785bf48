"""Which sandbox belongs to a claim: the owned one, else the assigned one, else one of its name, else a warm or cold
one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.errors import ClaimError, Retry
from sandpool.controllers.claim.ownership import Resolution, Source, launch_type, resolve
from tests.support.claim_objects import claim, pool_member, warm_pool
from tests.support.sandbox_objects import sandbox

ASSIGNED = {"annotations": {labels.SANDBOX_NAME: "pool-abcde"}}
LEGACY = {"labels": {labels.SANDBOX_NAME: "pool-abcde"}}


def view(**fields: Any) -> ClaimView:
    return ClaimView.from_object(claim(**fields))


def own(name: str, owner: Object | None = None, **fields: Any) -> SandboxView:
    return SandboxView.from_object(sandbox(name, owner=owner or claim(), **fields))


def member(name: str = "pool-abcde", **fields: Any) -> SandboxView:
    return SandboxView.from_object(pool_member(name, pool=warm_pool(), **fields))


def found(view: ClaimView, *others: SandboxView, owned: tuple[SandboxView, ...] = ()) -> Resolution:
    return resolve(view, owned, {other.name: other for other in others})


def test_owned_sandbox_is_bound() -> None:
    box = own("pool-abcde")
    assert found(view(status={"sandbox": {"name": "pool-abcde"}}), box, owned=(box,)) == Resolution(Source.BOUND, box)


def test_r1_e36_owned_sandbox_wins_over_the_assigned_one() -> None:
    box = own("pool-other")
    assert found(view(metadata=ASSIGNED), member(), owned=(box,)) == Resolution(Source.BOUND, box)


def test_crash_after_adoption_is_resolved_by_ownership() -> None:
    box = own("pool-xyz")
    assert found(view(), owned=(box,)) == Resolution(Source.BOUND, box)


def test_sandbox_of_the_status_wins_then_the_assigned_one_then_the_one_of_the_claim_name() -> None:
    boxes = tuple(own(name) for name in ("bound", "pool-abcde", "claim", "a"))
    assert found(view(metadata=ASSIGNED, status={"sandbox": {"name": "bound"}}), owned=boxes).sandbox is boxes[0]
    assert found(view(metadata=ASSIGNED), owned=boxes).sandbox is boxes[1]
    assert found(view(), owned=boxes).sandbox is boxes[2]
    assert found(view(), owned=(boxes[1], boxes[3])).sandbox is boxes[3]


@pytest.mark.parametrize("metadata", [ASSIGNED, LEGACY])
def test_r3_assigned_pool_member_is_adopted(metadata: Object) -> None:
    assert found(view(metadata=metadata), member()) == Resolution(Source.RESUME, member())


def test_e34_assigned_pool_member_without_address_is_adopted() -> None:
    assert member().status.pod_ips == ()
    assert found(view(metadata=ASSIGNED), member()).source is Source.RESUME


@pytest.mark.parametrize(
    "other",
    [
        member(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"}),
        replace(member(), labels={}),
        SandboxView.from_object(pool_member(pool=warm_pool("other"))),
        own("pool-abcde", claim("another")),
    ],
    ids=["deleting", "unlabelled", "other pool", "other claim"],
)
def test_r4_assigned_sandbox_that_cannot_be_adopted_is_released(other: SandboxView) -> None:
    assert found(view(metadata=ASSIGNED), other) == Resolution(Source.WARM, is_reference_stale=True)


def test_r4_assigned_sandbox_that_is_gone_is_released() -> None:
    assert found(view(metadata=ASSIGNED)) == Resolution(Source.WARM, is_reference_stale=True)


def test_assigned_sandbox_without_owner_is_neither_adopted_nor_released() -> None:
    unowned = SandboxView.from_object(sandbox("pool-abcde"))
    assert found(view(metadata=ASSIGNED), unowned) == Resolution(Source.WARM)


def test_e46_foreign_sandbox_of_the_claim_name_is_an_error() -> None:
    with pytest.raises(ClaimError) as caught:
        found(view(), own("claim", claim("another")))
    assert (caught.value.reason, caught.value.retry) == ("ReconcilerError", Retry.BACKOFF)
    assert caught.value.message == (
        'Error seen: sandbox "claim" is not controlled by claim "claim". Please use a different claim name or delete '
        "the sandbox manually"
    )


def test_sandbox_of_an_earlier_claim_of_the_name_is_not_the_claims() -> None:
    earlier = own("claim", claim(metadata={"uid": "earlier"}))
    with pytest.raises(ClaimError):
        found(view(), earlier)


@pytest.mark.parametrize(
    "spec",
    [{"env": [{"name": "A", "value": "1"}]}, {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]}],
)
def test_claim_that_no_pool_member_satisfies_is_cold(spec: Object) -> None:
    assert found(view(spec=spec)) == Resolution(Source.COLD)


def test_other_claims_are_warm() -> None:
    assert found(view()) == Resolution(Source.WARM)


@pytest.mark.parametrize(
    ("name", "metadata", "written", "launch"),
    [
        ("pool-abcde", ASSIGNED, {}, "warm"),
        ("pool-xyz", {}, {}, "warm"),
        ("claim", {}, {}, "cold"),
        ("claim", {"annotations": {labels.SANDBOX_NAME: "claim"}}, {}, "warm"),
        ("claim", {}, {labels.LAUNCH_TYPE: "warm"}, "warm"),
        ("pool-xyz", {}, {labels.LAUNCH_TYPE: "cold"}, "cold"),
    ],
)
def test_e48_launch_type_is_read_from_the_label_or_follows_from_the_name(
    name: str, metadata: Object, written: dict[str, str], launch: str
) -> None:
    box = own(name, metadata={"labels": written, "annotations": {labels.POD_NAME: name}})
    assert launch_type(view(metadata=metadata), box) == launch
