"""The board: rows, changes and counts, from the objects of a world."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Key
from sandpool.dashboard.board import Board
from sandpool.dashboard.controller_metrics import ControllerMetrics
from sandpool.dashboard.history import LENGTH, History
from sandpool.dashboard.rows import claim_row, node_row, pool_row, sandbox_row, template_row
from sandpool.dashboard.stream import event
from sandpool.engine.clock import SystemClock
from sandpool.testing.world import World
from tests.dashboard.conftest import Served


def is_ready(board: Board, kind: str, key: Key) -> bool:
    row = board.caches[kind].get(key)
    return row is not None and bool(row.ready)


def ready_members(board: Board, pool: str) -> int:
    row = board.rows()["pools"].get(pool)
    return 0 if row is None else int(row["ready"])


async def test_rows_have_what_the_objects_say(served: Served) -> None:
    world, board = served.world, served.dashboard.board
    await world.template()
    await world.pool(replicas=2)
    await world.filled(2)
    await world.claim("mine")
    await world.served(1)
    await world.filled(2)
    key = Key(world.namespace, "mine")
    await world.eventually(lambda: is_ready(board, "claims", key))
    claim = board.rows()["claims"][str(key)]
    assert claim is not None
    assert claim["pool"] == "pool"
    box = board.rows()["sandboxes"][f"{world.namespace}/{claim['sandbox']}"]
    assert box is not None
    assert (box["claim"], box["launch"], box["template"]) == ("mine", "warm", "python")
    await world.eventually(lambda: board.launches.by_pool[f"{world.namespace}/pool"] == [1, 0])
    assert board.rows()["templates"][f"{world.namespace}/python"]["image"] == "example.com/image:1"  # type: ignore[index]


async def test_a_subscriber_gets_each_changed_row_once_and_as_it_is_now(served: Served) -> None:
    world, board = served.world, served.dashboard.board
    await world.template()
    with board.subscribed() as changes:
        await world.pool(replicas=0)
        await asyncio.wait_for(changes.changed(), 10)
        await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": 1}})
        key = f"{world.namespace}/pool"
        await world.eventually(lambda: ready_members(board, key) == 1)
        first = changes.take()
        assert first["pools"][key]["ready"] == 1  # type: ignore[index]
        assert changes.take().get("pools", {}) == {}
        await world.delete(SANDBOX_WARM_POOL, "pool")
        await world.eventually(lambda: Key(world.namespace, "pool") not in board.caches["pools"])
        assert changes.take()["pools"][key] is None


async def test_a_claim_is_counted_once_also_when_it_is_seen_again(world: World) -> None:
    await world.template()
    await world.pool(replicas=1)
    await world.filled(1)
    for name in ("one", "two"):
        await world.claim(name)
        await world.served(1)
        await world.delete(SANDBOX_CLAIM, name)
        await world.gone(SANDBOX_CLAIM, name)
        await world.filled(1)
    await world.claim("three")
    await world.served(1)
    board = Board(world.client, SystemClock(), Random(1))
    running = asyncio.create_task(board.run())
    await board.attempted()
    await world.eventually(lambda: board.launches.by_pool[f"{world.namespace}/pool"] == [1, 0])
    await world.patch(SANDBOX_CLAIM, "three", {"metadata": {"annotations": {"note": "x"}}})
    await world.delete(SANDBOX_CLAIM, "three")
    await world.eventually(lambda: Key(world.namespace, "three") not in board.caches["claims"])
    assert board.launches.by_pool[f"{world.namespace}/pool"] == [1, 0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_history_is_bounded_and_has_levels_and_counters(served: Served) -> None:
    world, board = served.world, served.dashboard.board
    await world.template()
    await world.pool(replicas=2)
    await world.filled(2)
    await world.claim("mine")
    await world.claim("late", warmPoolRef={"name": "missing"})
    await world.eventually(lambda: board.launches.by_pool[f"{world.namespace}/pool"] == [1, 0])
    await world.filled(2)
    await world.eventually(lambda: ready_members(board, f"{world.namespace}/pool") == 2)
    history = History(board, ControllerMetrics(None), SystemClock())
    pools = history.sample()["pools"]
    assert pools[f"{world.namespace}/pool"] == [2, 2, 2, 2, 1, 0, 1, 0, 2]
    for _ in range(LENGTH + 3):
        history.samples.append(history.sample())
    assert len(history.samples) == LENGTH


@pytest.mark.parametrize("row", [claim_row, sandbox_row, pool_row, template_row, node_row])
def test_an_empty_object_has_a_row(row: object) -> None:
    """Objects of other controllers may lack everything that is not required."""
    assert callable(row)
    shown = row({"metadata": {"name": "x", "namespace": "y", "uid": "z"}})
    assert shown == row({"metadata": {"name": "x", "namespace": "y", "uid": "z"}, "status": None, "spec": None})


def test_long_messages_are_cut() -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": "R", "message": "m" * 10_000}]
    shown = claim_row({"metadata": {"name": "x"}, "status": {"conditions": conditions}})
    assert len(shown.message) == 300


def test_an_event_is_one_line_of_data_whatever_it_holds() -> None:
    written = event("rows", {"text": "a\n\ndata: forged\r\n\r\n"})
    assert written.count(b"\n") == 3
    assert written.endswith(b"\n\n")
