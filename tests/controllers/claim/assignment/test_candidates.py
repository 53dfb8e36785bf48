"""Which sandboxes are candidates for a claim, and which of them are equivalent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.assignment.assigner import Stage
from sandpool.controllers.claim.assignment.candidates import (
    candidate_of,
    compatibility,
    current,
    is_adoptable,
    refusal,
    requests_of,
)
from sandpool.controllers.revision import TemplateRevision
from sandpool.testing.objects import pod_template
from tests.support.claim_objects import claim, pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox, template

POOL = WarmPoolView.from_object(warm_pool())
CLAIM = ClaimView.from_object(claim())


def member(**fields: Any) -> SandboxView:
    return SandboxView.from_object(pool_member(pool=warm_pool(), **fields))


def without_label(key: str) -> SandboxView:
    whole = member()
    return replace(whole, labels={name: value for name, value in whole.labels.items() if name != key})


def revision(spec: Object | None = None) -> TemplateRevision:
    return TemplateRevision.of(TemplateView.from_object(template(spec=spec)))


def fresh_from(made_from: TemplateRevision) -> SandboxView:
    identity = {**member().labels, labels.TEMPLATE_HASH: made_from.hash, labels.TEMPLATE_REF_HASH: made_from.ref_hash}
    return replace(member(), labels=identity, pod_template=made_from.spec["podTemplate"])


def test_pool_member_is_a_candidate() -> None:
    assert is_adoptable(member())
    assert refusal(member(), CLAIM) == ""


@pytest.mark.parametrize("label", [labels.WARM_POOL, labels.TEMPLATE_REF_HASH])
def test_sandbox_without_the_pool_labels_is_no_candidate(label: str) -> None:
    assert not is_adoptable(without_label(label))
    assert refusal(without_label(label), CLAIM) == "sandbox is not a free member of a warm pool"


def test_r10_pool_labels_without_the_owner_are_not_enough() -> None:
    unowned = replace(member(), owner=None)
    assert not is_adoptable(unowned)
    assert candidate_of(unowned, POOL, None) is None
    foreign = SandboxView.from_object(sandbox(owner=claim("other"), metadata={"labels": dict(member().labels)}))
    assert not is_adoptable(foreign)
    assert refusal(foreign, CLAIM) == "sandbox is not a free member of a warm pool"


def test_r10_owner_with_the_right_name_and_another_uid_is_not_the_pool() -> None:
    assert candidate_of(member(), replace(POOL, uid="another"), None) is None


def test_sandbox_being_deleted_is_no_candidate() -> None:
    deleting = member(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"})
    assert candidate_of(deleting, POOL, None) is None
    assert refusal(deleting, CLAIM) == "sandbox is being deleted"


def test_r11_sandbox_of_another_namespace_is_refused() -> None:
    elsewhere = replace(member(), namespace="other")
    assert refusal(elsewhere, CLAIM) == 'sandbox is in namespace "other", not "default"'


def test_sandbox_of_another_pool_is_refused() -> None:
    assert refusal(member(), replace(CLAIM, warm_pool="other")) == 'sandbox is of warm pool "pool", not "other"'


def test_e45_r16_owner_reference_of_an_old_version_is_accepted() -> None:
    old = pool_member(pool={**warm_pool(), "apiVersion": "extensions.agents.x-k8s.io/v1alpha1"})
    assert refusal(SandboxView.from_object(old), CLAIM) == ""
    foreign = pool_member(pool={**warm_pool(), "apiVersion": "example.com/v1"})
    assert refusal(SandboxView.from_object(foreign), CLAIM) == "sandbox is not a free member of a warm pool"


@pytest.mark.parametrize(
    ("status", "stage"),
    [
        ({}, Stage.PENDING),
        (ready_status(ips=()), Stage.PENDING),
        (ready_status(status="False"), Stage.STARTING),
        ({"podIPs": ["10.0.0.1"]}, Stage.STARTING),
        (ready_status(), Stage.READY),
    ],
)
def test_r6_candidate_is_ready_only_with_an_address(status: Object, stage: Stage) -> None:
    candidate = candidate_of(member(status=status), POOL, None)
    assert candidate is not None
    assert candidate.stage is stage


def test_candidate_names_its_sandbox_pool_and_node() -> None:
    candidate = candidate_of(member(status=ready_status(node="node-7")), None, None)
    assert candidate is not None
    assert (candidate.sandbox, candidate.pool, candidate.node) == (
        ("default", "pool-abcde"),
        ("default", "pool"),
        "node-7",
    )
    assert candidate.uid == "sandbox-pool-abcde"


def test_sandbox_of_the_current_revision_is_current() -> None:
    now = revision()
    assert compatibility(fresh_from(now), now) == current(now)


def test_r8_sandbox_of_an_earlier_revision_is_not_current() -> None:
    before, now = revision(), revision({"service": True})
    stale = compatibility(fresh_from(before), now)
    assert stale == current(before) != current(now)


def test_sandbox_with_another_hash_and_the_same_spec_is_current() -> None:
    before, now = revision(), revision({"podTemplate": pod_template(labels={"a": "b"})})
    assert before.hash != now.hash
    assert compatibility(fresh_from(before), now) == current(now)


def test_sandbox_of_another_template_with_the_same_spec_is_not_current() -> None:
    other = TemplateRevision.of(TemplateView.from_object(template("other")))
    assert compatibility(fresh_from(other), revision()) != current(revision())


def test_r8_recreate_requests_only_the_current_revision() -> None:
    now, pool = revision(), WarmPoolView.from_object(warm_pool(strategy="Recreate"))
    assert [request.compatibility for request in requests_of(CLAIM, pool, now)] == [current(now)]
    assert requests_of(CLAIM, pool, None) == ()


def test_rolling_update_prefers_the_current_revision() -> None:
    now, pool = revision(), WarmPoolView.from_object(warm_pool(strategy="RollingUpdate"))
    assert [request.compatibility for request in requests_of(CLAIM, pool, now)] == [current(now), None]


@pytest.mark.parametrize("strategy", ["", "OnReplenish", "Whatever"])
def test_other_strategies_accept_any_revision(strategy: str) -> None:
    (request,) = requests_of(CLAIM, WarmPoolView.from_object(warm_pool(strategy=strategy)), revision())
    assert request == (("default", "claim"), ("default", "pool"), None)
