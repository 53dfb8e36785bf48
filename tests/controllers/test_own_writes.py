"""Changes that arrive while their key is being reconciled, and which of them lead to another reconcile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandpool.api.resource import Key
from sandpool.controllers.own_writes import OwnWriteFilter
from sandpool.engine.controller import DONE, Result

BOX, OTHER = Key("default", "box"), Key("default", "other")


class Rig:
    """The filter, with a list as the work queue."""

    def __init__(self) -> None:
        self.enqueued: list[Key] = []
        self.has_work_left = False
        self.own_writes = OwnWriteFilter(self.enqueued.append, lambda key: self.has_work_left)

    async def reconcile(self, work: Callable[[], None]) -> Result:
        """Reconcile BOX; ``work`` is what happens meanwhile."""

        async def reconcile(key: Key) -> Result:
            assert key == BOX
            work()
            return DONE

        return await self.own_writes.middleware("sandbox", reconcile)(BOX)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_key_without_a_running_reconcile_is_enqueued_at_once(rig: Rig) -> None:
    rig.own_writes.enqueue(BOX)

    def another_key_changes() -> None:
        rig.own_writes.enqueue(OTHER)
        assert rig.enqueued == [BOX, OTHER]

    assert await rig.reconcile(another_key_changes) is DONE


async def test_own_write_does_not_enqueue_its_key(rig: Rig) -> None:
    await rig.reconcile(lambda: rig.own_writes.enqueue(BOX))
    assert rig.enqueued == []


async def test_remaining_work_enqueues_the_key_once_after_the_reconcile(rig: Rig) -> None:
    rig.has_work_left = True

    def the_key_changes_twice() -> None:
        rig.own_writes.enqueue(BOX)
        rig.own_writes.enqueue(BOX)
        assert rig.enqueued == []

    await rig.reconcile(the_key_changes_twice)
    assert rig.enqueued == [BOX]


async def test_reconcile_without_events_does_not_enqueue_its_key(rig: Rig) -> None:
    rig.has_work_left = True
    await rig.reconcile(lambda: None)
    assert rig.enqueued == []


async def test_own_write_enqueues_its_key_after_a_failure(rig: Rig) -> None:
    def write_and_fail() -> None:
        rig.own_writes.enqueue(BOX)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await rig.reconcile(write_and_fail)
    assert rig.enqueued == [BOX]
    rig.own_writes.enqueue(BOX)
    assert rig.enqueued == [BOX, BOX], "the reconcile is over"
