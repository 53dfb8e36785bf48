"""What becomes of a wake-up during a pass."""

from __future__ import annotations

import pytest

from sandpool.api.resource import Key
from sandpool.controllers.own_writes import OwnWriteFilter

BOX, OTHER = Key("default", "box"), Key("default", "other")


class Rig:
    def __init__(self) -> None:
        self.woken: list[Key] = []
        self.left_to_do = False
        self.echoes = OwnWriteFilter(self.woken.append, lambda key: self.left_to_do)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_key_without_a_running_reconcile_is_enqueued_at_once(rig: Rig) -> None:
    rig.echoes.enqueue(BOX)
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(OTHER)
        assert rig.woken == [BOX, OTHER]


def test_own_write_does_not_enqueue_its_key(rig: Rig) -> None:
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
    assert rig.woken == []


def test_remaining_work_enqueues_the_key_once_after_the_reconcile(rig: Rig) -> None:
    rig.left_to_do = True
    with rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
        rig.echoes.enqueue(BOX)
        assert rig.woken == []
    assert rig.woken == [BOX]


def test_reconcile_without_events_does_not_enqueue_its_key(rig: Rig) -> None:
    rig.left_to_do = True
    with rig.echoes.reconciling(BOX):
        pass
    assert rig.woken == []


def test_own_write_enqueues_its_key_after_a_failure(rig: Rig) -> None:
    with pytest.raises(ConnectionError), rig.echoes.reconciling(BOX):
        rig.echoes.enqueue(BOX)
        raise ConnectionError
    assert rig.woken == [BOX]
    rig.echoes.enqueue(BOX)
    assert rig.woken == [BOX, BOX], "the pass is over"
