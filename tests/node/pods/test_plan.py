"""The plan of a pod, step by step."""

from __future__ import annotations

from sandpool.api.labels import FREEZE_WHILE_WARM, WARM_POOL
from sandpool.node.pods.actions import (
    Discard,
    Freeze,
    Kill,
    PostStart,
    Prepare,
    PreStop,
    Release,
    RunProbe,
    Signal,
    Start,
    Thaw,
)
from sandpool.node.pods.spec import ProbeKind
from sandpool.node.pods.state import FailureReason
from tests.node.pods.states import Story, container, running

TCP = {"tcpSocket": {"port": 80}}
HOOK = {"exec": {"command": ["true"]}}
NO_NETWORK = FailureReason("FailedCreatePodSandBox", "no addresses")


def test_plan_of_a_whole_pod_lifetime() -> None:
    story = Story()
    assert story.compute_plan() == [Prepare()]
    assert story.compute_plan() == []
    assert story.prepared() == [Start("main")]
    assert story.compute_plan() == []
    assert story.started() == []
    assert story.deleted() == [Signal("main")]
    assert story.requeue_at == 30.0
    assert story.compute_plan() == []
    assert story.ended(143) == [Release()]
    assert story.compute_plan() == []
    story.state = story.state.cleared()
    assert story.compute_plan() == [Discard()]
    assert story.becomes(discarded=True, releasing=False) == []


def test_failed_preparation_is_retried_with_back_off() -> None:
    story, pauses = Story(), []
    story.compute_plan()
    for _ in range(4):
        story.state = story.state.not_prepared(NO_NETWORK, story.now)
        assert story.compute_plan() == []
        assert story.requeue_at is not None
        pauses.append(story.requeue_at - story.at)
        assert story.passes(pauses[-1]) == [Prepare()]
    assert pauses == [1, 2, 4, 8]


def test_containers_are_started_one_at_a_time() -> None:
    story = Story(containers=[container("one"), container("two")])
    story.compute_plan()
    assert story.prepared() == [Start("one")]
    assert story.started("one") == [Start("two")]


def test_failed_start_is_retried_after_other_containers() -> None:
    story = Story(containers=[container("one"), container("two")])
    story.compute_plan()
    story.prepared()
    story.state = story.state.not_started("one", FailureReason("ErrImagePull", ""), story.now)
    assert story.compute_plan() == [Start("two")]
    assert story.started("two") == []
    assert story.passes(1) == [Start("one")]


def test_post_start_hook_runs_once_and_delays_the_next_container() -> None:
    story = Story(containers=[container("one", lifecycle={"postStart": HOOK}), container("two")])
    story.compute_plan()
    story.prepared()
    assert story.started("one") == [PostStart("one")]
    assert story.compute_plan() == []
    story.state = story.state.hook_done("one")
    assert story.compute_plan() == [Start("two")]


def test_failed_post_start_hook_stops_the_container() -> None:
    story = Story(containers=[container(lifecycle={"postStart": HOOK})])
    story.compute_plan()
    story.prepared()
    story.started()
    story.state = story.state.hook_failed("main", story.now)
    assert story.compute_plan() == [Signal("main")]


def test_ended_container_restarts_after_its_back_off() -> None:
    story = running()
    assert story.ended(1) == [Start("main")]
    story.started()
    assert story.ended(1) == []
    assert story.requeue_at == 10.0
    assert story.passes(9.9) == []
    assert story.passes(0.1) == [Start("main")]


def test_failed_start_does_not_extend_the_crash_back_off() -> None:
    story = running()
    story.ended(1)
    story.state = story.state.not_started("main", FailureReason("RunContainerError", ""), story.now)
    story.compute_plan()
    assert story.passes(1) == [Start("main")]
    story.started()
    story.ended(1)
    assert story.requeue_at == 11.0


def test_probes_run_when_due() -> None:
    story = Story(containers=[container(readinessProbe={**TCP, "initialDelaySeconds": 5})])
    story.compute_plan()
    story.prepared()
    assert story.started() == []
    assert story.requeue_at == 5.0
    assert story.passes(5) == [RunProbe("main", ProbeKind.READINESS)]
    assert story.compute_plan() == []
    story.answered(True, ProbeKind.READINESS)
    assert story.requeue_at == 15.0


def test_other_probes_wait_for_the_startup_probe() -> None:
    story = Story(containers=[container(startupProbe=TCP, readinessProbe=TCP, livenessProbe=TCP)])
    story.compute_plan()
    story.prepared()
    assert story.started() == [RunProbe("main", ProbeKind.STARTUP)]
    sent = story.answered(True, ProbeKind.STARTUP)
    assert sent == [RunProbe("main", ProbeKind.READINESS), RunProbe("main", ProbeKind.LIVENESS)]


def test_failed_liveness_probe_stops_within_its_own_grace_period() -> None:
    probe = {**TCP, "failureThreshold": 1, "terminationGracePeriodSeconds": 3}
    story = Story(containers=[container(livenessProbe=probe)], terminationGracePeriodSeconds=60)
    story.compute_plan()
    story.prepared()
    assert story.started() == [RunProbe("main", ProbeKind.LIVENESS)]
    assert story.answered(False, ProbeKind.LIVENESS) == [Signal("main")]
    assert story.requeue_at == 3.0
    assert story.passes(3) == [Kill("main")]
    assert story.ended(137) == [Start("main")]


