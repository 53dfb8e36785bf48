"""When a sandbox says that it has lost its state, and what it says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, PodView, SandboxView
from sandpool.controllers.sandbox.state_loss import detect, in_use_since, newly_lost, with_state_loss
from tests.support.sandbox_objects import pod_status, sandbox, sandbox_pod, stored

NOW = "2026-01-02T03:04:05Z"
SINCE = datetime(2026, 1, 2, 3, 0, 0, tzinfo=UTC)
BEFORE, AFTER = "2026-01-02T02:59:59Z", "2026-01-02T03:01:00Z"
CLAIM = stored(SANDBOX_CLAIM, "mine", metadata={"creationTimestamp": "2026-01-02T03:00:00Z"})
BOX = sandbox("box", owner=CLAIM)


def box(*, status: Object | None = None, **spec: Any) -> SandboxView:
    return SandboxView.from_object(sandbox("box", owner=CLAIM, spec=spec, status=status or {}))


def pod(
    phase: str = "Running", *, restarted: Object | None = None, ended: Object | None = None, **status: Any
) -> PodView:
    container: Object = {"name": "main", "state": {"terminated": ended} if ended else {"running": {}}}
    if restarted is not None:
        container["lastState"] = {"terminated": restarted}
    reported = {**pod_status(phase, ready=phase == "Running", ips=["10.0.0.1"]), "containerStatuses": [container]}
    return PodView.from_object(sandbox_pod(BOX, status={**reported, **status}))


def end(reason: str = "Error", code: int = 1, finished: str = AFTER, message: str = "") -> Object:
    return {"reason": reason, "exitCode": code, "finishedAt": finished, "message": message}


def loss(pod: PodView | None, view: SandboxView | None = None, *, is_created: bool = False) -> tuple[str, str] | None:
    found = detect(view or box(), pod, SINCE, is_created=is_created, now=NOW)
    return None if found is None else (found.reason, found.time)


def test_running_pod_has_lost_nothing() -> None:
    assert loss(pod()) is None
    assert loss(None) is None


def test_oom_kill_is_named() -> None:
    found = detect(box(), pod(restarted=end("OOMKilled", 137)), SINCE, is_created=False, now=NOW)
    assert found is not None
    assert (found.reason, found.time) == ("OOMKilled", AFTER)
    assert found.message == (
        'Container "main" ran out of memory and was killed with exit code 137. It was restarted. '
        "Processes and files outside volumes are gone."
    )


def test_restart_is_named_with_exit_code_and_last_output() -> None:
    found = detect(box(), pod(restarted=end(message="a\nFatal: b\n")), SINCE, is_created=False, now=NOW)
    assert found is not None
    assert found.reason == "ContainerRestarted"
    assert found.message.startswith('Container "main" ended with exit code 1 (Error): "Fatal: b". It was restarted.')


def test_restart_before_the_sandbox_was_handed_out_is_no_loss() -> None:
    assert loss(pod(restarted=end(finished=BEFORE))) is None
    assert loss(pod(restarted=end(finished="2026-01-02T03:00:00Z"))) is not None, "the API has whole seconds"


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        (pod("Failed", ended=end("OOMKilled", 137)), "OOMKilled"),
        (pod("Failed", ended=end("Error", 1)), "PodFailed"),
        (pod("Failed", reason="Evicted", message="The node was low on memory."), "Evicted"),
        (pod("Failed"), "PodFailed"),
    ],
)
def test_failed_pod_is_a_loss_with_its_reason(failed: PodView, reason: str) -> None:
    assert loss(failed, box(status={"podIPs": ["10.0.0.1"]})) == (reason, NOW)
    assert loss(failed) is None, "it failed before it had an address"


def test_pod_that_completed_has_lost_nothing() -> None:
    assert loss(pod("Succeeded", ended=end("Completed", 0))) is None


def test_replaced_pod_is_a_loss_if_the_status_shows_the_former_one() -> None:
    assert loss(None, box(status={"nodeName": "n1"}), is_created=True) == ("PodReplaced", NOW)
    assert loss(None, is_created=True) is None, "the first pod of a sandbox"
    assert loss(pod(), box(status={"nodeName": "n1", "podIPs": ["10.0.0.9"]})) == ("PodReplaced", NOW)
    assert loss(pod(), box(status={"nodeName": "n1", "podIPs": ["10.0.0.1"]})) is None


def test_pod_that_fails_because_it_is_deleted_leaves_the_loss_to_its_replacement() -> None:
    serving = box(status={"podIPs": ["10.0.0.1"]})
    reported = {**pod_status("Failed", ips=["10.0.0.1"]), "containerStatuses": []}
    going = {"deletionTimestamp": NOW}
    assert loss(PodView.from_object(sandbox_pod(BOX, metadata=going, status=reported)), serving) is None
    evicted = sandbox_pod(BOX, metadata=going, status={**reported, "reason": "Evicted"})
    assert loss(PodView.from_object(evicted), serving) == ("Evicted", NOW)


def test_replacement_of_a_failed_pod_adds_no_loss() -> None:
    def status(lost_at: str) -> Object:
        ended = {"type": "Finished", "status": "True", "lastTransitionTime": AFTER}
        lost = {"type": "StateLost", "status": "True", "lastTransitionTime": lost_at}
        return {"nodeName": "n1", "conditions": [ended, lost]}

    assert loss(None, box(status=status(AFTER)), is_created=True) is None
    assert loss(None, box(status=status(BEFORE)), is_created=True) == ("PodReplaced", NOW), "the loss is another one"


def test_pod_of_another_owner_says_nothing_about_the_sandbox() -> None:
    foreign = sandbox_pod(sandbox("other"), "box", status={"phase": "Failed"})
    assert loss(PodView.from_object(foreign)) is None


class TestInUseSince:
    def test_pool_member_is_not_in_use(self) -> None:
        member = SandboxView.from_object(sandbox("box", owner=stored(SANDBOX_WARM_POOL, "pool")))
        assert in_use_since(member, None) is None

    def test_claimed_sandbox_is_in_use_since_its_claim(self) -> None:
        assert in_use_since(box(), ClaimView.from_object(CLAIM)) == SINCE
        assert in_use_since(box(), None) is None, "the claim is gone, and the sandbox will follow"

    def test_sandbox_without_a_claim_is_in_use_since_its_creation(self) -> None:
        alone = sandbox("box", metadata={"creationTimestamp": "2026-01-02T03:00:00Z"})
        assert in_use_since(SandboxView.from_object(alone), None) == SINCE


class TestCondition:
    lost = detect(box(), pod(restarted=end("OOMKilled", 137)), SINCE, is_created=False, now=NOW)

    def test_transition_time_is_the_time_of_the_loss(self) -> None:
        (condition,) = with_state_loss([], box(), self.lost, NOW)
        assert (condition["type"], condition["status"], condition["reason"]) == ("StateLost", "True", "OOMKilled")
        assert condition["lastTransitionTime"] == AFTER

    def test_condition_stays_after_the_loss(self) -> None:
        conditions = with_state_loss([], box(), self.lost, NOW)
        assert with_state_loss(conditions, box(), None, "2027-01-01T00:00:00Z") == conditions
        assert newly_lost(conditions, conditions) is None

    def test_later_loss_replaces_the_earlier_one(self) -> None:
        conditions = with_state_loss([], box(), self.lost, NOW)
        again = detect(box(), pod(restarted=end(finished="2026-01-02T03:03:00Z")), SINCE, is_created=False, now=NOW)
        after = with_state_loss(conditions, box(), again, NOW)
        assert [(each["reason"], each["lastTransitionTime"]) for each in after] == [
            ("ContainerRestarted", "2026-01-02T03:03:00Z")
        ]
        assert newly_lost(conditions, after) == after[0]

    def test_suspending_removes_the_condition(self) -> None:
        conditions = with_state_loss([], box(), self.lost, NOW)
        assert with_state_loss(conditions, box(operatingMode="Suspended"), None, NOW) == []
