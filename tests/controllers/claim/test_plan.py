"""The decision about a claim in each state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.events import CLAIM_CONTROLLER, NORMAL, EventSpec
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.assignment.candidates import current
from sandpool.controllers.claim.plan import (
    Adopt,
    CreateCold,
    DeleteClaim,
    DeleteSandboxes,
    Expire,
    NoOp,
    Observed,
    Reject,
    RequestWarm,
    Sync,
    decide,
    plan_adoption,
    plan_creation,
)
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.writer import Delete
from sandpool.testing.objects import pod_template
from tests.support.claim_objects import claim, pool_member, ready_status, warm_pool
from tests.support.sandbox_objects import sandbox, template

CREATED = datetime(2026, 11, 1, 12, tzinfo=UTC)
LONG_AGO = {"shutdownTime": "2026-11-01T11:00:00Z"}
MARKED = {"conditions": [{"type": "Ready", "status": "False", "reason": "ClaimExpired"}]}
ASSIGNED = {"annotations": {labels.SANDBOX_NAME: "pool-abcde"}}
BRINGS_LABELS = {"additionalPodMetadata": {"labels": {"sandbox.users.io/a": "b"}}}


def observed(
    claimed: Object | None = None,
    *,
    owned: tuple[Object, ...] = (),
    named: tuple[Object, ...] = (),
    pool: Object | None = None,
    made_from: Object | None = None,
    age: float = 0.5,
) -> Observed:
    """A claim of a pool with a template; what is around it is there unless ``without`` takes it away."""
    template_view = TemplateView.from_object(made_from or template())
    return Observed(
        claim=ClaimView.from_object(claimed or claim()),
        owned=[SandboxView.from_object(each) for each in owned],
        named={each["metadata"]["name"]: SandboxView.from_object(each) for each in (*owned, *named)},
        pool=WarmPoolView.from_object(pool or warm_pool()),
        template=template_view,
        revision=TemplateRevision.of(template_view),
        now=CREATED + timedelta(seconds=age),
    )


def without_template(scene: Observed) -> Observed:
    return replace(scene, template=None, revision=None)


def without_pool(scene: Observed) -> Observed:
    return replace(scene, pool=None, template=None, revision=None)


def event(reason: str, action: str, note: str) -> EventSpec:
    return EventSpec(CLAIM_CONTROLLER, NORMAL, reason, action, note)


def own(name: str = "pool-abcde", **metadata: Any) -> Object:
    identity = {
        labels.TEMPLATE_REF_HASH: TemplateRevision.of(TemplateView.from_object(template())).ref_hash,
        labels.LAUNCH_TYPE: "warm",
        labels.CLAIM_UID: "sandboxclaim-claim",
    }
    return sandbox(name, owner=claim(), metadata={"labels": identity, **metadata}, status=ready_status())


def error(decision: object) -> tuple[str, str]:
    assert isinstance(decision, Reject)
    return decision.error.reason, decision.error.message


# --- the end of a claim ----------------------------------------------------------------------------------------------


def test_claim_being_deleted_is_left_to_the_garbage_collector() -> None:
    deleting = claim(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"}, spec={"lifecycle": LONG_AGO})
    assert decide(observed(deleting, owned=(own(),))) == NoOp()


def test_e43_expired_claim_is_marked_first() -> None:
    for policy in ("Delete", "DeleteForeground", "Retain"):
        expired = claim(spec={"lifecycle": {**LONG_AGO, "shutdownPolicy": policy}})
        assert decide(observed(expired, owned=(own(),))) == Expire()


@pytest.mark.parametrize(("policy", "foreground"), [("Delete", False), ("DeleteForeground", True)])
def test_marked_claim_is_deleted(policy: str, foreground: bool) -> None:
    expired = claim(spec={"lifecycle": {**LONG_AGO, "shutdownPolicy": policy}}, status=MARKED)
    assert decide(observed(expired, owned=(own(),))) == DeleteClaim(
        Delete(SANDBOX_CLAIM, "claim", "sandboxclaim-claim"),
        foreground,
        event("ClaimExpired", "Deleting", f"Deleting Claim (ShutdownPolicy={policy})"),
    )


def test_marked_claim_with_policy_retain_loses_its_sandbox() -> None:
    expired = claim(spec={"lifecycle": LONG_AGO}, status=MARKED)
    scene = observed(expired, owned=(own(),))
    assert decide(scene) == DeleteSandboxes((Delete(SANDBOX, "pool-abcde", "sandbox-pool-abcde"),), scene.owned[0])


def test_sandbox_being_deleted_is_not_deleted_again() -> None:
    expired = claim(spec={"lifecycle": LONG_AGO}, status=MARKED)
    scene = observed(expired, owned=(own(deletionTimestamp="2026-11-01T12:00:00Z"),))
    assert decide(scene) == DeleteSandboxes((), scene.owned[0])
    assert decide(observed(expired)) == DeleteSandboxes((), None)


def test_e43_sandbox_of_another_owner_is_not_deleted() -> None:
    expired = claim(spec={"lifecycle": LONG_AGO}, status=MARKED)
    reason, message = error(decide(observed(expired, named=(sandbox("claim"),))))
    assert reason == "ClaimExpired"
    assert message.endswith("deletion skipped.")


# --- a claim that has its sandbox ------------------------------------------------------------------------------------


def test_up_to_date_sandbox_needs_no_patch() -> None:
    scene = observed(owned=(own(),))
    assert decide(scene) == Sync(scene.owned[0], None)
    assert decide(without_pool(scene)) == Sync(scene.owned[0], None)


def test_outdated_sandbox_is_patched() -> None:
    decision = decide(observed(claim(spec=BRINGS_LABELS), owned=(own(),)))
    assert isinstance(decision, Sync)
    assert decision.patch is not None
    assert decision.patch.name == "pool-abcde"
    assert "resourceVersion" not in decision.patch.body.get("metadata", {})


def test_claim_with_metadata_reports_the_missing_template_and_keeps_its_sandbox() -> None:
    scene = observed(claim(spec=BRINGS_LABELS), owned=(own(),))
    for missing, reason in ((without_template, "TemplateNotFound"), (without_pool, "WarmPoolNotFound")):
        decision = decide(missing(scene))
        assert isinstance(decision, Sync)
        assert decision.error is not None
        assert (decision.patch, decision.error.reason) == (None, reason)


def test_metadata_conflict_keeps_the_sandbox() -> None:
    conflicting = template(spec={"podTemplate": pod_template(labels={"sandbox.users.io/a": "other"})})
    decision = decide(observed(claim(spec=BRINGS_LABELS), owned=(own(),), made_from=conflicting))
    assert isinstance(decision, Sync)
    assert decision.error is not None
    assert decision.error.reason == "ReconcilerError"


def test_invalid_metadata_are_rejected_first() -> None:
    invalid = claim(spec={"additionalPodMetadata": {"labels": {"app": "x"}}})
    for scene in (observed(invalid, owned=(own(),)), observed(invalid), without_pool(observed(invalid))):
        assert error(decide(scene))[0] == "InvalidMetadata"


def test_allowed_domains_are_the_configured_ones() -> None:
    invalid = claim(spec={"additionalPodMetadata": {"labels": {"example.com/x": "y"}}})
    assert isinstance(decide(replace(observed(invalid), label_domains=("example.com",))), RequestWarm)


# --- a claim that was promised one -----------------------------------------------------------------------------------


def test_r3_assigned_sandbox_is_adopted_and_no_other() -> None:
    member = pool_member(pool=warm_pool(), status=ready_status())
    decision = decide(observed(claim(metadata=ASSIGNED), named=(member,)))
    assert isinstance(decision, Adopt)
    assert decision.patch.name == "pool-abcde"
    assert decision.patch.body["metadata"]["resourceVersion"] == "1"
    assert decision.event == event("SandboxAdopted", "Adoption", 'Adopted warm pool Sandbox "pool-abcde"')
    assert decision.sample.labels == ("default", "python", "warm", "pool", "ready", "unknown")


def test_assigned_sandbox_is_adopted_without_template_and_under_recreate() -> None:
    scene = observed(
        claim(metadata=ASSIGNED), named=(pool_member(pool=warm_pool()),), pool=warm_pool(strategy="Recreate")
    )
    assert isinstance(decide(without_template(scene)), Adopt)


# --- a claim that has none -------------------------------------------------------------------------------------------


def test_missing_pool_is_an_error() -> None:
    assert error(decide(without_pool(observed()))) == ("WarmPoolNotFound", 'SandboxWarmPool "pool" not found')


def test_claim_requests_a_warm_sandbox_of_its_pool() -> None:
    decision = decide(observed())
    assert isinstance(decision, RequestWarm)
    assert [request.compatibility for request in decision.requests] == [None]
    assert not decision.is_reference_stale


def test_claim_requests_a_warm_sandbox_without_template() -> None:
    assert isinstance(decide(without_template(observed())), RequestWarm)


def test_r8_recreate_requests_only_the_current_revision() -> None:
    scene = observed(pool=warm_pool(strategy="Recreate"))
    decision = decide(scene)
    assert isinstance(decision, RequestWarm)
    assert scene.revision is not None
    assert [request.compatibility for request in decision.requests] == [current(scene.revision)]


def test_r8_recreate_without_template_is_an_error() -> None:
    scene = without_template(observed(pool=warm_pool(strategy="Recreate")))
    assert error(decide(scene)) == ("TemplateNotFound", 'SandboxTemplate "python" not found')


@pytest.mark.parametrize(("age", "grace"), [(0, 2), (0.5, 1.5), (2, 0), (60, 0)])
def test_e33_claim_waits_for_pending_sandboxes_until_it_is_two_seconds_old(age: float, grace: float) -> None:
    decision = decide(observed(age=age))
    assert isinstance(decision, RequestWarm)
    assert decision.grace == grace


def test_e33_claim_of_unknown_age_does_not_wait() -> None:
    decision = decide(observed(claim(metadata={"creationTimestamp": None})))
    assert isinstance(decision, RequestWarm)
    assert decision.grace == 0


def test_metadata_conflict_is_found_before_a_sandbox_is_taken() -> None:
    conflicting = template(spec={"podTemplate": pod_template(labels={"sandbox.users.io/a": "other"})})
    assert error(decide(observed(claim(spec=BRINGS_LABELS), made_from=conflicting)))[0] == "ReconcilerError"


def test_r4_stale_reference_does_not_block_the_request() -> None:
    decision = decide(observed(claim(metadata=ASSIGNED)))
    assert isinstance(decision, RequestWarm)
    assert decision.is_reference_stale


def test_claim_that_no_pool_member_satisfies_is_created_at_once() -> None:
    needs = claim(spec={"env": [{"name": "A", "value": "1"}]})
    scene = observed(needs, made_from=template(spec={"envVarsInjectionPolicy": "Allowed"}))
    decision = decide(scene)
    assert isinstance(decision, CreateCold)
    assert decision == plan_creation(scene)
    assert decision.create.object["metadata"]["name"] == "claim"
    assert decision.event == event("SandboxProvisioned", "Provisioning", 'Created Sandbox "claim"')
    assert decision.sample.labels == ("default", "python", "cold", "pool", "not_ready", "unknown")


def test_e47_env_that_the_template_disallows_is_rejected() -> None:
    needs = claim(spec={"env": [{"name": "A", "value": "1"}]})
    assert error(decide(observed(needs)))[0] == "EnvVarsInjectionRejected"


def test_cold_start_without_template_is_an_error() -> None:
    assert error(plan_creation(without_template(observed()))) == (
        "TemplateNotFound",
        'SandboxTemplate "python" not found',
    )


def test_leased_sandbox_is_adopted_with_the_trace_context() -> None:
    member = SandboxView.from_object(pool_member(pool=warm_pool(), status=ready_status()))
    decision = plan_adoption(replace(observed(), trace_context="{}"), member)
    assert isinstance(decision, Adopt)
    assert decision.patch.body["metadata"]["annotations"] == {labels.TRACE_CONTEXT: "{}"}
    assert "spec" not in decision.patch.body


def test_e46_foreign_sandbox_of_the_claim_name_is_an_error() -> None:
    assert error(decide(observed(named=(sandbox("claim"),))))[0] == "ReconcilerError"
