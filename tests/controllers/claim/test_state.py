"""The state of a claim belongs to one UID."""

from __future__ import annotations

from random import Random

from sandpool.api.resource import Key
from sandpool.api.views import ClaimView
from sandpool.controllers.claim.state import ClaimStates
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
