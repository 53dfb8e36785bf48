from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.views import Owner, SandboxView, VolumeClaimView, adopted_by, controller_reference


def claim(name: str = "data", **metadata: object) -> VolumeClaimView:
    return VolumeClaimView.from_object(
        {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata}}
    )


def reference(uid: str, *, api_version: str = "agents.x-k8s.io/v1beta1", controller: bool | None = None) -> Object:
    found: Object = {"apiVersion": api_version, "kind": "Sandbox", "name": "box", "uid": uid}
    return found if controller is None else {**found, "controller": controller}


def test_metadata_view_has_all_fields() -> None:
    view = claim(
        resourceVersion="7",
        generation=3,
        labels={"a": "1"},
        annotations={"b": "2"},
        creationTimestamp="2026-01-02T03:04:05Z",
        deletionTimestamp="2026-01-02T03:04:06Z",
    )
    assert (view.namespace, view.name, view.uid) == ("ns", "data", "uid-data")
    assert (view.resource_version, view.generation) == ("7", 3)
    assert (view.labels, view.annotations) == ({"a": "1"}, {"b": "2"})
    assert view.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert view.deletion_timestamp == datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
    assert view.deleting


def test_empty_metadata_view_has_defaults() -> None:
    view = VolumeClaimView.from_object({"metadata": {"name": "data"}})
    assert (view.namespace, view.uid, view.resource_version, view.generation) == ("", "", "", 0)
    assert (view.labels, view.annotations, view.owner, view.other_owners) == ({}, {}, None, ())
    assert (view.creation_timestamp, view.deleting) == (None, False)


def test_owner_is_the_controller_reference() -> None:
    bystander = reference("other", controller=False)
    view = claim(ownerReferences=[bystander, reference("mine", controller=True)])
    assert view.owner == Owner("agents.x-k8s.io", "Sandbox", "box", "mine")
    assert view.other_owners == (bystander,)


def test_core_owner_has_an_empty_group() -> None:
    view = claim(ownerReferences=[reference("mine", api_version="v1", controller=True)])
    assert view.owner is not None
    assert view.owner.group == ""


def test_owner_kind_is_recognised_in_any_version() -> None:
    owner = Owner(SANDBOX_WARM_POOL.group, "SandboxWarmPool", "pool", "u")
    assert owner.type is SANDBOX_WARM_POOL
    assert owner.type is not SANDBOX_CLAIM
    assert Owner("example.com", "SandboxWarmPool", "pool", "u").type is None


def test_ownership_is_decided_by_uid() -> None:
    box = SandboxView.from_object({"metadata": {"name": "box", "uid": "new"}})
    assert claim(ownerReferences=[reference("new", controller=True)]).controlled_by(box)
    assert not claim(ownerReferences=[reference("old", controller=True)]).controlled_by(box)
    assert not claim(ownerReferences=[reference("new")]).controlled_by(box)
    assert not claim().controlled_by(box)


def test_controller_reference_blocks_owner_deletion() -> None:
    assert controller_reference(SANDBOX, claim("box")) == {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "name": "box",
        "uid": "uid-box",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_adoption_keeps_other_owners_and_replaces_an_own_reference() -> None:
    bystander = reference("other")
    owner = claim("box")
    child = claim(ownerReferences=[bystander, reference("uid-box")])
    assert adopted_by(child, SANDBOX, owner) == [bystander, controller_reference(SANDBOX, owner)]


def test_views_are_equal_by_value_and_immutable() -> None:
    assert claim() == claim()
    assert claim(resourceVersion="1") != claim(resourceVersion="2")
    with pytest.raises(FrozenInstanceError):
        claim().name = "other"  # type: ignore[misc]
