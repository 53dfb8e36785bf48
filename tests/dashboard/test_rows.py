"""Rows of claims: the time until a claim was Ready, or the reason why it is unknown."""

from __future__ import annotations

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.dashboard.rows import claim_row

SEEN = "2026-11-01T12:00:00.25Z"
READY = "2026-11-01T12:00:00.2621Z"


def claim(*, ready: bool = True, seen: str = "", first_ready: str = "") -> Object:
    annotations = {labels.CONTROLLER_FIRST_OBSERVED_AT: seen, labels.CLAIM_FIRST_READY_AT: first_ready}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "mine", "annotations": {key: value for key, value in annotations.items() if value}},
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "ready once"])
def test_time_to_ready_is_between_the_two_annotations(ready: bool) -> None:
    row = claim_row(claim(ready=ready, seen=SEEN, first_ready=READY))
    assert (row.latency, row.unmeasured) == (12.1, "")


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (claim(ready=False, seen=SEEN), "it has not been Ready yet"),
        (claim(seen=SEEN), "recorded some seconds after it is Ready"),
        (claim(seen=SEEN, first_ready="unknown"), "it was Ready before this controller could measure it"),
        (claim(first_ready=READY), "the controller does not record when it first saw claims"),
        (claim(seen="yesterday", first_ready=READY), "the controller does not record when it first saw claims"),
        (claim(seen=READY, first_ready=SEEN), "the clocks of two controllers disagree"),
    ],
    ids=["waiting", "just ready", "unknown", "not observed", "unreadable", "clocks"],
)
def test_unknown_time_to_ready_has_a_reason(shown: Object, reason: str) -> None:
    row = claim_row(shown)
    assert (row.latency, row.unmeasured) == (None, reason)
