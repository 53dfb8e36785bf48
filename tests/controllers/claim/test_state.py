"""When claims were first seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandpool.controllers.claim.state import FirstSeen

CLAIM = ("default", "claim")
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=1)


def test_the_first_time_counts() -> None:
    seen = FirstSeen()
    assert seen.see(CLAIM, "1", NOON) == NOON
    assert seen.see(CLAIM, "1", LATER) == NOON
    assert seen.get(CLAIM, "1") == NOON


def test_e50_a_claim_made_again_is_another() -> None:
    seen = FirstSeen()
    seen.see(CLAIM, "1", NOON)
    assert seen.get(CLAIM, "2") is None
    assert seen.see(CLAIM, "2", LATER) == LATER


def test_e50_late_news_of_the_old_one_does_not_touch_the_new() -> None:
    seen = FirstSeen()
    seen.see(CLAIM, "2", NOON)
    seen.forget(CLAIM, "1")
    assert seen.get(CLAIM, "2") == NOON


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    seen = FirstSeen()
    seen.see(CLAIM, "1", NOON)
    seen.forget(CLAIM, "1")
    seen.see(CLAIM, "1", LATER)
    seen.forget(CLAIM)
    seen.forget(CLAIM)
    assert len(seen) == 0
