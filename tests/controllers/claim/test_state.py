"""The state of a claim belongs to one UID."""

from __future__ import annotations

from random import Random

import pytest

from sandpool.api import labels
from sandpool.api.resource import Key, Object
from sandpool.api.views import ClaimView
from sandpool.controllers.claim.state import ClaimStates, PendingAnnotations
from tests.support.claim_objects import claim

KEY = Key("default", "claim")


def view(uid: str) -> ClaimView:
    return ClaimView.from_object(claim(metadata={"uid": uid}))


def test_state_is_kept_per_uid() -> None:
    states = ClaimStates(Random(0))
    state = states.of(view("1"))
    assert states.of(view("1")) is state is states.get(KEY)


def test_e50_recreated_claim_gets_a_new_state() -> None:
    states = ClaimStates(Random(0))
    old = states.of(view("1"))
    old.had_sandbox, old.abandoned = True, "box"
    new = states.of(view("2"))
    assert new is not old
    assert (new.uid, new.had_sandbox, new.abandoned) == ("2", False, "")


def test_an_unconfirmed_write_passes_to_the_claim_of_the_same_name() -> None:
    """The predecessor's lease is still with that name, so the successor would get the same sandbox."""
    states = ClaimStates(Random(0))
    states.of(view("1")).unconfirmed = "box"
    assert states.of(view("2")).unconfirmed == "box"


def test_forget_removes_state_and_retries() -> None:
    states = ClaimStates(Random(0))
    states.of(view("1"))
    states.retries.next_delay(KEY)
    states.forget(KEY)
    states.forget(KEY)
    assert (len(states), len(states.retries), states.get(KEY)) == (0, 0, None)


TIME = {labels.CLAIM_FIRST_READY_AT: "2026-01-01T00:00:00Z"}
NAME = {labels.SANDBOX_NAME: "box"}


@pytest.mark.parametrize(
    ("metadata", "is_only"),
    [
        ({"uid": "1", "annotations": TIME}, True),
        ({"uid": "1", "annotations": {**TIME, **NAME}}, False),
        ({"uid": "1", "annotations": {labels.CLAIM_FIRST_READY_AT: "unknown"}}, False),
        ({"uid": "1", "annotations": TIME, "labels": {labels.SANDBOX_NAME: None}}, False),
        ({"uid": "1", "labels": {labels.SANDBOX_NAME: None}}, False),
    ],
)
def test_only_the_time_of_the_first_ready_can_wait(metadata: Object, is_only: bool) -> None:
    assert PendingAnnotations("box", metadata).is_first_ready_only is is_only


def test_pending_annotations_cover_those_that_add_nothing() -> None:
    everything = PendingAnnotations("box", {"uid": "1", "annotations": {**TIME, **NAME}})
    time = PendingAnnotations("box", {"uid": "1", "annotations": TIME})
    label = PendingAnnotations("box", {"uid": "1", "annotations": TIME, "labels": {labels.SANDBOX_NAME: None}})
    elsewhere = PendingAnnotations("other", {"uid": "1", "annotations": TIME})
    assert everything.covers(everything)
    assert everything.covers(time)
    assert not time.covers(everything)
    assert not everything.covers(label)
    assert not everything.covers(elsewhere)


def test_claims_with_pending_annotations_are_found() -> None:
    states = ClaimStates(Random(0))
    states.of(view("1"))
    assert states.with_pending_annotations() == []
    states.of(view("1")).pending_annotations = PendingAnnotations("box", {"uid": "1", "annotations": TIME})
    assert states.with_pending_annotations() == [KEY]
