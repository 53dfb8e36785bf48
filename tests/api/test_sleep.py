"""The annotations that let sandboxes fall asleep."""

from __future__ import annotations

import pytest

from sandpool.api.labels import IDLE_CPU, IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER
from sandpool.api.sleep import AWAKE, DEFAULT_CPU, MIN_SECONDS, SleepSettings, is_sleep_time, read_sleep_settings


@pytest.mark.parametrize("annotations", [None, {}, {"other": "5m"}, {IDLE_CPU: "1"}])
def test_without_a_time_a_sandbox_stays_awake(annotations: dict[str, str] | None) -> None:
    assert read_sleep_settings(annotations) is AWAKE
    assert not AWAKE.sleeps


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0), ("10ms", MIN_SECONDS), ("0", MIN_SECONDS)]
)
def test_times_are_durations(text: str, seconds: float) -> None:
    assert read_sleep_settings({IDLE_FREEZE_AFTER: text}) == SleepSettings(freeze_after=seconds)
    assert read_sleep_settings({IDLE_SUSPEND_AFTER: text}) == SleepSettings(suspend_after=seconds)
    assert is_sleep_time(text)


def test_never_switches_one_kind_off() -> None:
    settings = read_sleep_settings({IDLE_FREEZE_AFTER: "never", IDLE_SUSPEND_AFTER: "1h"})
    assert settings == SleepSettings(suspend_after=3600.0)
    assert settings.shortest == 3600.0
    assert is_sleep_time("never")
    assert not read_sleep_settings({IDLE_FREEZE_AFTER: "never"}).sleeps


def test_cpu_is_a_quantity() -> None:
    settings = read_sleep_settings({IDLE_FREEZE_AFTER: "5m", IDLE_SUSPEND_AFTER: "1h", IDLE_CPU: "200m"})
    assert settings == SleepSettings(300.0, 3600.0, 0.2)
    assert settings.shortest == 300.0


@pytest.mark.parametrize("text", ["soon", "5", "-5m", "5 m", ""])
def test_time_that_cannot_be_read_is_a_problem_and_no_sleep(text: str) -> None:
    settings = read_sleep_settings({IDLE_FREEZE_AFTER: text})
    assert not settings.sleeps
    assert settings.problems == (
        f'{IDLE_FREEZE_AFTER}: "{text}" is not a duration: use a form like 30s, 5m or 1h30m, or "never"',
    )
    assert not is_sleep_time(text)


def test_cpu_that_cannot_be_read_is_a_problem() -> None:
    settings = read_sleep_settings({IDLE_FREEZE_AFTER: "5m", IDLE_CPU: "much"})
    assert (settings.freeze_after, settings.cpu) == (300.0, DEFAULT_CPU)
    assert settings.problems == (f'{IDLE_CPU}: "much" is not a number of cores: use a form like 50m or 0.1',)
