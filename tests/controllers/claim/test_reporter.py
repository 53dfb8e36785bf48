"""The status update of a claim: conditions, requeue time, annotations and metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.events import claim_expired
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim import errors
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.metrics import is_first_ready, startup_samples
from sandpool.controllers.claim.plan import Observed
from sandpool.controllers.claim.reporter import finish
from sandpool.controllers.claim.status import ClaimStatus, StatusUpdate, compute_status
from tests.support.claim_objects import claim, pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
FINISHED = {
    "type": "Finished",
    "status": "True",
    "reason": "PodSucceeded",
    "message": "Pod completed successfully",
    "lastTransitionTime": "2026-11-01T12:00:00Z",
    "observedGeneration": 1,
}
MARKED = {
    "type": "Ready",
    "status": "False",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-01T11:00:00Z",
    "reason": "ClaimExpired",
    "message": "Claim expired. Sandbox cleanup initiated.",
}


def observed(claimed: Object | None = None, **fields: Any) -> Observed:
    return Observed(ClaimView.from_object(claimed or claim()), (), {}, None, None, None, **{"now": NOON, **fields})


def box(status: Object | None = None, name: str = "pool-abcde", launch: str = "warm") -> SandboxView:
    identity = {"labels": {labels.LAUNCH_TYPE: launch}, "annotations": {labels.TEMPLATE_REF: "python"}}
    return SandboxView.from_object(
        sandbox(name, owner=claim(), metadata=identity, status=ready_status() if status is None else status)
    )


def update_of(
    scene: Observed, sandbox: SandboxView | None, error: ClaimError | None = None, *, expired: bool = False
) -> StatusUpdate:
    return compute_status(scene.claim, scene.now, sandbox, error, expired=expired)


def finished(scene: Observed, sandbox: SandboxView | None, **options: Any) -> Object | None:
    return finish(scene, update_of(scene, sandbox).status, sandbox, NOON, **options)


def measured(scene: Observed, sandbox: SandboxView) -> list[float]:
    if not is_first_ready(scene.claim, update_of(scene, sandbox).status):
        return []
    return [sample.value for sample in startup_samples(scene.claim, sandbox, NOON, scene.first_observed)]


def reason(status: ClaimStatus) -> str:
    return next(str(each["reason"]) for each in status.conditions if each["type"] == "Ready")


def test_ready_claim_is_written_once_without_requeue() -> None:
    update = update_of(observed(), box())
    assert update.status.ready
    assert update.patch is not None
    assert (update.patch.name, update.patch.subresource) == ("claim", "status")
    assert (update.requeue_after, update.is_failure, update.event) == (None, False, None)


def test_claim_with_a_shutdown_time_is_requeued_for_it() -> None:
    ends = claim(spec={"lifecycle": {"shutdownTime": "2026-11-01T12:00:30Z"}})
    assert update_of(observed(ends), box()).requeue_after == 30


@pytest.mark.parametrize(
    ("error", "seconds", "is_failure"),
    [
        (errors.pool_not_found("p"), 60, False),
        (errors.template_not_found("t"), 60, False),
        (errors.create_pending(), 0.2, False),
        (errors.invalid_metadata("x"), None, False),
        (errors.environment_rejected("x"), None, False),
        (errors.volume_claim_templates_rejected("x"), None, False),
        (errors.failure("x"), None, True),
        (errors.adoption_conflict("x"), None, True),
    ],
    ids=lambda value: value.reason if isinstance(value, ClaimError) else "",
)
def test_requeue_after_an_error_follows_its_retry(error: ClaimError, seconds: float | None, is_failure: bool) -> None:
    update = update_of(observed(), None, error)
    assert (update.requeue_after, update.is_failure) == (seconds, is_failure)
    ends = claim(spec={"lifecycle": {"shutdownTime": "2026-11-01T12:00:00.1Z"}})
    assert update_of(observed(ends), None, error).requeue_after == pytest.approx(0.1)


def test_e43_expiry_writes_only_the_condition() -> None:
    bound: Object = {
        "conditions": [{**MARKED, "status": "True", "reason": "DependenciesReady"}],
        "sandbox": {"name": "s"},
    }
    expired = claim(spec={"lifecycle": {"shutdownTime": "2026-11-01T12:00:00Z"}}, status=bound)
    update = update_of(observed(expired), None, expired=True)
    assert update.patch is not None
    assert update.patch.body["status"].keys() == {"conditions"}
    assert (reason(update.status), update.status.sandbox_name) == ("ClaimExpired", "s")
    assert (update.requeue_after, update.event) == (0.001, claim_expired())


def test_e43_finished_pod_with_ttl_zero_expires_the_claim_in_two_reconciles() -> None:
    brief = claim(spec={"lifecycle": {"ttlSecondsAfterFinished": 0}})
    update = update_of(observed(brief), box({"conditions": [FINISHED]}))
    assert [each["type"] for each in update.status.conditions] == ["Finished", "Ready"]
    assert (reason(update.status), update.status.sandbox_name) == ("ClaimExpired", "pool-abcde")
    assert (update.requeue_after, update.event) == (0.001, claim_expired())


def test_r48_expiry_is_reported_once() -> None:
    expired = claim(
        spec={"lifecycle": {"shutdownTime": "2026-11-01T12:00:00Z"}},
        status={"conditions": [MARKED], "sandbox": {"name": "pool-abcde", "podIPs": ["10.0.0.1"]}},
    )
    update = update_of(observed(expired), box(), expired=True)
    assert (update.patch, update.event, update.requeue_after) == (None, None, None)


def test_expired_claim_names_its_sandbox_until_it_is_deleted() -> None:
    expired = claim(
        spec={"lifecycle": {"shutdownTime": "2026-11-01T12:00:00Z"}},
        status={"conditions": [FINISHED, MARKED], "sandbox": {"name": "pool-abcde"}},
    )
    update = update_of(observed(expired), None, expired=True)
    assert update.patch is not None
    assert update.patch.body["status"] == {"sandbox": None}


# --- afterwards ------------------------------------------------------------------------------------------------------


def test_ready_claim_gets_all_annotations_in_one_patch() -> None:
    scene = observed(first_observed=NOON - timedelta(seconds=1), trace_context="{}")
    ended = finished(scene, box())
    assert ended is not None
    assert ended == {
        "metadata": {
            "uid": "sandboxclaim-claim",
            "annotations": {
                labels.CONTROLLER_FIRST_OBSERVED_AT: "2026-11-01T11:59:59Z",
                labels.TRACE_CONTEXT: "{}",
                labels.SANDBOX_NAME: "pool-abcde",
                labels.CLAIM_FIRST_READY_AT: "2026-11-01T12:00:00Z",
            },
        }
    }
    assert measured(scene, box()) == [1000]


def test_e49_latency_is_recorded_without_observability_annotations() -> None:
    scene = observed(first_observed=NOON - timedelta(seconds=1), trace_context="{}", annotate_observability=False)
    ended = finished(scene, box())
    assert ended is not None
    assert ended["metadata"]["annotations"].keys() == {labels.SANDBOX_NAME, labels.CLAIM_FIRST_READY_AT}
    assert measured(scene, box()) == [1000]


def test_unready_claim_gets_no_annotation() -> None:
    scene = observed(first_observed=NOON, trace_context="{}")
    ended = finished(scene, box({}))
    assert (ended, measured(scene, box({}))) == (None, [])


def test_stale_reference_is_removed_at_once() -> None:
    scene = observed(claim(metadata={"annotations": {labels.SANDBOX_NAME: "gone"}}))
    cold = box({}, "claim", "cold")
    ended = finished(scene, cold, is_reference_stale=True)
    assert ended is not None
    assert ended == {"metadata": {"uid": "sandboxclaim-claim", "annotations": {labels.SANDBOX_NAME: None}}}


def test_cold_sandbox_is_not_annotated_as_assigned() -> None:
    scene = observed()
    cold = box(name="claim", launch="cold")
    ended = finished(scene, cold)
    assert ended is not None
    assert ended["metadata"]["annotations"].keys() == {labels.CLAIM_FIRST_READY_AT}


def test_r40_second_reconcile_of_a_ready_claim_annotates_and_reports_nothing() -> None:
    noted = {labels.SANDBOX_NAME: "pool-abcde", labels.CLAIM_FIRST_READY_AT: "2026-11-01T12:00:00Z"}
    scene = observed(claim(metadata={"annotations": noted}))
    ended = finished(scene, box())
    assert (ended, measured(scene, box())) == (None, [])


def test_claim_of_an_unready_pool_member_waits_and_names_it() -> None:
    starting = SandboxView.from_object(
        pool_member(pool=warm_pool(), status=ready_status(status="False", reason="DependenciesNotReady"))
    )
    update = update_of(observed(), starting)
    assert (update.status.sandbox_name, reason(update.status)) == ("pool-abcde", "DependenciesNotReady")
