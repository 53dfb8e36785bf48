from __future__ import annotations

import pytest

from sandpool.api import events
from sandpool.api.events import EventSpec


def test_event_texts_are_those_of_the_go_implementation() -> None:
    assert events.sandbox_adopted("s") == EventSpec(
        "sandboxclaim-controller", "Normal", "SandboxAdopted", "Adoption", 'Adopted warm pool Sandbox "s"'
    )
    assert events.sandbox_provisioned("s") == EventSpec(
        "sandboxclaim-controller", "Normal", "SandboxProvisioned", "Provisioning", 'Created Sandbox "s"'
    )
    assert events.claim_expired() == EventSpec(
        "sandboxclaim-controller", "Normal", "ClaimExpired", "Claim Expired", "Claim expired"
    )
    assert events.deleting_claim("Delete") == EventSpec(
        "sandboxclaim-controller", "Normal", "ClaimExpired", "Deleting", "Deleting Claim (ShutdownPolicy=Delete)"
    )
    assert events.multiple_pods("m") == EventSpec("sandbox-controller", "Warning", "MultiplePods", "Reconciling", "m")
    assert events.warm_pool_not_progressing(2, 3, 300) == EventSpec(
        "sandboxwarmpool-controller",
        "Warning",
        "WarmPoolNotProgressing",
        "Reconciling",
        "2/3 sandboxes are unschedulable past the 5m0s readiness grace period; holding them instead of replacing "
        "(replacements would be equally unschedulable)",
    )
    assert events.warm_pool_progressing() == EventSpec(
        "sandboxwarmpool-controller",
        "Normal",
        "WarmPoolProgressing",
        "Reconciling",
        "Warm pool is progressing again",
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
        (59, "59s"),
        (1.25, "1.25s"),
        (0.5, "500ms"),
        (0.0015, "1.5ms"),
        (0.000002, "2µs"),
        (-90, "-1m30s"),
    ],
)
def test_durations_are_printed_as_in_go(seconds: float, text: str) -> None:
    assert events.go_duration(seconds) == text
