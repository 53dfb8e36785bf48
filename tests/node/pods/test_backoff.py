"""Crash-loop back-off."""

from __future__ import annotations

from sandpool.node.pods.backoff import CrashBackoff, restart_at


def test_first_restart_is_immediate() -> None:
    assert restart_at(None, 100.0) == 100.0


def test_backoff_doubles_up_to_five_minutes() -> None:
    backoff, now, pauses = CrashBackoff.restarted(None, 0.0), 0.0, []
    for _ in range(7):
        pauses.append(restart_at(backoff, now) - now)
        now = restart_at(backoff, now)
        backoff = CrashBackoff.restarted(backoff, now)
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


def test_run_of_more_than_ten_minutes_resets_the_backoff() -> None:
    backoff = CrashBackoff(300.0, since=0.0)
    assert restart_at(backoff, 600.0) == 900.0
    assert restart_at(backoff, 600.1) == 600.1
    assert CrashBackoff.restarted(backoff, 600.1).pause == 10.0
