"""Pod statuses as a kubelet reports them, and when they are worth a write."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.node.pods.spec import ProbeKind
from sandpool.node.pods.state import ContainerPhase, FailureReason
from sandpool.node.pods.status_throttle import changes, is_urgent
from tests.node.pods.states import Story, container, running

TIME = "2026-01-01T00:00:00Z"
UNREADY = {"reason": "ContainersNotReady", "message": "containers with unready status: [main]"}


def condition(type: str, status: bool, **words: str) -> Object:
    return {"type": type, "status": "True" if status else "False", "lastTransitionTime": TIME, **words}


def state(story: Story, name: str = "main") -> Object:
    status = story.status()
    every = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
    return next(dict(each) for each in every if each["name"] == name)


def test_starting_pod_is_pending() -> None:
    story = Story()
    story.compute_plan()
    assert story.status() == {
        "phase": "Pending",
        "startTime": TIME,
        "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}],
        "containerStatuses": [
            {
                "name": "main",
                "image": "example.com/image:1",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "started": False,
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "lastState": {},
            }
        ],
        "conditions": [
            condition("PodReadyToStartContainers", False),
            condition("Initialized", True),
            condition("Ready", False, **UNREADY),
            condition("ContainersReady", False, **UNREADY),
            condition("PodScheduled", True),
        ],
    }


def test_running_pod_has_addresses_and_container_statuses() -> None:
    status = running().status()
    assert (status["phase"], status["podIP"], status["podIPs"]) == ("Running", "10.1.0.1", [{"ip": "10.1.0.1"}])
    assert status["containerStatuses"][0]["state"] == {"running": {"startedAt": TIME}}
    assert status["containerStatuses"][0]["containerID"] == "sandpool://id-main"
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("PodReadyToStartContainers", "True"),
        ("Initialized", "True"),
        ("Ready", "True"),
        ("ContainersReady", "True"),
        ("PodScheduled", "True"),
    ]


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
    ],
)
def test_phase_after_the_end_follows_restart_policy_and_code(policy: str, code: int, phase: str) -> None:
    story = running(restartPolicy=policy)
    story.ended(code)
    assert story.status()["phase"] == phase


def test_succeeded_pod_has_completed_conditions() -> None:
    story = running(restartPolicy="Never")
    story.ended(0)
    words = {each["type"]: (each["status"], each.get("reason")) for each in story.status()["conditions"]}
    assert words["Initialized"] == ("True", "PodCompleted")
    assert words["Ready"] == words["ContainersReady"] == ("False", "PodCompleted")


def test_restarted_container_has_state_and_last_state() -> None:
    story = running()
    story.at = 5.0
    story.ended(3)
    story.started()
    shown = state(story)
    assert shown["state"] == {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
    assert shown["lastState"]["terminated"] == {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": TIME,
        "finishedAt": "2026-01-01T00:00:05Z",
        "containerID": "sandpool://id-main",
    }
    assert shown["restartCount"] == 1


def test_crash_loop_is_reported_as_waiting() -> None:
    story = running()
    story.ended(1)
    story.started()
    story.ended(1)
    shown = state(story)
    assert shown["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 10s restarting failed container=main pod=pod_space(u-1)",
    }
    assert shown["lastState"]["terminated"]["exitCode"] == 1


def test_failed_container_creation_is_reported_as_waiting() -> None:
    story = Story()
    story.compute_plan()
    story.prepared()
    story.state = story.state.not_started("main", FailureReason("ErrImagePull", "no such host"), story.now)
    assert state(story)["state"] == {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}


def test_repeated_pull_failure_is_image_pull_back_off() -> None:
    story = Story()
    story.compute_plan()
    story.prepared()
    for _ in range(2):
        story.state = story.state.not_started("main", FailureReason("ErrImagePull", "no such host"), story.now)
    waiting = {
        "reason": "ImagePullBackOff",
        "message": f'Back-off pulling image "{story.state.pod.container("main").image}": ErrImagePull: no such host',
    }
    assert state(story)["state"] == {"waiting": waiting}
    story.state = story.state.with_container(
        "main", phase=ContainerPhase.STARTING
    )  # while it is tried it is said all the same
    assert state(story)["state"] == {"waiting": waiting}
    story.state = story.state.not_started("main", FailureReason("CreateContainerError", "no space"), story.now)
    assert state(story)["state"] == {"waiting": {"reason": "CreateContainerError", "message": "no space"}}


def test_failed_preparation_is_reported_as_waiting() -> None:
    story = Story()
    story.compute_plan()
    story.state = story.state.not_prepared(FailureReason("FailedMount", 'volume "v" is missing'), story.now)
    assert state(story)["state"] == {"waiting": {"reason": "ContainerCreating", "message": 'volume "v" is missing'}}


def test_init_containers_have_their_statuses() -> None:
    story = Story(initContainers=[container("one"), container("two")])
    story.compute_plan()
    story.prepared()
    story.started("one")
    assert "running" in state(story, "one")["state"]
    assert state(story, "two")["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert state(story, "main")["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert story.status()["phase"] == "Pending"
    story.ended(0, "one")
    assert (state(story, "one")["ready"], state(story, "two")["ready"]) == (True, False)
    initialized = next(each for each in story.status()["conditions"] if each["type"] == "Initialized")
    assert initialized == condition(
        "Initialized", False, reason="ContainersNotInitialized", message="containers with incomplete status: [two]"
    )


def test_rejected_pod_is_failed() -> None:
    story = Story()
    story.state = story.state.rejected(FailureReason("UnsupportedField", "this node does not support spec.hostPID"))
    status = story.status()
    assert (status["phase"], status["reason"]) == ("Failed", "UnsupportedField")
    assert status["message"] == "this node does not support spec.hostPID"
    assert "containerStatuses" not in status


def test_unchanged_condition_keeps_its_transition_time() -> None:
    story = running()
    first = story.status()
    story.at = 100.0
    assert story.status(first) == first
    story.state = story.state.with_container("main", probe_states={})
    story.ended(1)
    ready = next(each for each in story.status(first)["conditions"] if each["type"] == "Ready")
    assert ready["lastTransitionTime"] == "2026-01-01T00:01:40Z"


# -- patches -------------------------------------------------------------------------------------------------------


def test_unchanged_status_needs_no_patch() -> None:
    status = running().status()
    assert changes(status, status) == {}
    # As the API stores it: without empty values, and with fields that the node never writes.
    stored = {**status, "qosClass": "BestEffort"}
    stored["conditions"] = [{**each, "lastProbeTime": None} for each in status["conditions"]]
    stored["containerStatuses"] = [
        {key: value for key, value in each.items() if value != {}} for each in status["containerStatuses"]
    ]
    assert changes(stored, status) == {}


def test_patch_contains_only_changes() -> None:
    story = running(readinessGates=[{"conditionType": "fed"}])
    before = story.status()
    fed = {"type": "fed", "status": "True"}
    after = story.status({**before, "conditions": [*before["conditions"], fed]})
    assert changes(before, after) == {"conditions": [{**condition("Ready", True), "reason": None, "message": None}]}


def test_patch_replaces_addresses() -> None:
    before = running().status()
    after = {**before, "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}]}
    assert changes(before, after) == {"podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}, {"$patch": "replace"}]}


def with_probe(answer: bool | None) -> Object:
    story = Story(containers=[container(readinessProbe={"tcpSocket": {"port": 80}})])
    story.compute_plan()
    story.prepared()
    story.started()
    if answer is not None:
        story.answered(answer, ProbeKind.READINESS)
    return story.status()


def failed(reason: str, message: str) -> Object:
    story = Story()
    story.compute_plan()
    story.prepared()
    story.state = story.state.not_started("main", FailureReason(reason, message), story.now)
    return story.status()


def ended(**spec: Any) -> Object:
    story = running(**spec)
    story.ended(0)
    return story.status()


@pytest.mark.parametrize(
    ("before", "after", "urgent"),
    [
        ({}, Story().status(), False),
        ({}, with_probe(None), False),
        (with_probe(None), with_probe(True), True),
        (with_probe(True), with_probe(None), True),
        ({}, failed("ErrImagePull", "no such host"), True),
        (failed("ErrImagePull", "one"), failed("ErrImagePull", "two"), False),
        ({}, running().status(), True),
        (running().status(), ended(restartPolicy="Never"), True),
    ],
)
def test_change_is_urgent_if_clients_act_on_it(before: Object, after: Object, urgent: bool) -> None:
    assert is_urgent(before, after) is urgent
