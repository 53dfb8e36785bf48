"""Lives read back from statuses."""

from __future__ import annotations

import pytest
from tests.node.pods.states import Story, container, running

from sandpool.node.pods.phase import phase
from sandpool.node.pods.restore import found_running, lost, restored, runs, started_over
from sandpool.node.pods.spec import Pod, ProbeKind
from sandpool.node.pods.state import Life, Problem, Stage


def again(story: Story) -> Life:
    """As another agent finds it a minute later."""
    story.at += 60
    found = story.life.pod.object
    return restored(Pod.read({**found, "status": story.status()}), story.now)


def test_a_pod_nobody_has_begun() -> None:
    story = Story()
    life = restored(story.life.pod, story.now)
    assert life["main"].stage is Stage.WAITING
    assert life.begun == story.now.time


def test_a_container_that_ran() -> None:
    story = running()
    life = again(story)
    assert runs(life.pod, "main")
    assert life.begun == story.life.begun
    found = found_running(life, life.pod.containers[0], story.life["main"].since.time, story.now)  # type: ignore[union-attr]
    assert found["main"].ready
    assert found["main"].since is not None and found["main"].since.at == 0.0


def test_a_container_that_ran_and_is_not_there() -> None:
    story = running(restartPolicy="Never")
    life = again(story)
    life = lost(life, life.pod.containers[0], story.now)
    assert phase(life) == "Failed"
    ending = life["main"].ending
    assert ending is not None and (ending.exit_code, ending.reason) == (137, "ContainerStatusUnknown")


def test_an_end_and_the_one_before() -> None:
    story = running(restartPolicy="OnFailure")
    story.ended(1)
    story.started()
    story.ended(0)
    life = again(story)
    known = life["main"]
    assert (known.stage, known.restarts) == (Stage.ENDED, 1)
    assert known.ending is not None and known.previous is not None
    assert (known.ending.exit_code, known.previous.exit_code) == (0, 1)
    assert phase(life) == "Succeeded"


def test_a_crash_loop_goes_on() -> None:
    story = running()
    story.ended(1)
    story.started()
    story.ended(1)
    life = again(story)
    assert (life["main"].stage, life["main"].restarts) == (Stage.ENDED, 1)


@pytest.mark.parametrize("reason", ["UnsupportedField", "OutOfcpu", "DeadlineExceeded"])
def test_a_pod_that_failed_for_a_reason_has_failed(reason: str) -> None:
    story = Story()
    problem = Problem(reason, "words")
    refused = reason != "DeadlineExceeded"
    story.becomes(refusal=problem) if refused else story.becomes(doom=problem)
    life = again(story)
    assert phase(life) == "Failed"
    assert (life.refusal if refused else life.doom) == problem


def test_probes_that_had_passed_have_passed() -> None:
    probe = {"tcpSocket": {"port": 80}}
    story = Story(containers=[container(startupProbe=probe, readinessProbe=probe, livenessProbe=probe)])
    story.decide()
    story.prepared()
    story.started()
    story.answered(True, ProbeKind.STARTUP)
    story.answered(True, ProbeKind.READINESS)
    life = again(story)
    found = found_running(life, life.pod.containers[0], story.now.time, story.now)
    assert found["main"].ready
    assert found["main"].tallies[ProbeKind.LIVENESS].good


def test_init_containers_run_again_if_nothing_else_is_left() -> None:
    story = Story(initContainers=[container("init")])
    story.decide()
    story.prepared()
    story.started("init")
    story.ended(0, "init")
    story.started()
    life = again(story)
    assert life["init"].stage is Stage.ENDED
    assert started_over(life)["init"].stage is Stage.WAITING


def test_the_init_containers_of_a_pod_that_has_ended_do_not() -> None:
    story = Story(initContainers=[container("init")], restartPolicy="Never")
    story.decide()
    story.prepared()
    story.started("init")
    story.ended(0, "init")
    story.started()
    story.ended(0)
    life = again(story)
    assert started_over(life) is life
