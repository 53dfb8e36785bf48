from __future__ import annotations

from typing import Any

from sandpool.api import labels
from sandpool.api.views import ClaimView
from sandpool.controllers.claim.ownership import assigned_name, referenced_names
from tests.support.claim_objects import claim

ASSIGNED = {"annotations": {labels.SANDBOX_NAME: "pool-abcde"}}
LEGACY = {"labels": {labels.SANDBOX_NAME: "pool-abcde"}}


def view(**fields: Any) -> ClaimView:
    return ClaimView.from_object(claim(**fields))


def test_candidate_names_come_from_status_annotation_and_claim_name() -> None:
    bound = view(metadata=ASSIGNED, status={"sandbox": {"name": "bound"}})
    assert referenced_names(bound) == ("bound", "pool-abcde", "claim")
    assert referenced_names(view(status={"sandbox": {"name": "claim"}})) == ("claim",)


def test_annotation_goes_before_the_legacy_label() -> None:
    both = {"labels": {labels.SANDBOX_NAME: "old"}, "annotations": {labels.SANDBOX_NAME: "new"}}
    assert assigned_name(view(metadata=both)) == "new"
    assert assigned_name(view(metadata=LEGACY)) == "pool-abcde"
    assert assigned_name(view()) == ""
