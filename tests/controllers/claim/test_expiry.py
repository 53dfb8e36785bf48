"""When a claim expires, and which sandboxes are deleted with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.errors import ClaimError, Retry, Status
from sandpool.controllers.claim.expiry import Phase, deadline, phase, sandboxes_to_delete
from tests.support.claim_objects import claim
from tests.support.sandbox_objects import sandbox

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
EPSILON = timedelta(microseconds=1)
FINISHED = {"type": "Finished", "status": "True", "lastTransitionTime": "2026-11-01T12:00:00Z"}
MARKED = {"type": "Ready", "status": "False", "reason": "ClaimExpired"}


def view(*conditions: Object, **lifecycle: Any) -> ClaimView:
    spec = {"lifecycle": lifecycle} if lifecycle else {}
    return ClaimView.from_object(claim(spec=spec, status={"conditions": list(conditions)}))


def test_claim_without_lifecycle_does_not_expire() -> None:
    assert deadline(None, [FINISHED]) is None
    assert phase(view(FINISHED), NOON) is Phase.ACTIVE


@pytest.mark.parametrize(
    ("at", "expected"), [(NOON - EPSILON, Phase.ACTIVE), (NOON, Phase.MARK), (NOON + EPSILON, Phase.MARK)]
)
def test_r48_claim_expires_at_the_shutdown_time_itself(at: datetime, expected: Phase) -> None:
    assert phase(view(shutdownTime="2026-11-01T12:00:00Z"), at) is expected


@pytest.mark.parametrize(("seconds", "expected"), [(29.999, Phase.ACTIVE), (30, Phase.MARK)])
def test_ttl_counts_from_the_end_of_the_pod(seconds: float, expected: Phase) -> None:
    assert phase(view(FINISHED, ttlSecondsAfterFinished=30), NOON + timedelta(seconds=seconds)) is expected


def test_ttl_is_ignored_until_the_pod_has_finished() -> None:
    running = {**FINISHED, "status": "False"}
    assert deadline(view(ttlSecondsAfterFinished=0).lifecycle, []) is None
    assert deadline(view(ttlSecondsAfterFinished=0).lifecycle, [running]) is None


@pytest.mark.parametrize(("shutdown", "seconds"), [("2026-11-01T12:00:10Z", 10), ("2026-11-01T12:01:00Z", 30)])
def test_e43_earlier_of_shutdown_time_and_ttl_wins(shutdown: str, seconds: int) -> None:
    claimed = view(FINISHED, shutdownTime=shutdown, ttlSecondsAfterFinished=30)
    assert deadline(claimed.lifecycle, claimed.conditions) == NOON + timedelta(seconds=seconds)


def test_e43_expiry_is_marked_before_any_deletion_even_with_ttl_zero() -> None:
    for policy in ("Delete", "DeleteForeground", "Retain"):
        assert phase(view(FINISHED, ttlSecondsAfterFinished=0, shutdownPolicy=policy), NOON) is Phase.MARK


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Delete", Phase.DELETE),
        ("DeleteForeground", Phase.DELETE_FOREGROUND),
        ("Retain", Phase.RETAIN),
        ("", Phase.RETAIN),
    ],
)
def test_marked_claim_is_handled_by_its_policy(policy: str, expected: Phase) -> None:
    assert phase(view(MARKED, shutdownTime="2026-11-01T12:00:00Z", shutdownPolicy=policy), NOON) is expected


def test_claim_with_an_extended_shutdown_time_is_active() -> None:
    assert phase(view(MARKED, shutdownTime="2026-11-01T13:00:00Z"), NOON) is Phase.ACTIVE


# --- what goes -------------------------------------------------------------------------------------------------------


def box(name: str, owner: Object) -> SandboxView:
    return SandboxView.from_object(sandbox(name, owner=owner))


def test_every_owned_sandbox_is_deleted_even_if_unknown_to_the_status() -> None:
    owned = [box("a", claim()), box("b", claim())]
    assert sandboxes_to_delete(view(), owned, {}) == tuple(owned)


def test_claim_without_sandbox_deletes_nothing() -> None:
    assert sandboxes_to_delete(view(), [], {}) == ()


def test_e43_sandbox_of_another_owner_is_not_deleted() -> None:
    with pytest.raises(ClaimError) as caught:
        sandboxes_to_delete(view(), [], {"claim": box("claim", claim("another"))})
    error = caught.value
    assert (error.reason, error.retry, error.status) == ("ClaimExpired", Retry.NEVER, Status.CLEAR)
    assert error.message == (
        'Claim expired. sandbox not owned by this claim: sandbox "claim" is not owned by claim "claim"; deletion '
        "skipped."
    )
