"""What becomes of a wake-up during a pass."""

from __future__ import annotations

import pytest

from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.engine.cache.store import Key

BOX, OTHER = Key("default", "box"), Key("default", "other")


class Rig:
    def __init__(self) -> None:
        self.woken: list[Key] = []
        self.left_to_do = False
        self.echoes = OwnWriteFilter(self.woken.append, lambda key: self.left_to_do)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_without_a_pass_a_key_is_woken_at_once(rig: Rig) -> None:
    rig.echoes.enqueue(BOX)
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(OTHER)
        assert rig.woken == [BOX, OTHER]


def test_an_echo_wakes_nobody(rig: Rig) -> None:
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
    assert rig.woken == []


def test_what_is_left_to_do_wakes_when_the_pass_is_done(rig: Rig) -> None:
    rig.left_to_do = True
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
        rig.echoes.enqueue(BOX)
        assert rig.woken == []
    assert rig.woken == [BOX]


def test_nobody_asks_after_a_quiet_pass(rig: Rig) -> None:
    rig.left_to_do = True
    with rig.echoes.reconciling(BOX):
        pass
    assert rig.woken == []


def test_after_a_failure_every_echo_counts(rig: Rig) -> None:
    with pytest.raises(ConnectionError), rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
        raise ConnectionError
    assert rig.woken == [BOX]
    rig.echoes.enqueue(BOX)
    assert rig.woken == [BOX, BOX], "the pass is over"
