"""Latencies of claims: each is recorded once, and only if its start is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.metrics import creation, is_first_ready, startup_samples
from sandpool.controllers.claim.status import ClaimStatus
from tests.support.claim_objects import claim, pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox

NOW = datetime(2026, 11, 1, 12, 0, 5, tzinfo=UTC)
READY = ClaimStatus([{"type": "Ready", "status": "True"}])
NOT_READY = ClaimStatus([{"type": "Ready", "status": "False"}])
STARTUP = "agent_sandbox_claim_startup_latency_ms"
CONTROLLER = "agent_sandbox_claim_controller_startup_latency_ms"
CLIENT = "agent_sandbox_client_claim_startup_latency_ms"
CREATION = "agent_sandbox_creation_latency_ms"


def view(was: str = "", **annotations: str) -> ClaimView:
    status: Object = {"conditions": [{"type": "Ready", "status": was}]} if was else {}
    noted = {f"agents.x-k8s.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return ClaimView.from_object(claim(metadata={"annotations": noted}, status=status))


def member(**fields: Any) -> SandboxView:
    return SandboxView.from_object(pool_member(pool=warm_pool(), **{"status": ready_status(), **fields}))


def measured(
    claimed: ClaimView,
    status: ClaimStatus,
    sandbox: SandboxView | None,
    ready_at: datetime,
    first_observed: datetime | None = None,
) -> dict[str, tuple[tuple[str, ...], float]]:
    if not is_first_ready(claimed, status):
        return {}
    samples = startup_samples(claimed, sandbox, ready_at, first_observed)
    return {sample.metric.name: (sample.labels, sample.value) for sample in samples}


def test_all_known_latencies_are_recorded_when_first_ready() -> None:
    claimed = view(
        webhook_first_observed_at="2026-11-01T12:00:01Z",
        controller_first_observed_at="2026-11-01T14:00:02.5+02:00",
        client_first_requested_at="2026-11-01T12:00:00.123456789Z",
    )
    status = ready_status(since="2026-11-01T12:00:03Z")
    result = measured(claimed, READY, member(status=status), NOW)
    assert result == {
        STARTUP: (("warm", "python"), 4000),
        CONTROLLER: (("warm", "python"), 2500),
        CLIENT: (("warm", "python"), pytest.approx(4876.544)),
        CREATION: (("default", "warm", "python"), 3000),
    }


def test_first_observation_of_this_process_is_used_without_annotation() -> None:
    result = measured(view(), READY, None, NOW, NOW - timedelta(seconds=1))
    assert result == {CONTROLLER: (("unknown", "__unknown__"), 1000)}


def test_e49_annotated_first_observation_wins() -> None:
    claimed = view(controller_first_observed_at="2026-11-01T12:00:00Z")
    assert (measured(claimed, READY, None, NOW, NOW))[CONTROLLER][1] == 5000


@pytest.mark.parametrize("value", ["2026-11-01T12:00:06Z", "yesterday", ""])
def test_e53_start_in_the_future_or_missing_skips_only_its_own_histogram(value: str) -> None:
    claimed = view(webhook_first_observed_at=value, client_first_requested_at="2026-11-01T12:00:00Z")
    assert (measured(claimed, READY, None, NOW)) == {CLIENT: (("unknown", "__unknown__"), 5000)}


def test_sandbox_ready_before_its_creation_is_not_recorded() -> None:
    odd = member(status=ready_status(since="2026-11-01T11:59:59Z"))
    assert CREATION not in (measured(view(), READY, odd, NOW))


def test_cold_sandbox_is_recorded_as_cold() -> None:
    box = SandboxView.from_object(
        sandbox(
            "claim",
            owner=claim(),
            metadata={"creationTimestamp": "2026-11-01T12:00:00Z"},
            status=ready_status(since="2026-11-01T12:00:04Z"),
        )
    )
    assert (measured(view(), READY, box, NOW)) == {CREATION: (("default", "cold", "__unknown__"), 4000)}


@pytest.mark.parametrize("noted", ["2026-11-01T12:00:00Z", "unknown"])
@pytest.mark.parametrize("was", ["", "False", "True"])
@pytest.mark.parametrize("status", [READY, NOT_READY])
def test_r40_e41_annotated_claim_is_not_recorded_again(noted: str, was: str, status: ClaimStatus) -> None:
    assert measured(view(was, claim_first_ready_at=noted), status, member(), NOW) == {}


@pytest.mark.parametrize("status", [READY, NOT_READY])
def test_e41_claim_that_was_ready_before_is_annotated_and_not_recorded(status: ClaimStatus) -> None:
    assert measured(view("True"), status, member(), NOW, NOW) == {}


def test_unready_claim_is_neither_annotated_nor_recorded() -> None:
    assert measured(view("False"), NOT_READY, member(), NOW, NOW) == {}


@pytest.mark.parametrize(
    ("box", "creator", "expected"),
    [
        (member(), "python-client", ("default", "python", "warm", "pool", "ready", "python-client")),
        (member(status={}), "my-tool", ("default", "python", "warm", "pool", "not_ready", "unknown")),
    ],
)
def test_adopted_sandbox_is_counted(box: SandboxView, creator: str, expected: tuple[str, ...]) -> None:
    claimed = ClaimView.from_object(claim(metadata={"labels": {labels.CREATED_BY: creator}}))
    sample = creation(claimed, box, "", "warm", "pool")
    assert (sample.metric.name, sample.labels, sample.value) == ("agent_sandbox_claim_creation_total", expected, 1)


def test_created_sandbox_is_counted() -> None:
    sample = creation(view(), None, "python", "cold", "pool")
    assert sample.labels == ("default", "python", "cold", "pool", "not_ready", "unknown")
