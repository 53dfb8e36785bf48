from __future__ import annotations

from sandpool.api.views import WarmPoolStatus
from sandpool.controllers.warmpool.progress import Progress


def test_waiting_is_not_stalling() -> None:
    assert not Progress().observe("t", good=0, desired=3, stuck=0).has_stalled


def test_a_member_that_never_became_ready_stalls_the_pool() -> None:
    assert Progress("t", 2).observe("t", good=2, desired=3, stuck=1) == Progress("t", 2, True)


def test_it_stays_stalled_while_the_replacement_is_young() -> None:
    assert Progress("t", 2, True).observe("t", good=2, desired=3, stuck=0).has_stalled


def test_claims_do_not_look_like_progress() -> None:
    assert Progress("t", 2, True).observe("t", good=1, desired=3, stuck=0) == Progress("t", 1, True)


def test_another_good_member_is_progress() -> None:
    assert not Progress("t", 1, True).observe("t", good=2, desired=3, stuck=0).has_stalled
    assert not Progress("t", 1, True).observe("t", good=2, desired=3, stuck=1).has_stalled


def test_a_full_pool_has_not_stalled() -> None:
    assert not Progress("t", 3, True).observe("t", good=3, desired=3, stuck=1).has_stalled
    assert not Progress("t", 1, True).observe("t", good=1, desired=1, stuck=0).has_stalled


def test_a_changed_template_gets_another_chance() -> None:
    assert Progress("t", 2, True).observe("u", good=0, desired=3, stuck=0) == Progress("u", 0, False)
    assert Progress("t", 0).observe("u", good=1, desired=3, stuck=1) == Progress("u", 1, True)


def test_a_restart_does_not_forget() -> None:
    condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    recalled = Progress.recalled(WarmPoolStatus(conditions=[condition]))
    first = recalled.observe("t", good=1, desired=3, stuck=0)
    assert first.has_stalled
    assert not first.observe("t", good=2, desired=3, stuck=0).has_stalled
    assert not recalled.observe("t", good=3, desired=3, stuck=0).has_stalled
    assert Progress.recalled(WarmPoolStatus()) == Progress()


def test_what_was_good_before_the_first_look_is_no_progress() -> None:
    assert Progress().observe("t", good=2, desired=3, stuck=1) == Progress("t", 2, True)
