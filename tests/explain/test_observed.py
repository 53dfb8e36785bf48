"""Views of events, containers and other claims."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.api.views import ClaimView
from sandpool.explain.observed import EventView, IdleContainer, idle_containers, waits_before
from tests.explain.scenes import claim_with, pod_event, pod_warning, scene
from tests.support.claim_objects import claim

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
STAMP = "2026-11-01T12:00:00Z"


@pytest.mark.parametrize(
    "when",
    [
        {"lastTimestamp": STAMP, "eventTime": "2026-01-01T00:00:00.000000Z"},
        {"lastTimestamp": None, "eventTime": "2026-11-01T12:00:00.000000Z"},
        {"metadata": {"creationTimestamp": STAMP}},
    ],
)
def test_event_is_read_from_both_groups(when: dict[str, Any]) -> None:
    about = {"kind": "Pod", "name": "box", "uid": "u"}
    event = {"metadata": {}, "involvedObject": about, "type": "Warning", "reason": "R", "message": "m", **when}
    assert EventView.from_object(event) == EventView("Pod", "box", "u", "Warning", "R", "m", AT)
    about |= {"fieldPath": "spec.containers{c}"}
    found = EventView.from_object({**event, "action": "Pulling"})
    assert (found.action, found.field_path) == ("Pulling", "spec.containers{c}")


def test_empty_event_is_read() -> None:
    assert EventView.from_object({"metadata": {}}) == EventView("", "", "", "", "", "", None)


FAILED = pod_warning("Failed", "Error: the image and its container")
PULLING, PULLED = pod_event("Pulling"), pod_event("Pulled")


@pytest.mark.parametrize(
    ("earlier", "later", "fails"),
    [
        ((), (), False),  # the other events have expired
        ((PULLING,), (), True),
        ((PULLED,), (), False),
        ((PULLING, PULLED), (), False),
        ((PULLED, PULLING), (), True),  # a second pull
        ((), (PULLING,), True),  # the next attempt moved the event
        ((PULLED,), (PULLING,), False),
        ((), (PULLING, PULLED), False),  # may have been either
        ((PULLING, pod_event("Pulled", container="sidecar")), (), True),
        ((pod_event("Pulling", container="sidecar"),), (), False),
        ((pod_event("Pulling", name="other"),), (), False),
    ],
)
def test_pull_failure_follows_from_the_order_of_events(
    earlier: tuple[EventView, ...], later: tuple[EventView, ...], fails: bool
) -> None:
    observed = scene(claim_with(), events=(*earlier, FAILED, *later))
    assert observed.is_pull_failure(FAILED) == fails


@pytest.mark.parametrize(
    ("event", "fails"),
    [
        (pod_warning("InspectFailed", ""), True),
        (pod_warning("ErrImageNeverPull", ""), True),
        (pod_warning("BackOff", "Back-off restarting failed container image"), False),
        (replace(FAILED, action="Pulling"), True),
        (replace(FAILED, action="Starting"), False),
    ],
)
def test_pull_failure_follows_from_reason_and_action(event: EventView, fails: bool) -> None:
    assert scene(claim_with(), events=(event,)).is_pull_failure(event) == fails


@pytest.mark.parametrize(
    ("state", "more", "idle"),
    [
        ({"running": {}}, {}, None),
        ({"terminated": {"exitCode": 0, "reason": "Completed"}}, {}, None),
        ({}, {}, None),
        ({"waiting": {"reason": "ErrImagePull", "message": "no"}}, {}, IdleContainer("c", "ErrImagePull", "no", 0)),
        ({"waiting": {"reason": "Slow"}}, {"restartCount": 2}, IdleContainer("c", "Slow", "", 2)),
        (
            {"waiting": {"reason": "CrashLoopBackOff"}},
            {"restartCount": 2, "lastState": {"terminated": {"exitCode": 3}}},
            IdleContainer("c", "CrashLoopBackOff", "it ended with exit code 3", 2),
        ),
        (
            {"terminated": {"exitCode": 1, "reason": "Error"}},
            {},
            IdleContainer("c", "Error", "it ended with exit code 1", 0),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_idle_containers_are_listed_with_their_reason(
    kind: str, state: dict[str, Any], more: dict[str, Any], idle: IdleContainer | None
) -> None:
    pod = {"status": {kind: [{"name": "c", "state": state, **more}]}}
    assert idle_containers(pod) == (() if idle is None else (idle,))


def test_pod_without_status_has_no_idle_containers() -> None:
    assert idle_containers({}) == ()


def _not_ready(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": ""}]}


def view(name: str, at: str = STAMP, **fields: Any) -> ClaimView:
    metadata = {"creationTimestamp": at, **fields.pop("metadata", {})}
    return ClaimView.from_object(claim(name, metadata=metadata, **fields))


@pytest.mark.parametrize(
    ("other", "before"),
    [
        (view("z", "2026-11-01T11:59:59Z"), True),
        (view("a"), True),  # in the same second the name decides, so that every observer counts alike
        (view("c"), False),
        (view("a", "2026-11-01T12:00:01Z"), False),
        (view("a", pool="other"), False),
        (view("a", status={"sandbox": {"name": "box"}}), False),
        (view("a", status={"conditions": [{"type": "Finished", "status": "True"}]}), False),
        (view("a", metadata={"deletionTimestamp": STAMP}), False),
        (view("a", status=_not_ready("SandboxMissing")), True),
        (view("a", status=_not_ready("EnvVarsInjectionRejected")), False),
        (view("a", status=_not_ready("ClaimLimitReached")), False),
        (view("a", metadata={"creationTimestamp": None}), False),
    ],
)
def test_earlier_claim_waits_before_a_later_one(other: ClaimView, before: bool) -> None:
    assert waits_before(other, view("b")) is before


def test_claim_does_not_wait_for_itself() -> None:
    assert not waits_before(view("b", "2026-11-01T11:00:00Z"), view("b"))
