"""The explanation of a claim: one sentence, and the chain of causes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import WarmPoolView
from sandpool.explain.claim import Link, explain_claim
from sandpool.explain.observed import EventView
from tests.explain.scenes import ARRIVED, box_with, claim_with, condition, pool_with, scene
from tests.support.claim_objects import warm_pool

READY = condition("Ready", "True", "DependenciesReady", "Pod is Ready")
SCHEDULED = condition("PodScheduled", "True", "PodScheduled")
SEEN, FIRST_READY = "2026-11-01T12:00:00.250000Z", "2026-11-01T12:00:00.300000Z"
NOTES = {labels.CONTROLLER_FIRST_OBSERVED_AT: SEEN, labels.CLAIM_FIRST_READY_AT: FIRST_READY}
ADOPTED = EventView("SandboxClaim", "mine", "sandboxclaim-mine", "Normal", "SandboxAdopted", "", ARRIVED)
FORMER = EventView("SandboxClaim", "mine", "long-gone", "Normal", "SandboxAdopted", "", ARRIVED - timedelta(days=1))


@pytest.mark.parametrize(
    ("launch", "how"),
    [
        (labels.LAUNCH_WARM, ", warm from its pool"),
        (labels.LAUNCH_COLD, ', created for it because none of pool "pool" was ready'),
        ("", ""),
    ],
)
def test_ready_claim_is_explained(launch: str, how: str) -> None:
    claim = claim_with(READY, sandbox="box", annotations=NOTES)
    told = explain_claim(scene(claim, sandbox=box_with(SCHEDULED, READY, launch=launch), events=(FORMER, ADOPTED)))
    assert told.sentence == f'Claim "mine" is ready: it has sandbox "box"{how}.'
    assert told.chain == (
        Link(ARRIVED, 'created, requesting a sandbox of pool "pool"'),
        Link(ARRIVED + timedelta(seconds=0.25), "observed by the controller"),
        Link(None, f'assigned sandbox "box"{how}'),
        Link(ARRIVED, "bound: the sandbox is owned by the claim"),
        Link(ARRIVED, 'its pod is on node "node-1"'),
        Link(ARRIVED, "the sandbox is ready: Pod is Ready"),
        Link(ARRIVED + timedelta(seconds=0.3), "ready for the first time"),
    )
    assert (told.advice, told.unknown) == ("", ())


def test_frozen_sandbox_of_a_ready_claim_is_explained() -> None:
    claim = claim_with(READY, sandbox="box")
    told = explain_claim(scene(claim, sandbox=box_with(READY), frozen_since="2026-11-01T12:00:00Z"))
    assert told.sentence.endswith(
        ". It is frozen since 2026-11-01T12:00:00Z, because it was not used; the next request thaws it."
    )


def test_waiting_claim_is_explained_with_its_place_in_the_queue() -> None:
    told = explain_claim(scene(claim_with(), ahead=2))
    assert told.sentence.startswith(
        'Claim "mine" is not ready: pool "pool" has no ready sandbox and is being refilled; 2 other'
    )
    assert [link.text for link in told.chain[1:3]] == [
        "queued behind 2 other claims of the same pool",
        'pool "pool" has 0 of 3 sandboxes ready',
    ]
    assert told.chain[-1].text.startswith("blocked: ")


def test_condition_message_becomes_part_of_one_sentence() -> None:
    told = explain_claim(scene(claim_with(condition("Ready", "False", "InvalidMetadata", "a: no.\nb: no. "))))
    assert told.sentence == 'Claim "mine" is not ready: a: no. b: no.'


def test_claim_behind_one_other_is_explained() -> None:
    assert explain_claim(scene(claim_with(), ahead=1)).chain[1].text == "queued behind 1 other claim of the same pool"


def test_blocked_claim_is_explained_with_time_and_advice() -> None:
    claim = claim_with(condition("Ready", "False", "WarmPoolNotFound", "no", since="2026-11-01T12:00:02Z"))
    told = explain_claim(scene(claim, pool=None))
    assert told.chain[-1] == Link(ARRIVED + timedelta(seconds=2), 'blocked: pool "pool" does not exist')
    assert told.advice == "create the pool, or create a claim that names another pool"


@pytest.mark.parametrize(("at", "text"), [("2026-11-01T11:00:00Z", "expired"), ("2026-11-01T13:00:00Z", "expires")])
def test_shutdown_time_is_explained(at: str, text: str) -> None:
    claim = claim_with(READY, sandbox="box", spec={"lifecycle": {"shutdownTime": at}})
    assert explain_claim(scene(claim, sandbox=box_with(READY))).chain[-1].text == text


def test_end_that_a_claim_has_from_its_pool_is_explained() -> None:
    pool = replace(pool_with(), annotations={labels.CLAIM_TTL: "8h", labels.CLAIM_UNBOUND_TTL: "15m"})
    claim = claim_with(READY, sandbox="box")
    link = explain_claim(scene(claim, pool=pool, sandbox=box_with(READY))).chain[-1]
    assert claim.creation_timestamp is not None
    assert link == Link(claim.creation_timestamp + timedelta(hours=8), "expires")
    waiting = claim_with()
    link = explain_claim(scene(waiting, pool=pool)).chain[-1]
    assert link == Link(claim.creation_timestamp + timedelta(minutes=15), "expires")


def test_sandbox_that_the_claim_does_not_own_is_not_bound() -> None:
    other = box_with(READY, ownerReferences=[])
    told = explain_claim(scene(claim_with(READY, sandbox="box"), sandbox=other))
    assert not any("bound" in link.text for link in told.chain)


def test_unreadable_objects_are_mentioned_where_they_matter() -> None:
    unseen = frozenset({"pods", "events"})
    pending = condition("Ready", "False", "DependenciesNotReady", "Pod exists with phase: Pending")
    waiting = scene(claim_with(pending, sandbox="box"), sandbox=box_with(pending), unseen=unseen)
    assert explain_claim(waiting).unknown == (
        "pods: the state of its containers",
        "events: events of nodes and schedulers",
    )
    ready = scene(claim_with(READY, sandbox="box"), sandbox=box_with(READY), unseen=unseen)
    assert explain_claim(ready).unknown == ()


def test_claim_alone_is_explained() -> None:
    kinds = ("sandboxwarmpools", "sandboxes", "sandboxclaims", "events")
    told = explain_claim(scene(claim_with(), pool=None, has_template=False, unseen=frozenset(kinds)))
    assert told.sentence == 'Claim "mine" is not ready: it is waiting for a sandbox.'
    assert [line.partition(":")[0] for line in told.unknown] == [
        "sandboxwarmpools",
        "sandboxes",
        "sandboxclaims",
        "events",
    ]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        (
            {"env": [{"name": "A", "value": "b"}]},
            "it sets env, and its template does not opt in to late binding (sandpool.dev/late-binding)",
        ),
        (
            {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]},
            "it sets volumeClaimTemplates, which a warm sandbox cannot get any more",
        ),
        ({"additionalPodMetadata": {"labels": {"a": "b"}}}, 'none of pool "pool" was ready'),  # any could have got them
    ],
)
def test_cold_claim_names_why_it_got_no_warm_sandbox(spec: Object, cause: str) -> None:
    claim = claim_with(READY, sandbox="box", spec=spec)
    told = explain_claim(scene(claim, sandbox=box_with(READY, launch=labels.LAUNCH_COLD)))
    assert told.sentence == f'Claim "mine" is ready: it has sandbox "box", created for it because {cause}.'


def test_cold_claim_of_a_pool_of_size_0_says_so() -> None:
    empty = warm_pool()
    pool = WarmPoolView.from_object({**empty, "spec": {**empty["spec"], "replicas": 0}})
    cold = box_with(READY, launch=labels.LAUNCH_COLD)
    told = explain_claim(scene(claim_with(READY, sandbox="box"), sandbox=cold, pool=pool))
    assert told.sentence.endswith('created for it because pool "pool" has size 0.')
    told = explain_claim(scene(claim_with(READY, sandbox="box"), sandbox=cold, pool=None))
    assert told.sentence.endswith("created for it because none was ready.")


@pytest.mark.parametrize(
    "reason", ["InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError", "ClaimLimitReached"]
)
def test_refused_claim_is_in_no_queue(reason: str) -> None:
    refused = claim_with(condition("Ready", "False", reason, "refused"))
    told = explain_claim(scene(refused, pool=pool_with(ready=3), ahead=1))
    assert [link.text for link in told.chain] == [
        'created, requesting a sandbox of pool "pool"',
        'pool "pool" has 3 of 3 sandboxes ready',
        "blocked: refused",
    ]


def test_claim_that_was_bound_late_says_so() -> None:
    bound = condition("EnvironmentBound", "True", "Acknowledged", "2 variables were handed to the warm sandbox")
    told = explain_claim(
        scene(claim_with(READY, bound, sandbox="box"), sandbox=box_with(READY, launch=labels.LAUNCH_WARM))
    )
    assert told.sentence == (
        'Claim "mine" is ready: it has sandbox "box", warm from its pool; 2 variables were handed to the warm sandbox.'
    )


@pytest.mark.parametrize(
    ("conditions", "cause"),
    [
        (
            (condition("EnvironmentBound", "False", "TimedOut", "the sandbox did not answer within 5 s"),),
            "its variables could not be handed to a warm sandbox: the sandbox did not answer within 5 s",
        ),
        ((), 'none of pool "pool" was ready'),
    ],
    ids=["failed", "none ready"],
)
def test_cold_claim_of_a_template_with_late_binding_says_why(conditions: tuple[Object, ...], cause: str) -> None:
    claim = claim_with(READY, *conditions, sandbox="box", spec={"env": [{"name": "A", "value": "b"}]})
    told = explain_claim(scene(claim, sandbox=box_with(READY, launch=labels.LAUNCH_COLD), binds_late=True))
    assert told.sentence == f'Claim "mine" is ready: it has sandbox "box", created for it because {cause}.'


def test_used_sandbox_that_does_not_acknowledge_is_named() -> None:
    waiting = condition("Ready", "False", "EnvironmentNotBound", "the sandbox has not acknowledged: refused")
    told = explain_claim(scene(claim_with(waiting, sandbox="box"), sandbox=box_with(READY)))
    assert told.sentence == 'Claim "mine" is not ready: the sandbox has not acknowledged: refused.'
    assert "restart" in told.advice


def test_lost_state_is_named_with_its_time() -> None:
    lost = condition("StateLost", "True", "OOMKilled", 'Container "main" ran out of memory.')
    told = explain_claim(scene(claim_with(READY, lost, sandbox="box"), sandbox=box_with(READY, lost)))
    assert told.sentence.endswith(
        f'It has lost its state at {lost["lastTransitionTime"]}: Container "main" ran out of memory.'
    )
    assert Link(ARRIVED, 'state lost (OOMKilled): Container "main" ran out of memory.') in told.chain


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("EnvVarsInjectionRejected", "envVarsInjectionPolicy"),
        ("VolumeClaimTemplatesError", "volumeClaimTemplatesPolicy"),
    ],
)
def test_refused_claim_of_a_template_that_cannot_be_read_names_the_field(reason: str, field: str) -> None:
    refused = claim_with(condition("Ready", "False", reason, "refused"))
    told = explain_claim(scene(refused, unseen=frozenset({"sandboxtemplates"})))
    assert told.advice == f'set {field} to Allowed or Overrides in template "python", or change the claim'
