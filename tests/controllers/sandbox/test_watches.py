from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from sandpool.api.views import Owner, PodView, SandboxStatus, SandboxView, Scheduling
from sandpool.controllers.sandbox.watches import deferred_pod_fields, sandbox_fields, urgent_pod_fields
from tests.support import sandbox_objects

BOX = SandboxView.from_object(sandbox_objects.sandbox("box"))
POD = PodView.from_object(sandbox_objects.sandbox_pod(sandbox_objects.sandbox("box")))
CREATED = replace(POD, phase="Pending")
BOUND = replace(CREATED, node_name="n1", scheduling=Scheduling("True", "", ""))
STARTED = replace(BOUND, phase="Running", ips=("10.0.0.1",))
READY = replace(STARTED, ready=True)


def test_launch_enqueues_at_once_only_when_the_pod_is_ready() -> None:
    launch = [POD, CREATED, BOUND, STARTED, READY]
    enqueued = [urgent_pod_fields(before) != urgent_pod_fields(after) for before, after in pairwise(launch)]
    assert enqueued == [False, False, False, True]


@pytest.mark.parametrize(("before", "after"), [(POD, CREATED), (CREATED, BOUND), (BOUND, STARTED)])
def test_other_steps_of_a_launch_enqueue_with_a_delay(before: PodView, after: PodView) -> None:
    assert deferred_pod_fields(before) != deferred_pod_fields(after)


@pytest.mark.parametrize(
    "after",
    [
        replace(READY, ready=False),
        replace(READY, phase="Failed"),
        replace(READY, ips=("10.0.0.2",)),
        replace(READY, node_name="n2"),
        replace(READY, labels={}),
        replace(READY, annotations={"a": "b"}),
        replace(READY, owner=None),
        replace(READY, uid="another"),
        replace(READY, deletion_timestamp=datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)
def test_any_change_of_a_ready_pod_enqueues_at_once(after: PodView) -> None:
    assert urgent_pod_fields(READY) != urgent_pod_fields(after)


def test_unschedulable_pod_enqueues_at_once() -> None:
    stuck = replace(CREATED, scheduling=Scheduling("False", "Unschedulable", "0/3 nodes"))
    assert urgent_pod_fields(CREATED) != urgent_pod_fields(stuck)
    assert urgent_pod_fields(stuck) == urgent_pod_fields(
        replace(stuck, scheduling=Scheduling("False", "Unschedulable", "0/4 nodes"))
    )


def test_status_change_enqueues_because_its_response_may_be_lost() -> None:
    assert sandbox_fields(BOX) == sandbox_fields(replace(BOX, resource_version="2"))
    assert sandbox_fields(BOX) != sandbox_fields(replace(BOX, status=SandboxStatus(node_name="n1")))


@pytest.mark.parametrize(
    "after",
    [
        replace(BOX, generation=2),
        replace(BOX, labels={"a": "b"}),
        replace(BOX, annotations={"a": "b"}),
        replace(BOX, owner=Owner("g", "K", "n", "u")),
        replace(BOX, uid="another"),
    ],
)
def test_foreign_change_of_a_sandbox_enqueues(after: SandboxView) -> None:
    assert sandbox_fields(BOX) != sandbox_fields(after)
