"""Predicates: which changes enqueue which claims."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, WarmPoolView
from sandpool.controllers.claim.watches import needs_pool, needs_template, pool_spec, sandbox_state
from tests.support.claim_objects import claim, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox

READY = ready_status()
BOUND = {"sandbox": {"name": "pool-abcde"}}
DELETING = {"deletionTimestamp": "2026-11-01T12:00:00Z"}


def box(status: Object, **metadata: Any) -> SandboxView:
    return SandboxView.from_object(sandbox(status=status, metadata=metadata))


def view(reason: str = "", **fields: Any) -> ClaimView:
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": reason}], **fields.pop("status", {})}
    return ClaimView.from_object(claim(status=status, **fields))


@pytest.mark.parametrize(
    "after",
    [
        box({**READY, "podIPs": ["10.0.0.2"]}),
        box(ready_status(message="other")),
        box(ready_status(observedGeneration=8)),
        box({**READY, "conditions": [*READY["conditions"], {"type": "Finished", "status": "True"}]}),
        box(READY, **DELETING),
    ],
    ids=["addresses", "message", "generation", "finished", "deleting"],
)
def test_change_of_a_copied_sandbox_field_enqueues_the_claim(after: SandboxView) -> None:
    assert sandbox_state(after) != sandbox_state(box(READY))


@pytest.mark.parametrize(
    "after",
    [
        box(READY, labels={"a": "b"}, resourceVersion="2"),
        box({**READY, "nodeName": "node-2"}),
        box({**READY, "conditions": [*READY["conditions"], {"type": "PodScheduled", "status": "True"}]}),
        box({**READY, "selector": "x"}),
    ],
    ids=["metadata", "node", "scheduled", "selector"],
)
def test_change_of_other_sandbox_fields_does_not_enqueue_the_claim(after: SandboxView) -> None:
    assert sandbox_state(after) == sandbox_state(box(READY))


def test_r33_pool_status_enqueues_no_claim() -> None:
    before = WarmPoolView.from_object(warm_pool(metadata={"generation": 1}))
    busy = WarmPoolView.from_object(warm_pool(metadata={"generation": 1, "resourceVersion": "9"}))
    changed = WarmPoolView.from_object(warm_pool(metadata={"generation": 2}))
    assert pool_spec(before) == pool_spec(busy) != pool_spec(changed)


def test_e44_bound_claims_ignore_their_pool() -> None:
    assert needs_pool(view())
    assert not needs_pool(view(status=BOUND))
    assert not needs_pool(view(metadata=DELETING))


def test_e44_new_template_enqueues_all_claims_except_deleted_ones() -> None:
    assert needs_template(view(), is_new=True)
    assert needs_template(view(status=BOUND), is_new=True)
    assert not needs_template(view(metadata=DELETING), is_new=True)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("EnvVarsInjectionRejected", True),
        ("VolumeClaimTemplatesError", True),
        ("ReconcilerError", True),
        ("DependenciesReady", False),
        ("InvalidMetadata", False),
    ],
)
def test_changed_template_enqueues_the_claims_it_rejected(reason: str, expected: bool) -> None:
    assert needs_template(view(reason), is_new=False) is expected
