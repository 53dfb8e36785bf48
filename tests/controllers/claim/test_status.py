"""The status of a claim: every reason of Ready with its message, copied fields, and fields kept on errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.api.conditions import Condition
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import errors
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.status import ClaimStatus, marked_expired, next_status, status_patch
from sandpool.kube.patches import merge_patch
from tests.support.claim_objects import claim, ready_status
from tests.support.sandbox_objects import sandbox

NOW = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
STAMP = "2026-11-01T12:30:00Z"
EARLIER = "2026-11-01T11:00:00Z"
NAMED = {"name": "pool-abcde", "podIPs": ["10.0.0.1"]}
FINISHED: Condition = {
    "type": "Finished",
    "status": "True",
    "reason": "PodSucceeded",
    "message": "Pod completed successfully",
    "lastTransitionTime": EARLIER,
    "observedGeneration": 9,
}
#: As a claim of generation 3 shows it.
CLAIM_FINISHED: Condition = {**FINISHED, "observedGeneration": 3}


def view(conditions: Sequence[Condition] | None = None, named: Object | None = None, **fields: Any) -> ClaimView:
    status: Object = {"conditions": conditions or []}
    if named:
        status["sandbox"] = named
    return ClaimView.from_object(claim(metadata={"generation": 3}, status=status, **fields))


def box(status: Object | None = None) -> SandboxView:
    return SandboxView.from_object(sandbox("pool-abcde", owner=claim(), status=status or {}))


def ready(status: str = "False", reason: str = "Reason", message: str = "", since: str = EARLIER) -> Condition:
    return {
        "type": "Ready",
        "status": status,
        "observedGeneration": 3,
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }


def condition(status: ClaimStatus, type: str = "Ready") -> Condition | None:
    return next((each for each in status.conditions if each["type"] == type), None)


# --- Ready -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (errors.template_not_found("t"), "TemplateNotFound", 'SandboxTemplate "t" not found'),
        (errors.pool_not_found("p"), "WarmPoolNotFound", 'SandboxWarmPool "p" not found'),
        (
            errors.adoption_conflict("x"),
            "AdoptionConflict",
            "adoption write conflict: x; the next pass retries from a converged view",
        ),
        (
            errors.create_pending(),
            "SandboxCreatePending",
            "Sandbox already created; waiting for cache to converge",
        ),
        (errors.invalid_metadata("x"), "InvalidMetadata", "invalid additionalPodMetadata: x"),
        (
            errors.environment_rejected("x"),
            "EnvVarsInjectionRejected",
            "environment variable injection rejected: x",
        ),
        (errors.volume_claim_templates_rejected("x"), "VolumeClaimTemplatesError", "x"),
        (
            errors.expired_but_not_owned("s", "c"),
            "ClaimExpired",
            'Claim expired. sandbox not owned by this claim: sandbox "s" is not owned by claim "c"; deletion skipped.',
        ),
        (errors.failure("boom"), "ReconcilerError", "Error seen: boom"),
    ],
    ids=lambda value: value.reason if isinstance(value, ClaimError) else "",
)
def test_error_becomes_the_ready_condition(error: ClaimError, reason: str, message: str) -> None:
    status = next_status(view(), None, error, NOW)
    assert condition(status) == ready("False", reason, message, STAMP)


def test_missing_sandbox_is_sandbox_missing() -> None:
    status = next_status(view(), None, None, NOW)
    assert condition(status) == ready("False", "SandboxMissing", "Sandbox does not exist", STAMP)


def test_sandbox_without_conditions_is_not_ready() -> None:
    status = next_status(view(), box(), None, NOW)
    assert condition(status) == ready("False", "SandboxNotReady", "Sandbox is not ready", STAMP)


def test_expired_sandbox_is_reported() -> None:
    expired = ready_status(status="False", reason="SandboxExpired", message="Sandbox has expired")
    status = next_status(view(), box(expired), None, NOW)
    assert condition(status) == ready(
        "False", "SandboxExpired", "Underlying Sandbox resource has expired independently of the Claim.", STAMP
    )


def test_expired_claim_is_reported() -> None:
    status = next_status(view(), box(ready_status()), None, NOW, expired=True)
    assert condition(status) == ready("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.", STAMP)


def test_e32_ready_is_copied_with_its_transition_time_and_the_generation_of_the_claim() -> None:
    status = next_status(view(), box(ready_status(since=EARLIER)), None, NOW)
    assert condition(status) == ready("True", "DependenciesReady", "Pod is Ready", EARLIER)
    assert status.ready


def test_transition_time_changes_only_with_the_status() -> None:
    before = view([ready("False", "SandboxNotReady", "Sandbox is not ready", EARLIER)])
    waiting = ready_status(status="False", reason="DependenciesNotReady", message="Pod does not exist", since=STAMP)
    assert condition(next_status(before, box(waiting), None, NOW)) == ready(
        "False", "DependenciesNotReady", "Pod does not exist", EARLIER
    )
    assert condition(next_status(before, None, errors.failure("x"), NOW)) == ready(
        "False", "ReconcilerError", "Error seen: x", EARLIER
    )


# --- Finished --------------------------------------------------------------------------------------------------------


def test_finished_is_copied_with_the_generation_of_the_claim() -> None:
    status = next_status(view(), box({"conditions": [FINISHED]}), None, NOW)
    assert condition(status, "Finished") == CLAIM_FINISHED


def test_finished_is_removed_when_the_sandbox_is_not_finished() -> None:
    assert condition(next_status(view([FINISHED]), box(), None, NOW), "Finished") is None


@pytest.mark.parametrize(("expired", "kept"), [(False, None), (True, CLAIM_FINISHED)])
def test_finished_outlives_the_sandbox_only_if_the_claim_has_expired(expired: bool, kept: Condition | None) -> None:
    assert condition(next_status(view([FINISHED]), None, None, NOW, expired=expired), "Finished") == kept


LOST: Condition = {
    "type": "StateLost",
    "status": "True",
    "reason": "OOMKilled",
    "message": "gone",
    "lastTransitionTime": EARLIER,
    "observedGeneration": 9,
}


def test_state_loss_is_copied_with_its_time_and_outlives_the_sandbox() -> None:
    told = next_status(view(), box({"conditions": [LOST]}), None, NOW)
    assert condition(told, "StateLost") == {**LOST, "observedGeneration": 3}
    again = {**LOST, "message": "gone again", "lastTransitionTime": STAMP}
    assert condition(next_status(view(told.conditions), box({"conditions": [again]}), None, NOW), "StateLost") == {
        **again,
        "observedGeneration": 3,
    }
    assert condition(next_status(view(told.conditions), None, None, NOW), "StateLost") is not None
    assert condition(next_status(view(told.conditions), box(), None, NOW), "StateLost") is None, "another sandbox"


def test_conditions_are_sorted_by_type() -> None:
    status = next_status(view([ready()]), box({"conditions": [ready("True"), FINISHED]}), None, NOW)
    assert [each["type"] for each in status.conditions] == ["Finished", "Ready"]


# --- the sandbox -----------------------------------------------------------------------------------------------------


def test_name_and_addresses_are_copied_from_the_sandbox() -> None:
    status = next_status(view(), box(ready_status(ips=("10.0.0.9", "fd00::9"))), None, NOW)
    assert (status.sandbox_name, status.pod_ips) == ("pool-abcde", ("10.0.0.9", "fd00::9"))


def test_name_and_addresses_are_cleared_without_sandbox() -> None:
    status = next_status(view(named=NAMED), None, None, NOW)
    assert (status.sandbox_name, status.pod_ips) == ("", ())


def test_e42_name_and_addresses_are_kept_on_error() -> None:
    for sandbox_there in (None, box(ready_status())):
        status = next_status(view(named=NAMED), sandbox_there, errors.failure("x"), NOW)
        assert (status.sandbox_name, status.pod_ips) == ("pool-abcde", ("10.0.0.1",))


def test_e43_name_of_a_foreign_sandbox_is_cleared() -> None:
    status = next_status(view(named=NAMED), None, errors.expired_but_not_owned("s", "c"), NOW, expired=True)
    assert status.sandbox_name == ""


def test_pending_creation_keeps_the_status() -> None:
    before = view([ready("True")], NAMED)
    assert next_status(before, None, errors.create_pending(), NOW) == ClaimStatus.of(before)


# --- the write -------------------------------------------------------------------------------------------------------


def test_first_patch_has_all_fields_and_the_resource_version() -> None:
    before = view()
    body = status_patch(before, next_status(before, box(ready_status(since=EARLIER)), None, NOW))
    assert body == {
        "metadata": {"resourceVersion": "1"},
        "status": {
            "conditions": [ready("True", "DependenciesReady", "Pod is Ready", EARLIER)],
            "sandbox": {"name": "pool-abcde", "podIPs": ["10.0.0.1"]},
        },
    }


def test_unchanged_status_is_not_written() -> None:
    before = view([ready("True", "DependenciesReady", "Pod is Ready"), CLAIM_FINISHED], NAMED)
    now = ready_status(since=EARLIER)
    now["conditions"].append(FINISHED)
    assert status_patch(before, next_status(before, box(now), None, NOW)) is None


def test_only_changed_fields_are_written() -> None:
    before = view([ready("True", "DependenciesReady", "Pod is Ready")], NAMED)
    body = status_patch(before, next_status(before, box(ready_status(ips=("10.0.0.2",), since=EARLIER)), None, NOW))
    assert body == {"metadata": {"resourceVersion": "1"}, "status": {"sandbox": {"podIPs": ["10.0.0.2"]}}}


def test_cleared_fields_are_removed_from_the_object() -> None:
    before = view([ready()], NAMED)
    body = status_patch(before, next_status(before, None, None, NOW))
    assert body is not None
    after = merge_patch({"status": {"conditions": [ready()], "sandbox": NAMED}}, body)
    assert "sandbox" not in after["status"]


def test_expiry_mark_changes_ready_and_the_generation_of_finished() -> None:
    before = view([ready("True"), FINISHED], NAMED)
    status = marked_expired(before, ClaimStatus.of(before), NOW)
    assert condition(status) == ready("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.", STAMP)
    assert condition(status, "Finished") == CLAIM_FINISHED
    assert (status.sandbox_name, status.pod_ips) == ("pool-abcde", ("10.0.0.1",))
