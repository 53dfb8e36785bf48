from __future__ import annotations

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, VolumeClaimView
from sandpool.controllers.sandbox.ownership import refusal, tracking_labels
from tests.support import sandbox_objects

BOX = SandboxView.from_object(sandbox_objects.sandbox("my-sandbox"))
HASH = "agents.x-k8s.io/sandbox-name-hash"
ADOPTABLE = "agents.x-k8s.io/adoptable"


def child(labels: dict[str, str] | None = None, *, owner: Object | None = None) -> VolumeClaimView:
    found = sandbox_objects.sandbox_volume_claim(
        sandbox_objects.sandbox("my-sandbox"), "data", metadata={"labels": labels or {}}
    )
    found["metadata"]["ownerReferences"] = [] if owner is None else [owner]
    return VolumeClaimView.from_object(found)


def test_children_are_labelled_with_a_hash_of_the_name() -> None:
    assert tracking_labels(BOX) == {HASH: "374de8f5"}


def test_own_child_is_accepted_whatever_its_labels() -> None:
    owner = {"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "Sandbox", "name": "x", "uid": BOX.uid}
    assert refusal("PVC", child(owner={**owner, "controller": True}), BOX) == ""


@pytest.mark.parametrize("labels", [{ADOPTABLE: "true"}, {HASH: "374de8f5"}])
def test_unowned_child_is_accepted_if_it_is_adoptable_or_tracked(labels: dict[str, str]) -> None:
    assert refusal("PVC", child(labels), BOX) == ""


@pytest.mark.parametrize("labels", [{}, {ADOPTABLE: "false"}, {ADOPTABLE: "True"}, {HASH: "00000000"}])
def test_r10_unowned_child_without_the_labels_is_refused(labels: dict[str, str]) -> None:
    assert refusal("PVC", child(labels), BOX) == (
        'cannot adopt unowned PVC "data-my-sandbox" for sandbox "my-sandbox": '
        'it has no label agents.x-k8s.io/adoptable="true"'
    )


def test_r10_foreign_child_is_refused_whatever_its_labels() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-1", "controller": True}
    assert refusal("PVC", child({ADOPTABLE: "true", HASH: "374de8f5"}, owner=owner), BOX) == (
        'PVC "data-my-sandbox" is owned by StatefulSet/db (UID: u-1), not by sandbox "my-sandbox"'
    )


def test_child_of_an_earlier_sandbox_of_the_name_is_refused() -> None:
    owner = {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "name": "my-sandbox",
        "uid": "before",
        "controller": True,
    }
    assert refusal("PVC", child(owner=owner), BOX) == (
        'PVC "data-my-sandbox" is owned by Sandbox/my-sandbox (UID: before), not by sandbox "my-sandbox"'
    )
