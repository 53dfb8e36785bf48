"""The state of a probe: thresholds, periods and back-off."""

from __future__ import annotations

import pytest

from sandpool.node.pods.probe_state import ProbeState
from sandpool.node.pods.spec import Probe, ProbeKind


def probe_state(kind: ProbeKind, **fields: float) -> ProbeState:
    return ProbeState.begin(Probe(kind, {}, **fields), 100.0)  # type: ignore[arg-type]


def answers(given: ProbeState, *answers: bool, every: float = 10.0) -> ProbeState:
    now = given.due
    for good in answers:
        given = given.sent().answered(good, now)
        now += every
    return given


@pytest.mark.parametrize(
    ("kind", "good"), [(ProbeKind.STARTUP, False), (ProbeKind.READINESS, False), (ProbeKind.LIVENESS, True)]
)
def test_verdict_before_the_first_result_depends_on_the_kind(kind: ProbeKind, good: bool) -> None:
    assert probe_state(kind).good is good


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ([True], True),
        ([False], False),
        ([True, False, False], True),
        ([True, False, False, False], False),
        ([True, False, False, True, False, False], True),
        ([True, False, False, False, True], True),
    ],
)
def test_readiness_changes_at_its_thresholds(given: list[bool], good: bool) -> None:
    result = answers(probe_state(ProbeKind.READINESS), *given)
    assert (result.good, result.failed) == (good, False)


def test_success_threshold_counts_consecutive_successes() -> None:
    probe = probe_state(ProbeKind.READINESS, success_threshold=3)
    assert not answers(probe, True, True).good
    assert not answers(probe, True, True, False, True, True).good
    assert answers(probe, True, True, True).good


def test_failed_liveness_is_final() -> None:
    failed = answers(probe_state(ProbeKind.LIVENESS), True, False, False, False)
    assert failed.failed and failed.over


def test_startup_probe_ends_after_success() -> None:
    assert answers(probe_state(ProbeKind.STARTUP), False, True).over
    assert not answers(probe_state(ProbeKind.STARTUP), False, False).over
    assert answers(probe_state(ProbeKind.STARTUP), False, False, False).failed


def test_first_probe_waits_for_the_initial_delay() -> None:
    assert probe_state(ProbeKind.READINESS, initial_delay=7.0).due == 107.0


def test_early_probes_back_off_up_to_the_period() -> None:
    probe, sent = probe_state(ProbeKind.READINESS, period=1.0), []
    while probe.due < 103.0:
        sent.append(round(probe.due - 100.0, 3))
        probe = probe.sent().answered(False, probe.due)
    assert sent == [0, 0.02, 0.05, 0.095, 0.162, 0.264, 0.416, 0.643, 0.985, 1.0, 1.769, 2.0]


def test_early_failures_do_not_count() -> None:
    probe, counted = probe_state(ProbeKind.STARTUP, period=10.0, failure_threshold=3), 0
    while not probe.failed:
        counted += probe.counts(False, probe.due)
        now, probe = probe.due, probe.sent().answered(False, probe.due)
    assert (counted, now) == (3, 120.0)


def test_period_applies_after_the_first_success() -> None:
    probe = answers(probe_state(ProbeKind.READINESS), True)
    assert probe.due == 110.0
    bad = probe.sent().answered(False, 110.0)
    assert bad.due == 120.0


def test_missed_probes_are_due_after_thawing() -> None:
    probe = answers(probe_state(ProbeKind.LIVENESS), True).resumed(500.0)
    assert (probe.due, probe.in_flight) == (500.0, False)


def test_readiness_failure_during_a_start_is_no_warning_until_the_threshold() -> None:
    starting = probe_state(ProbeKind.READINESS)
    warned = []
    for number in range(3):
        now = starting.due + 10 * number
        warned.append(starting.warns(now))
        starting = starting.sent().answered(False, now)
    assert warned == [False, False, True]


def test_failure_of_a_ready_container_and_of_a_liveness_probe_is_a_warning() -> None:
    ready = answers(probe_state(ProbeKind.READINESS), True)
    assert ready.warns(ready.due)
    alive = probe_state(ProbeKind.LIVENESS)
    assert alive.warns(alive.due)