def test_stop_runs_hook_then_signal_then_kill() -> None:
    story = running(containers=[container(lifecycle={"preStop": HOOK})])
    assert story.deleted(10) == [PreStop("main", 10.0)]
    assert story.passes(4) == []
    story.state = story.state.stop_hook_done("main", story.now)
    assert story.compute_plan() == [Signal("main")]
    assert story.passes(6) == [Kill("main")]
    assert story.passes(100) == []


def test_long_pre_stop_hook_leaves_two_seconds() -> None:
    story = running(containers=[container(lifecycle={"preStop": HOOK})])
    story.deleted(10)
    story.at = 9.5
    story.state = story.state.stop_hook_done("main", story.now)
    assert story.compute_plan() == [Signal("main")]
    assert story.requeue_at == 11.5


def test_zero_grace_period_sends_no_signal() -> None:
    assert running().deleted(0) == [Kill("main")]
    assert running(containers=[container(lifecycle={"preStop": HOOK})]).deleted(0) == [Kill("main")]
    assert running().becomes(gone=True) == [Kill("main")]


def test_grace_period_can_be_shortened_and_not_extended() -> None:
    story = running()
    story.deleted(60)
    story.passes(10)
    story.deleted(5)
    assert story.requeue_at == 15.0
    story.deleted(600)
    assert story.requeue_at == 15.0


def test_container_that_is_starting_is_stopped_once_it_runs() -> None:
    story = Story()
    story.compute_plan()
    story.prepared()
    assert story.deleted() == []
    assert story.started() == [Signal("main")]


def test_preparation_in_progress_is_released_afterwards() -> None:
    story = Story()
    story.compute_plan()
    assert story.deleted() == []
    assert story.prepared() == [Release()]


def test_sidecars_are_stopped_last_in_reverse_order() -> None:
    sidecars = [container("first", restartPolicy="Always"), container("second", restartPolicy="Always")]
    story = Story(initContainers=sidecars)
    story.compute_plan()
    assert story.prepared() == [Start("first")]
    assert story.started("first") == [Start("second")]
    assert story.started("second") == [Start("main")]
    story.started()
    assert story.deleted() == [Signal("main")]
    assert story.ended(0) == [Signal("second")]
    assert story.ended(0, "second") == [Signal("first")]
    assert story.ended(0, "first") == [Release()]


def test_end_of_grace_kills_all_containers_in_order() -> None:
    story = Story(initContainers=[container("side", restartPolicy="Always")])
    story.compute_plan()
    story.prepared()
    story.started("side")
    story.started()
    story.deleted(5)
    assert story.passes(5) == [Kill("main")]
    assert story.ended(137) == [Kill("side")]


def test_ended_sidecar_is_restarted_without_stopping_the_others() -> None:
    story = Story(initContainers=[container("side", restartPolicy="Always")])
    story.compute_plan()
    story.prepared()
    story.started("side")
    story.started()
    assert story.ended(1, "side") == [Start("side")]


def test_active_deadline_fails_the_pod() -> None:
    story = running(activeDeadlineSeconds=60)
    assert story.requeue_at == 60.0
    assert story.passes(60) == [Signal("main")]
    assert story.ended(143) == [Release()]
    assert story.state.failure is not None


def test_halt_keeps_the_volumes_and_the_pod() -> None:
    story = running()
    assert story.becomes(halt=True, deadline=story.at + 5) == [Signal("main")]
    assert story.ended(143) == [Release(volumes=False)]
    story.state = story.state.cleared()
    assert story.compute_plan() == []


def test_rejected_pod_holds_nothing_and_can_be_deleted() -> None:
    story = Story()
    story.state = story.state.rejected(FailureReason("UnsupportedField", "spec.hostPID"))
    assert story.compute_plan() == [Release()]
    story.state = story.state.cleared()
    assert story.compute_plan() == []
    assert story.deleted() == [Discard()]


WARM = {"annotations": {FREEZE_WHILE_WARM: "true"}, "labels": {WARM_POOL: "abc"}}


def test_warm_pod_is_frozen_and_thawed() -> None:
    story = Story(metadata=WARM, containers=[container(livenessProbe=TCP)])
    story.compute_plan()
    story.prepared()
    assert story.started() == [Freeze()]
    assert story.compute_plan() == []
    story.state = story.state.froze()
    assert story.passes(100) == []
    assert story.becomes(in_use=True) == [Thaw()]
    story.state = story.state.thawed(story.now)
    assert story.compute_plan() == [RunProbe("main", ProbeKind.LIVENESS)]


def test_pod_is_not_frozen_during_a_probe() -> None:
    story = Story(metadata=WARM, containers=[container(livenessProbe=TCP, readinessProbe=TCP)])
    story.compute_plan()
    story.prepared()
    story.started()
    assert story.answered(True, ProbeKind.READINESS) == []
    assert story.answered(True, ProbeKind.LIVENESS) == [Freeze()]


def test_frozen_pod_is_thawed_before_the_stop_signal() -> None:
    story = Story(metadata=WARM)
    story.compute_plan()
    story.prepared()
    story.started()
    story.state = story.state.froze()
    assert story.deleted() == [Thaw()]
    story.state = story.state.thawed(story.now)
    assert story.compute_plan() == [Signal("main")]
