from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.conditions import find_condition
from sandpool.api.views import WarmPoolStatus
from sandpool.controllers.warmpool.scaling import CreationBreaker
from sandpool.controllers.warmpool.status import MemberCounts, StatusInputs, next_status, status_patch

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

FULL = MemberCounts(members=3, ready=3, current=3, current_ready=3)
EASY = StatusInputs(
    replaces=False, has_template=True, breaker=CreationBreaker(), has_stalled=False, grace=300.0, needed=3
)
OPEN = CreationBreaker(3, None, "exceeded quota: sandboxes")


def test_status_has_all_fields(scene: Scene) -> None:
    counts = MemberCounts(members=3, ready=2, current=2, current_ready=1)
    assert next_status(scene.pool(), counts, EASY, scene.now) == WarmPoolStatus(
        replicas=3,
        ready_replicas=2,
        updated_replicas=2,
        updated_ready_replicas=1,
        selector="agents.x-k8s.io/warm-pool-sandbox=59733166",
        observed_generation=4,
        conditions=[
            {
                "type": "Progressing",
                "status": "True",
                "observedGeneration": 4,
                "lastTransitionTime": "2026-11-01T12:00:00Z",
                "reason": "Replenishing",
                "message": "2 of 3 sandboxes are ready",
            },
            {
                "type": "Available",
                "status": "False",
                "observedGeneration": 4,
                "lastTransitionTime": "2026-11-01T12:00:00Z",
                "reason": "MinimumReplicasUnavailable",
                "message": "fewer than 3 of 3 sandboxes are ready",
            },
        ],
    )


def test_cause_of_a_member_that_does_not_start_is_a_condition_of_its_own(scene: Scene) -> None:
    short = replace(FULL, ready=2)
    failing = next_status(scene.pool(), short, replace(EASY, problem="no such image"), scene.now)
    condition = find_condition(failing.conditions, "ReplicaFailure")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "MemberNotStarting")
    assert condition["message"] == "no such image"
    again = next_status(replace(scene.pool(), status=failing), short, EASY, scene.now)
    assert find_condition(again.conditions, "ReplicaFailure") is None


@pytest.mark.parametrize(
    ("counts", "inputs", "status", "reason", "message"),
    [
        (FULL, {}, "True", "Complete", "all sandboxes are ready and of the current template"),
        (
            replace(FULL, current=1),
            {},
            "True",
            "OutdatedInUse",
            "2 sandboxes of the former template will be handed out before being replaced",
        ),
        (replace(FULL, ready=2), {}, "True", "Replenishing", "2 of 3 sandboxes are ready"),
        (
            replace(FULL, current=2, current_ready=1),
            {"replaces": True},
            "True",
            "RollingOut",
            "1 of 3 sandboxes are ready and of the current template",
        ),
        (
            replace(FULL, ready=0),
            {"has_stalled": True},
            "False",
            "ProgressDeadlineExceeded",
            'sandboxes of template "test-template" do not become ready within 5m0s',
        ),
        (
            replace(FULL, current=2, current_ready=0),
            {"has_stalled": True, "replaces": True},
            "False",
            "ProgressDeadlineExceeded",
            'sandboxes of template "test-template" do not become ready within 5m0s; '
            "the rollout is stopped and 1 sandbox of the former template kept",
        ),
        (
            replace(FULL, ready=1, unschedulable=2),
            {"has_stalled": True},
            "False",
            "Unschedulable",
            "2/3 sandboxes are unschedulable past the 5m0s readiness grace period",
        ),
        (
            MemberCounts(members=2, unschedulable=2),
            {"breaker": OPEN},
            "False",
            "CreationFailing",
            "creating sandboxes failed 3 times in a row, pausing for 4s: exceeded quota: sandboxes",
        ),
        (FULL, {"breaker": OPEN}, "True", "Complete", "all sandboxes are ready and of the current template"),
        (
            FULL,
            {"breaker": OPEN, "has_template": False},
            "False",
            "TemplateNotFound",
            'SandboxTemplate "test-template" not found',
        ),
    ],
)
def test_progressing_condition_has_a_reason(
    scene: Scene, counts: MemberCounts, inputs: dict[str, Any], status: str, reason: str, message: str
) -> None:
    conditions = next_status(scene.pool(), counts, replace(EASY, **inputs), scene.now).conditions
    condition = find_condition(conditions, "Progressing")
    assert condition is not None
    assert (condition["status"], condition["reason"], condition["message"]) == (status, reason, message)


@pytest.mark.parametrize(
    ("ready", "needed", "status", "reason", "message"),
    [
        (3, 3, "True", "MinimumReplicasAvailable", "at least 3 of 3 sandboxes are ready"),
        (0, 0, "True", "MinimumReplicasAvailable", "at least 0 of 3 sandboxes are ready"),
        (0, 1, "False", "MinimumReplicasUnavailable", "fewer than 1 of 3 sandboxes are ready"),
    ],
)
def test_available_condition_follows_ready_members(
    scene: Scene, ready: int, needed: int, status: str, reason: str, message: str
) -> None:
    counts = MemberCounts(members=3, ready=ready)
    condition = find_condition(
        next_status(scene.pool(), counts, replace(EASY, needed=needed), scene.now).conditions, "Available"
    )
    assert condition is not None
    assert (condition["status"], condition["reason"], condition["message"]) == (status, reason, message)


def test_transition_time_changes_only_with_the_status(scene: Scene) -> None:
    pool = scene.pool()
    before = next_status(pool, FULL, EASY, scene.now)
    after = next_status(replace(pool, status=before), replace(FULL, ready=2), EASY, scene.at(60))
    assert [condition["lastTransitionTime"] for condition in after.conditions] == [
        "2026-11-01T12:00:00Z",  # still progressing
        "2026-11-01T12:01:00Z",
    ]


def test_only_changed_fields_are_written() -> None:
    old = WarmPoolStatus(replicas=3, ready_replicas=2, selector="s", observed_generation=1)
    assert status_patch(old, old) is None
    assert status_patch(old, replace(old, ready_replicas=3)) == {"status": {"readyReplicas": 3}}


def test_edge_27_zero_counts_are_removed_by_the_patch() -> None:
    old = WarmPoolStatus(replicas=3, ready_replicas=2, updated_replicas=3, updated_ready_replicas=2)
    assert status_patch(old, WarmPoolStatus()) == {
        "status": {"replicas": None, "readyReplicas": None, "updatedReplicas": None, "updatedReadyReplicas": None}
    }
