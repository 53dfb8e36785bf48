"""What becomes of a wake-up during a pass."""

from __future__ import annotations

import pytest

from sandpool.api.resource import Key
from sandpool.controllers.own_writes import OwnWriteFilter

BOX, OTHER = Key("default", "box"), Key("default", "other")


class Rig:
    def __init__(self) -> None:
        self.enqueued: list[Key] = []
        self.has_work_left = False
        self.own_writes = OwnWriteFilter(self.enqueued.append, lambda key: self.has_work_left)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_key_without_a_running_reconcile_is_enqueued_at_once(rig: Rig) -> None:
    rig.own_writes.enqueue(BOX)
    with rig.own_writes.reconciling(BOX):
        rig.own_writes.enqueue(OTHER)
        assert rig.enqueued == [BOX, OTHER]


def test_own_write_does_not_enqueue_its_key(rig: Rig) -> None:
    with rig.own_writes.reconciling(BOX):
        rig.own_writes.enqueue(BOX)
    assert rig.enqueued == []


def test_remaining_work_enqueues_the_key_once_after_the_reconcile(rig: Rig) -> None:
    rig.has_work_left = True
    with rig.own_writes.reconciling(BOX):
        rig.own_writes.enqueue(BOX)
        rig.own_writes.enqueue(BOX)
        assert rig.enqueued == []
    assert rig.enqueued == [BOX]


def test_reconcile_without_events_does_not_enqueue_its_key(rig: Rig) -> None:
    rig.has_work_left = True
    with rig.own_writes.reconciling(BOX):
        pass
    assert rig.enqueued == []


def test_own_write_enqueues_its_key_after_a_failure(rig: Rig) -> None:
    with pytest.raises(ConnectionError), rig.own_writes.reconciling(BOX):
        rig.own_writes.enqueue(BOX)
        raise ConnectionError
    assert rig.enqueued == [BOX]
    rig.own_writes.enqueue(BOX)
    assert rig.enqueued == [BOX, BOX], "the pass is over"
