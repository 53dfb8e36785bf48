"""What a pool's annotations mean for its claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Key
from sandpool.api.views import ClaimView, TemplateView, WarmPoolView
from sandpool.controllers.claim.defaults import NO_DEFAULTS, ClaimDefaults, with_defaults
from sandpool.controllers.claim.expiry import Phase, phase
from sandpool.controllers.claim.state import ClaimStates
from sandpool.controllers.claim.watches import watch_claims
from sandpool.controllers.informers import Caches
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod_template
from tests.support.claim_objects import claim

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
CREATED = {"creationTimestamp": "2026-11-01T12:00:00Z"}
FINISHED = {"type": "Finished", "status": "True", "lastTransitionTime": "2026-11-01T13:00:00Z"}


def pool(**annotations: str) -> WarmPoolView:
    made = new(SANDBOX_WARM_POOL, "pool", spec={"sandboxTemplateRef": {"name": "template"}})
    keys = {f"sandpool.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return WarmPoolView.from_object({**made, "metadata": {"name": "pool", "namespace": "default", "annotations": keys}})


def view(metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **lifecycle: Any) -> ClaimView:
    spec = {"lifecycle": lifecycle} if lifecycle else {}
    return ClaimView.from_object(claim(spec=spec, metadata={**CREATED, **(metadata or {})}, status=status or {}))


def ends(claim: ClaimView, pool: WarmPoolView, *, had_sandbox: bool = True) -> datetime | None:
    lifecycle = with_defaults(claim, pool, None, had_sandbox=had_sandbox).lifecycle
    return None if lifecycle is None else lifecycle.shutdown_time


def test_pool_without_annotations_changes_nothing() -> None:
    given = view()
    assert with_defaults(given, pool(), None, had_sandbox=False) is given
    assert with_defaults(given, None, None, had_sandbox=False) is given
    assert ClaimDefaults.of(pool()) is NO_DEFAULTS


IDLE = {"sandpool.dev/idle-freeze-after": "5m", "sandpool.dev/idle-suspend-after": "2h"}


@pytest.mark.parametrize(
    ("of_template", "of_claim", "expected"),
    [
        ({}, {}, IDLE),
        ({"other": "x"}, {"another": "y"}, {**IDLE, "another": "y"}),
        ({"sandpool.dev/idle-freeze-after": "1m"}, {}, {"sandpool.dev/idle-suspend-after": "2h"}),
        ({}, {"sandpool.dev/idle-suspend-after": "never"}, {**IDLE, "sandpool.dev/idle-suspend-after": "never"}),
    ],
)
def test_pool_says_when_sandboxes_fall_asleep_if_template_and_claim_do_not(
    of_template: dict[str, str], of_claim: dict[str, str], expected: dict[str, str]
) -> None:
    sleepy = pool(idle_freeze_after="5m", idle_suspend_after="2h")
    given = ClaimView.from_object(claim(spec={"additionalPodMetadata": {"annotations": of_claim}}, metadata=CREATED))
    made = new(SANDBOX_TEMPLATE, "template", spec={"podTemplate": pod_template(annotations=of_template)})
    template = TemplateView.from_object({**made, "metadata": {"name": "template", "namespace": "default"}})
    assert with_defaults(given, sleepy, template, had_sandbox=True).additional_annotations == expected
    assert with_defaults(given, sleepy, None, had_sandbox=True).additional_annotations == of_claim, "no template"


def test_claim_that_says_nothing_lives_as_long_as_its_pool_says() -> None:
    limited = pool(claim_ttl="1h30m")
    assert ends(view(), limited) == NOON + timedelta(minutes=90)
    for given in (view(shutdownTime="2026-11-02T12:00:00Z"), view(ttlSecondsAfterFinished=5)):
        assert with_defaults(given, limited, None, had_sandbox=True) is given
    assert ends(view(shutdownPolicy="Retain"), limited) == NOON + timedelta(minutes=90)


@pytest.mark.parametrize(("said", "policy"), [({}, "Delete"), ({"shutdownPolicy": "Retain"}, "Retain")])
def test_claim_keeps_what_it_says_about_its_end(said: dict[str, Any], policy: str) -> None:
    for limited in (pool(claim_ttl="1m"), pool(claim_unbound_ttl="1m")):
        lifecycle = with_defaults(view(**said), limited, None, had_sandbox=False).lifecycle
        assert lifecycle is not None
        assert lifecycle.shutdown_policy == policy


def test_claim_whose_pod_has_finished_ends_after_its_time() -> None:
    given = view(status={"conditions": [FINISHED], "sandbox": {"name": "box"}})
    limited = with_defaults(given, pool(claim_ttl_after_finished="10m"), None, had_sandbox=True)
    assert phase(limited, NOON + timedelta(minutes=69)) is Phase.ACTIVE
    assert phase(limited, NOON + timedelta(minutes=70)) is Phase.MARK


def test_claim_that_never_had_a_sandbox_ends_also_if_it_says_something() -> None:
    limited = pool(claim_unbound_ttl="10m")
    assert ends(view(), limited, had_sandbox=False) == NOON + timedelta(minutes=10)
    assert ends(view(shutdownTime="2026-11-02T12:00:00Z"), limited, had_sandbox=False) == NOON + timedelta(minutes=10)
    assert ends(view(shutdownTime="2026-11-01T12:01:00Z"), limited, had_sandbox=False) == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("metadata", "status", "had_sandbox"),
    [
        ({}, {}, True),
        ({}, {"sandbox": {"name": "box"}}, False),
        ({"annotations": {"agents.x-k8s.io/sandbox-name": "box"}}, {}, False),
        ({"annotations": {"agents.x-k8s.io/claim-first-ready-at": "2026-11-01T12:00:00Z"}}, {}, False),
    ],
)
def test_claim_that_lost_its_sandbox_is_not_one_that_never_had_one(
    metadata: dict[str, Any], status: dict[str, Any], had_sandbox: bool
) -> None:
    assert ends(view(metadata, status), pool(claim_unbound_ttl="10m"), had_sandbox=had_sandbox) is None


@pytest.mark.parametrize("text", ["", "soon", "10", "-5m", "9999999999h"])
def test_value_that_is_no_duration_has_no_effect(text: str) -> None:
    assert ClaimDefaults.of(pool(claim_ttl=text)) == NO_DEFAULTS


def test_changed_defaults_enqueue_all_claims_of_the_pool() -> None:
    caches, enqueued = Caches(), list[str]()

    def enqueue(key: Key, priority: int | None = None) -> None:
        enqueued.append(key.name)

    own_writes = OwnWriteFilter(enqueue, lambda key: False)
    watch_claims(caches, ClaimStates(Random(0)), ManualClock(), enqueue, own_writes)
    spec = {"warmPoolRef": {"name": "pool"}}
    caches.claims.observe(claim(spec=spec, status={"sandbox": {"name": "box"}}, metadata={"resourceVersion": "1"}))
    enqueued.clear()
    made = new(SANDBOX_WARM_POOL, "pool", spec={"sandboxTemplateRef": {"name": "template"}})
    for version, given in enumerate(({}, {"sandpool.dev/claim-ttl": "1h"}, {"sandpool.dev/claim-ttl": "2h"}, {}), 2):
        metadata = {**made["metadata"], "namespace": "default", "uid": "u", "resourceVersion": str(version)}
        caches.pools.observe({**made, "metadata": {**metadata, "generation": 1, "annotations": given}})
    assert len(enqueued) == 3
