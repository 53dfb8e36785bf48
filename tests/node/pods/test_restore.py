"""Pod states restored from statuses in the API."""

from __future__ import annotations

import pytest

from sandpool.node.pods.phase import phase
from sandpool.node.pods.restore import mark_lost, mark_running, reset_init_containers, restore_state, runs
from sandpool.node.pods.spec import Pod, ProbeKind
from sandpool.node.pods.state import ContainerPhase, FailureReason, PodState
from tests.node.pods.states import Story, container, running


def again(story: Story) -> PodState:
    """Return the state that another agent restores a minute later."""
    story.at += 60
    found = story.state.pod.object
    return restore_state(Pod.read({**found, "status": story.status()}), story.now)


def test_pod_without_status_is_restored_as_waiting() -> None:
    story = Story()
    state = restore_state(story.state.pod, story.now)
    assert state["main"].phase is ContainerPhase.WAITING
    assert state.start_time == story.now.time


def test_reported_container_that_is_found_runs() -> None:
    story = running()
    state = again(story)
    assert runs(state.pod, "main")
    assert state.start_time == story.state.start_time
    found = mark_running(state, state.pod.containers[0], story.state["main"].since.time, story.now)  # type: ignore[union-attr]
    assert found["main"].ready
    assert found["main"].since is not None and found["main"].since.at == 0.0


def test_reported_container_that_is_missing_is_lost() -> None:
    story = running(restartPolicy="Never")
    state = again(story)
    state = mark_lost(state, state.pod.containers[0], story.now)
    assert phase(state) == "Failed"
    termination = state["main"].termination
    assert termination is not None and (termination.exit_code, termination.reason) == (137, "ContainerStatusUnknown")


def test_termination_and_the_previous_one_are_restored() -> None:
    story = running(restartPolicy="OnFailure")
    story.ended(1)
    story.started()
    story.ended(0)
    state = again(story)
    known = state["main"]
    assert (known.phase, known.restarts) == (ContainerPhase.ENDED, 1)
    assert known.termination is not None and known.previous is not None
    assert (known.termination.exit_code, known.previous.exit_code) == (0, 1)
    assert phase(state) == "Succeeded"


def test_crash_loop_continues() -> None:
    story = running()
    story.ended(1)
    story.started()
    story.ended(1)
    state = again(story)
    assert (state["main"].phase, state["main"].restarts) == (ContainerPhase.ENDED, 1)


@pytest.mark.parametrize("reason", ["UnsupportedField", "OutOfcpu", "DeadlineExceeded"])
def test_failed_pod_keeps_its_reason(reason: str) -> None:
    story = Story()
    problem = FailureReason(reason, "words")
    rejected = reason != "DeadlineExceeded"
    story.becomes(rejection=problem) if rejected else story.becomes(failure=problem)
    state = again(story)
    assert phase(state) == "Failed"
    assert (state.rejection if rejected else state.failure) == problem


def test_succeeded_probes_stay_succeeded() -> None:
    probe = {"tcpSocket": {"port": 80}}
    story = Story(containers=[container(startupProbe=probe, readinessProbe=probe, livenessProbe=probe)])
    story.compute_plan()
    story.prepared()
    story.started()
    story.answered(True, ProbeKind.STARTUP)
    story.answered(True, ProbeKind.READINESS)
    state = again(story)
    found = mark_running(state, state.pod.containers[0], story.now.time, story.now)
    assert found["main"].ready
    assert found["main"].probe_states[ProbeKind.LIVENESS].good


def test_init_containers_run_again_if_no_container_is_left() -> None:
    story = Story(initContainers=[container("init")])
    story.compute_plan()
    story.prepared()
    story.started("init")
    story.ended(0, "init")
    story.started()
    state = again(story)
    assert state["init"].phase is ContainerPhase.ENDED
    assert reset_init_containers(state)["init"].phase is ContainerPhase.WAITING


def test_init_containers_of_an_ended_pod_do_not_run_again() -> None:
    story = Story(initContainers=[container("init")], restartPolicy="Never")
    story.compute_plan()
    story.prepared()
    story.started("init")
    story.ended(0, "init")
    story.started()
    story.ended(0)
    state = again(story)
    assert reset_init_containers(state) is state
