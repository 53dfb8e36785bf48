"""When a pod falls asleep, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.sleep import SleepSettings
from sandpool.node.sleep.policy import MAX_INTERVAL, MIN_INTERVAL, Idleness, Sample, Sleep, decide, interval, observe

FREEZE = SleepSettings(freeze_after=60.0)
BOTH = SleepSettings(freeze_after=60.0, suspend_after=600.0)


@dataclass
class Pod:
    """A pod that is sampled as often as its decisions ask for. ``clients``, ``has_jobs`` and ``cores`` are its load."""

    settings: SleepSettings = FREEZE
    now: float = 1000.0
    clients: int = 0
    has_jobs: bool = False
    cores: float = 0.0
    last_client: float = 0.0
    cpu_seconds: float = 5.0
    frozen: bool = False
    idleness: Idleness | None = None
    slept: list[tuple[float, Sleep]] = field(default_factory=list)

    def runs(self, seconds: float) -> None:
        """Let time pass with this load."""
        end = self.now + seconds
        while True:
            sample = Sample(self.now, self.clients, self.last_client, self.cpu_seconds, self.has_jobs)
            self.idleness = observe(self.idleness, sample, self.settings)
            decision = decide(self.settings, self.idleness, self.now, frozen=self.frozen)
            if decision.sleep is not Sleep.NONE:
                self.slept.append((self.now, decision.sleep))
                self.frozen = True
                if decision.sleep is Sleep.SUSPEND:
                    return
            assert decision.look_at > self.now
            step = min(decision.look_at, end) - self.now
            self.now += step
            self.cpu_seconds += 0.0 if self.frozen else step * self.cores
            if self.now >= end:
                return


def test_pod_without_use_is_frozen_after_its_time() -> None:
    pod = Pod()
    pod.runs(59.9)
    assert pod.slept == []
    pod.runs(0.2)
    assert pod.slept == [(1060.0, Sleep.FREEZE)]


def test_frozen_pod_is_suspended_after_its_time_without_use() -> None:
    pod = Pod(BOTH)
    pod.runs(10_000)
    assert pod.slept == [(1060.0, Sleep.FREEZE), (1600.0, Sleep.SUSPEND)]


def test_pod_that_only_suspends_is_never_frozen() -> None:
    pod = Pod(SleepSettings(suspend_after=60.0))
    pod.runs(1000)
    assert pod.slept == [(1060.0, Sleep.SUSPEND)]


def test_pod_whose_suspension_comes_first_is_not_frozen_before() -> None:
    pod = Pod(SleepSettings(freeze_after=120.0, suspend_after=60.0))
    pod.runs(1000)
    assert pod.slept == [(1060.0, Sleep.SUSPEND)]


@pytest.mark.parametrize("load", [{"clients": 1}, {"has_jobs": True}, {"cores": 0.06}])
def test_pod_in_use_stays_awake(load: dict[str, float]) -> None:
    pod = Pod(BOTH)
    for name, value in load.items():
        setattr(pod, name, value)
    pod.runs(100_000)
    assert pod.slept == []
    for name in load:
        setattr(pod, name, 0)
    end, pod.last_client = pod.now, pod.now
    pod.runs(60 + MAX_INTERVAL)
    ((at, sleep),) = pod.slept
    assert sleep is Sleep.FREEZE
    assert end + 60 <= at <= end + 60 + interval(BOTH)


def test_little_cpu_is_no_use() -> None:
    pod = Pod(cores=0.04)
    pod.runs(61)
    assert pod.slept == [(1060.0, Sleep.FREEZE)]


def test_more_cpu_is_allowed_where_the_settings_say_so() -> None:
    pod = Pod(SleepSettings(freeze_after=60.0, cpu=0.5), cores=0.4)
    pod.runs(61)
    assert pod.slept == [(1060.0, Sleep.FREEZE)]


def test_container_that_restarts_is_in_use() -> None:
    pod = Pod()
    pod.runs(30)
    pod.cpu_seconds = 0.0
    pod.runs(59)
    assert pod.slept == []


def test_client_that_came_and_left_between_two_samples_counts() -> None:
    pod = Pod()
    pod.runs(50)
    pod.last_client = pod.now - 1
    pod.runs(30)
    assert pod.slept == []
    pod.runs(30)
    assert pod.slept == [(pod.last_client + 60, Sleep.FREEZE)]


def test_client_of_a_frozen_pod_defers_its_suspension() -> None:
    pod = Pod(BOTH)
    pod.runs(100)
    pod.last_client, pod.frozen = pod.now, False
    pod.runs(599)
    assert [sleep for _, sleep in pod.slept] == [Sleep.FREEZE, Sleep.FREEZE]
    pod.runs(2)
    assert pod.slept[-1] == (1700.0, Sleep.SUSPEND)


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, MIN_INTERVAL), (20.0, 5.0), (3600.0, MAX_INTERVAL)])
def test_samples_are_a_quarter_of_the_time_apart(seconds: float, expected: float) -> None:
    assert interval(SleepSettings(freeze_after=seconds)) == expected


_LOADS = st.fixed_dictionaries(
    {
        "clients": st.integers(0, 2),
        "has_jobs": st.booleans(),
        "cores": st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    }
)


@given(
    st.sampled_from([FREEZE, BOTH, SleepSettings(suspend_after=45.0), SleepSettings(1.0, 2.0)]),
    st.lists(st.tuples(st.floats(0.01, 200.0), _LOADS), min_size=1, max_size=12),
)
def test_pod_sleeps_exactly_when_it_was_idle_for_its_time(
    settings: SleepSettings, phases: list[tuple[float, dict[str, float | None]]]
) -> None:
    pod = Pod(settings)
    last_use = pod.now
    for seconds, load in phases:
        pod.clients, pod.has_jobs, pod.cores = load["clients"], load["has_jobs"], load["cores"]  # type: ignore[assignment]
        before = pod.now
        used = bool(pod.clients or pod.has_jobs)
        if used and pod.frozen:
            pod.frozen = False  # a client thaws it
        pod.slept.clear()
        pod.runs(seconds)
        if used:
            assert pod.slept == [], "a pod in use fell asleep"
            last_use = pod.last_client = pod.now
        busy = pod.cores > settings.cpu
        for at, _ in pod.slept:
            assert at - last_use >= settings.shortest, "it fell asleep early"
            assert not busy or at - before <= interval(settings), "it fell asleep while it used the CPU"
        if pod.slept and pod.slept[-1][1] is Sleep.SUSPEND:
            return
        if not used and not busy and seconds > settings.shortest + interval(settings):
            assert pod.frozen, "it did not fall asleep"
