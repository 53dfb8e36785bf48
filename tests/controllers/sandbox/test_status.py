from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxStatus, SandboxView
from sandpool.controllers.sandbox.conditions import Findings
from sandpool.controllers.sandbox.status import status, status_patch, urgent
from sandpool.kube.patches import merge_patch
from tests.support import sandbox_objects
from tests.support.sandbox_objects import pod_status

NOW = "2026-01-02T03:04:05Z"
SELECTOR = "agents.x-k8s.io/sandbox-name-hash=374de8f5"
ELSEWHERE = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}
BOX = sandbox_objects.sandbox("my-sandbox")


def box(before: SandboxStatus | None = None, generation: int = 1, **spec: Any) -> SandboxView:
    known = {} if before is None else {"status": before.to_object()}
    return SandboxView.from_object(
        sandbox_objects.sandbox("my-sandbox", spec=spec, metadata={"generation": generation}, **known)
    )


def pod(reported: Object | None = None, *, node: str = "", foreign: bool = False) -> PodView:
    metadata = {"ownerReferences": [ELSEWHERE]} if foreign else {}
    return PodView.from_object(
        sandbox_objects.sandbox_pod(BOX, metadata=metadata, spec={"nodeName": node}, status=reported or {})
    )


def computed(
    findings: Findings, before: SandboxStatus | None = None, generation: int = 1, **spec: Any
) -> SandboxStatus:
    return status(box(before, generation, **spec), findings, NOW, "cluster.local")


RUNNING = pod_status("Running", ready=True, ips=["10.0.0.1", "fd00::1"])
READY = computed(Findings(pod(RUNNING, node="n1")))

# --- what it says ----------------------------------------------------------------------------------------------------


def test_the_status_of_a_ready_sandbox() -> None:
    assert replace(READY, conditions=[]) == SandboxStatus(
        conditions=[], node_name="n1", pod_ips=("10.0.0.1", "fd00::1"), selector=SELECTOR
    )
    assert READY.ready


def test_edge_02_the_selector_outlives_the_pod() -> None:
    after = computed(Findings(), READY)
    assert (after.node_name, after.pod_ips, after.selector) == ("", (), SELECTOR)
    assert computed(Findings()).selector == ""


def test_edge_02_and_03_a_foreign_pod_sets_the_selector_and_leaks_nothing() -> None:
    after = computed(Findings(pod(RUNNING, node="n1", foreign=True)), operatingMode="Suspended")
    assert (after.node_name, after.pod_ips, after.selector) == ("", (), SELECTOR)


def test_a_service_is_named_with_its_domain() -> None:
    sandbox = box(service=True)
    after = status(sandbox, Findings(pod(RUNNING), service=True), NOW, "example.org")
    assert (after.service, after.service_fqdn) == ("my-sandbox", "my-sandbox.default.svc.example.org")
    assert replace(computed(Findings(), after), conditions=[]).service == ""


def test_a_service_of_which_nothing_is_known_stays_as_it_was() -> None:
    before = replace(READY, service="my-sandbox", service_fqdn="my-sandbox.default.svc.cluster.local")
    after = computed(Findings(pod(RUNNING), service=None, errors=("x",)), before)
    assert (after.service, after.service_fqdn) == (before.service, before.service_fqdn)


# --- how it is written -----------------------------------------------------------------------------------------------


def test_what_has_not_changed_is_not_written() -> None:
    assert status_patch(READY, computed(Findings(pod(RUNNING, node="n1")), READY)) is None


def test_a_patch_has_what_changed_and_removes_what_became_empty() -> None:
    after = computed(Findings(), READY)
    patch = status_patch(READY, after)
    assert patch == {"status": {"conditions": after.conditions, "nodeName": None, "podIPs": None}}
    assert merge_patch({"status": READY.to_object()}, patch) == {"status": after.to_object()}


# --- when it is written ----------------------------------------------------------------------------------------------

NOTHING = SandboxStatus()
CREATED = computed(Findings(pod(pod_status("Pending", scheduled=None))))
BOUND = computed(Findings(pod(pod_status("Pending"), node="n1")))
STARTED = computed(Findings(pod(pod_status("Running", ips=["10.0.0.1"]), node="n1")))
STUCK = computed(Findings(pod(pod_status("Pending", scheduled="False", reason="Unschedulable", message="0/3 nodes"))))
ERROR = computed(Findings(pod_error="x", errors=("x",)))
OTHER_ERROR = computed(Findings(pod_error="y", errors=("y",)))
SUSPENDING = computed(Findings(pod(RUNNING, node="n1")), operatingMode="Suspended")
SUSPENDED = computed(Findings(), operatingMode="Suspended")
FAILED = computed(Findings(pod(pod_status("Failed"))))
TWO_PODS = computed(Findings(pod_count=2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOTHING, CREATED),
        (NOTHING, BOUND),
        (NOTHING, STARTED),
        (CREATED, BOUND),
        (BOUND, STARTED),
        (STARTED, computed(Findings())),
        (CREATED, replace(CREATED, service="my-sandbox")),
    ],
    ids=["created", "bound", "started", "bound later", "started later", "pod lost on the way", "service made"],
)
def test_a_launch_under_way_can_wait(before: SandboxStatus, after: SandboxStatus) -> None:
    assert status_patch(before, after) is not None
    assert not urgent(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NOTHING, READY),
        (STARTED, READY),
        (READY, STARTED),
        (READY, replace(READY, pod_ips=("10.0.0.9",))),
        (NOTHING, STUCK),
        (STUCK, BOUND),
        (STUCK, CREATED),
        (NOTHING, ERROR),
        (ERROR, OTHER_ERROR),
        (ERROR, BOUND),
        (READY, SUSPENDING),
        (SUSPENDING, SUSPENDED),
        (SUSPENDED, CREATED),
        (STARTED, FAILED),
        (NOTHING, FAILED),
        (READY, TWO_PODS),
        (TWO_PODS, READY),
    ],
    ids=[
        "ready at last",
        "ready",
        "no longer ready",
        "address of a ready one",
        "unschedulable",
        "scheduled after all",
        "no longer unschedulable",
        "error",
        "another error",
        "error gone",
        "suspending",
        "suspended",
        "resuming",
        "failed",
        "failed at once",
        "two pods",
        "one again",
    ],
)
def test_what_somebody_may_act_on_is_urgent(before: SandboxStatus, after: SandboxStatus) -> None:
    assert urgent(before, after)


def test_edge_17_a_node_alone_waits_before_ready_and_is_written_after() -> None:
    assert not urgent(STARTED, replace(STARTED, node_name="n2"))
    assert urgent(READY, replace(READY, node_name="n2"))


def test_other_words_for_unschedulable_can_wait_and_another_reason_cannot() -> None:
    def stuck(reason: str, message: str) -> SandboxStatus:
        reported = pod_status("Pending", scheduled="False", reason=reason, message=message)
        return computed(Findings(pod(reported)))

    assert not urgent(STUCK, stuck("Unschedulable", "0/4 nodes"))
    assert urgent(STUCK, stuck("SchedulingGated", "0/3 nodes"))


@pytest.mark.parametrize("before", [READY, SUSPENDED, FAILED])
def test_a_generation_that_changed_nothing_else_can_wait(before: SandboxStatus) -> None:
    after = replace(before, conditions=[{**each, "observedGeneration": 2} for each in before.conditions])
    assert status_patch(before, after) is not None
    assert not urgent(before, after)
