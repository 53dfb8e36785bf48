from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandpool.api import conditions
from sandpool.api.conditions import Condition, observe_generation, remove_condition, set_condition

EARLIER = "2026-01-01T00:00:00Z"
NOW = "2026-01-02T00:00:00Z"
READY: Condition = {
    "type": "Ready",
    "status": "False",
    "observedGeneration": 1,
    "lastTransitionTime": EARLIER,
    "reason": "R",
    "message": "m",
}
OTHER: Condition = {**READY, "type": "Suspended"}


def with_ready(given: list[Condition], **changes: Any) -> Sequence[Condition]:
    values = {"status": "False", "reason": "R", "message": "m", "observed_generation": 1, "now": NOW, **changes}
    return set_condition(given, "Ready", **values)


def test_new_condition_is_appended_with_the_current_time() -> None:
    assert with_ready([OTHER]) == [OTHER, {**READY, "lastTransitionTime": NOW}]


def test_unchanged_conditions_are_the_same_list() -> None:
    given = [READY, OTHER]
    assert with_ready(given) is given


def test_transition_time_changes_only_with_the_status() -> None:
    given = [READY, OTHER]
    changed = with_ready(given, reason="S", message="n", observed_generation=2)
    assert changed == [{**READY, "reason": "S", "message": "n", "observedGeneration": 2}, OTHER]
    assert with_ready(given, status="True") == [{**READY, "status": "True", "lastTransitionTime": NOW}, OTHER]
    assert given == [READY, OTHER]


def test_copied_condition_keeps_its_transition_time() -> None:
    later = "2026-01-03T00:00:00Z"
    assert with_ready([READY], status="True", last_transition_time=later)[0]["lastTransitionTime"] == later
    assert with_ready([READY], last_transition_time=later)[0]["lastTransitionTime"] == EARLIER


def test_observed_generation_is_left_out_if_not_given() -> None:
    assert "observedGeneration" not in with_ready([], observed_generation=0)[0]


def test_condition_is_removed_by_type() -> None:
    given = [READY, OTHER]
    assert remove_condition(given, "Ready") == [OTHER]
    assert remove_condition(given, "Finished") is given


def test_condition_is_found_by_type() -> None:
    assert conditions.condition_of({"status": {"conditions": [OTHER, READY]}}, "Ready") is READY
    assert conditions.condition_of({"status": {}}, "Ready") is None
    assert conditions.condition_of({}, "Ready") is None


def test_condition_texts_are_those_of_the_go_implementation() -> None:
    assert conditions.NOT_SUSPENDED == ("NotSuspended", "Sandbox is not suspended")
    assert conditions.POD_STATE_UNKNOWN == (
        "PodStateUnknown",
        "Pod state is unknown. Sandbox suspension cannot be confirmed",
    )
    assert conditions.POD_TERMINATED == ("PodTerminated", "Pod has been terminated. Sandbox is suspended")
    assert conditions.POD_NOT_OWNED == (
        "PodNotOwned",
        "Refused to delete pod because it is not owned by this sandbox",
    )
    assert conditions.POD_TERMINATING == ("PodTerminating", "Pod is terminating. Sandbox is suspending")
    assert conditions.POD_SUCCEEDED == ("PodSucceeded", "Pod completed successfully")
    assert conditions.POD_FAILED == ("PodFailed", "Pod failed")
    assert conditions.NOT_REPORTED == (
        "PodSchedulingUnknown",
        "Pod has not reported a PodScheduled condition yet",
    )
    assert conditions.SCHEDULING_UNDETERMINED == (
        "PodSchedulingUnknown",
        "Pod state is unknown. Pod scheduling cannot be determined",
    )
    assert (
        conditions.multiple_pods_message(2)
        == "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod"
    )
    assert conditions.error_message("x") == "Error seen: x"
    assert conditions.pod_phase_message("") == "Pod exists with phase: "
    assert conditions.SANDBOX_EXPIRED == ("SandboxExpired", "Sandbox has expired")
    assert conditions.POD_READY + conditions.SERVICE_EXISTS == "Pod is Ready; Service Exists"
    assert conditions.POD_MISSING + conditions.SERVICE_MISSING == "Pod does not exist; Service does not exist"
    assert conditions.POD_NOT_READY == "Pod is Running but not Ready"
    assert conditions.POD_WITHOUT_ADDRESS == "Pod is Ready but has no podIPs yet"
    assert conditions.template_not_found_message("t") == 'SandboxTemplate "t" not found'
    assert conditions.warm_pool_not_found_message("p") == 'SandboxWarmPool "p" not found'
    assert conditions.adoption_conflict_message("d") == "d; the next pass retries from a converged view"
    assert conditions.SANDBOX_CREATE_PENDING == (
        "SandboxCreatePending",
        "Sandbox already created; waiting for cache to converge",
    )
    assert conditions.invalid_metadata_message("d") == "invalid additionalPodMetadata: d"
    assert conditions.env_vars_rejected_message("d") == "environment variable injection rejected: d"
    assert conditions.expired_but_not_owned_message("d") == "Claim expired. d; deletion skipped."
    assert conditions.CLAIM_EXPIRED == ("ClaimExpired", "Claim expired. Sandbox cleanup initiated.")
    assert conditions.SANDBOX_MISSING == ("SandboxMissing", "Sandbox does not exist")
    assert conditions.CLAIMED_SANDBOX_EXPIRED == (
        "SandboxExpired",
        "Underlying Sandbox resource has expired independently of the Claim.",
    )
    assert conditions.SANDBOX_NOT_READY == ("SandboxNotReady", "Sandbox is not ready")


def test_kept_conditions_get_the_new_generation() -> None:
    given = [READY, OTHER]
    assert observe_generation(given, [READY["type"]], 1) is given
    assert observe_generation(given, [READY["type"]], 2) == [{**READY, "observedGeneration": 2}, OTHER]
    assert observe_generation(given, [READY["type"]], 0) is given, "an object without a generation"
