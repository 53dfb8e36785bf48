"""Events as events.k8s.io/v1 wants them."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.events import EventSpec, claim_expired
from sandpool.engine.events import ObjectReference, clipped, event_name, event_namespace, new_event, series

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
CLAIM = ObjectReference("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", "a", "team", "u-1", "17")


def test_new_event_has_the_fields_of_events_v1() -> None:
    assert new_event(CLAIM, claim_expired(), "a.1f", "host", NOW) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a.1f", "namespace": "team"},
        "eventTime": "2026-01-02T03:04:05.000678Z",
        "type": "Normal",
        "reason": "ClaimExpired",
        "action": "Claim Expired",
        "note": "Claim expired",
        "regarding": {
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxClaim",
            "namespace": "team",
            "name": "a",
            "uid": "u-1",
            "resourceVersion": "17",
        },
        "reportingController": "sandboxclaim-controller",
        "reportingInstance": "sandboxclaim-controller-host",
    }


def test_series_has_count_and_last_observed_time() -> None:
    assert series(3, NOW) == {"series": {"count": 3, "lastObservedTime": "2026-01-02T03:04:05.000678Z"}}


def test_events_of_cluster_scoped_objects_are_in_namespace_default() -> None:
    node = ObjectReference("v1", "Node", "n")
    assert event_namespace(node) == "default"
    assert new_event(node, claim_expired(), "n.1", "host", NOW)["regarding"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n",
    }


def test_reference_is_made_from_an_object() -> None:
    metadata = {"name": "a", "namespace": "team", "uid": "u-1", "resourceVersion": "18"}
    claim = {"apiVersion": CLAIM.api_version, "kind": "SandboxClaim", "metadata": metadata}
    assert ObjectReference.to(claim) == CLAIM, "another version is the same object"
    assert ObjectReference.to(claim).resource_version == "18"
    assert ObjectReference.to({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}) == ObjectReference(
        "v1", "Node", "n"
    )


def test_event_name_is_a_uuid_where_the_object_name_is_too_long() -> None:
    assert event_name(CLAIM, 0x17F3) == "a.17f3"
    long = event_name(ObjectReference("v1", "Pod", "p" * 250, "team"), 2**60)
    assert len(long) == 36, "a name the API would refuse becomes a UUID"


@settings(deadline=None)
@given(st.text(), st.integers(3, 50))
def test_clipped_text_fits_the_limit_and_is_a_prefix(text: str, limit: int) -> None:
    result = clipped(text, limit)
    assert len(result.encode(errors="replace")) <= limit
    if len(text.encode(errors="replace")) <= limit:
        assert result == text
    else:
        assert result.endswith("…")
        assert text.startswith(result[:-1])


def test_long_fields_of_an_event_are_clipped() -> None:
    event = new_event(CLAIM, EventSpec("c" * 60, "Warning", "r" * 200, "a" * 200, "ü" * 600), "n", "h" * 200, NOW)
    assert {field: len(event[field].encode()) for field in ("reason", "action", "note", "reportingInstance")} == {
        "reason": 128,
        "action": 128,
        "note": 1023,  # 1024 would be half a character
        "reportingInstance": 128,
    }
