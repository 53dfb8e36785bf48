"""The annotation patch of a claim contains exactly the missing annotations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, parse_time
from sandpool.controllers.claim.reporter import annotation_patch, precise
from tests.support.claim_objects import claim

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def view(annotations: dict[str, str] | None = None, **own_labels: str) -> ClaimView:
    former = {labels.SANDBOX_NAME: own_labels["former"]} if own_labels else {}
    return ClaimView.from_object(claim(metadata={"annotations": annotations or {}, "labels": former}))


def test_patch_is_none_without_annotations() -> None:
    assert annotation_patch(view()) is None


def test_all_annotations_are_in_one_patch() -> None:
    body = annotation_patch(
        view(), first_observed=NOON, trace_context="{}", adopted="pool-abcde", first_ready="unknown"
    )
    assert body == {
        "metadata": {
            "uid": "sandboxclaim-claim",
            "annotations": {
                labels.CONTROLLER_FIRST_OBSERVED_AT: "2026-11-01T12:00:00Z",
                labels.TRACE_CONTEXT: "{}",
                labels.SANDBOX_NAME: "pool-abcde",
                labels.CLAIM_FIRST_READY_AT: "unknown",
            },
        }
    }


def test_existing_annotations_are_not_written_again() -> None:
    noted = {
        labels.CONTROLLER_FIRST_OBSERVED_AT: "2026-01-01T00:00:00Z",
        labels.TRACE_CONTEXT: "{}",
        labels.SANDBOX_NAME: "pool-abcde",
        labels.CLAIM_FIRST_READY_AT: "2026-01-01T00:00:01Z",
    }
    again = annotation_patch(
        view(noted), first_observed=NOON, trace_context="{1}", adopted="pool-abcde", first_ready="unknown"
    )
    assert again is None


def test_e38_stale_reference_is_removed() -> None:
    body = annotation_patch(view({labels.SANDBOX_NAME: "gone"}), is_reference_stale=True)
    assert body == {"metadata": {"uid": "sandboxclaim-claim", "annotations": {labels.SANDBOX_NAME: None}}}


def test_e38_stale_legacy_label_is_removed() -> None:
    body = annotation_patch(view(former="gone"), is_reference_stale=True)
    assert body == {"metadata": {"uid": "sandboxclaim-claim", "labels": {labels.SANDBOX_NAME: None}}}


def test_e39_reference_that_may_be_valid_is_kept() -> None:
    assert annotation_patch(view({labels.SANDBOX_NAME: "pool-abcde"}, former="pool-abcde")) is None


def test_legacy_label_becomes_an_annotation() -> None:
    body = annotation_patch(view(former="pool-abcde"), adopted="pool-abcde")
    assert body == {
        "metadata": {
            "uid": "sandboxclaim-claim",
            "annotations": {labels.SANDBOX_NAME: "pool-abcde"},
            "labels": {labels.SANDBOX_NAME: None},
        }
    }


def test_new_sandbox_replaces_a_stale_reference() -> None:
    body = annotation_patch(view({labels.SANDBOX_NAME: "gone"}), adopted="pool-abcde", is_reference_stale=True)
    assert body == {"metadata": {"uid": "sandboxclaim-claim", "annotations": {labels.SANDBOX_NAME: "pool-abcde"}}}


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (NOON, "2026-11-01T12:00:00Z"),
        (NOON + timedelta(microseconds=120), "2026-11-01T12:00:00.00012Z"),
        (NOON + timedelta(seconds=10), "2026-11-01T12:00:10Z"),
        (NOON.astimezone(timezone(timedelta(hours=2))), "2026-11-01T12:00:00Z"),
    ],
)
def test_times_are_formatted_as_go_does(moment: datetime, text: str) -> None:
    assert precise(moment) == text
    assert parse_time(text) == moment


def test_patch_does_not_change_the_object() -> None:
    whole: Object = claim(metadata={"labels": {labels.SANDBOX_NAME: "x"}})
    annotation_patch(ClaimView.from_object(whole), adopted="y")
    assert whole["metadata"]["labels"] == {labels.SANDBOX_NAME: "x"}
