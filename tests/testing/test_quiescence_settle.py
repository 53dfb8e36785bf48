"""Settling with a real server: nothing is under way afterwards, and time passes in steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new
from sandpool.testing.quiescence import settle
from tests.support.manual_time import pass_time


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[FaultyTransport]:
    server = ApiServer(tmp_path)
    await server.start()
    yield FaultyTransport(server.client().transport)
    await server.stop()


async def test_settle_waits_for_a_chain_of_writes(wire: FaultyTransport) -> None:
    async def chain() -> None:
        for number in range(5):
            await Client(wire).create(CONFIG_MAP, new(CONFIG_MAP, f"number-{number}"), "default")

    task = asyncio.create_task(chain())
    await settle(ManualClock(), wire)
    assert task.done()
    assert len(wire.requests) == 5


async def test_work_of_one_alarm_is_done_before_the_next(wire: FaultyTransport) -> None:
    clock = ManualClock()
    times: list[float] = []

    async def write_every_second() -> None:
        while True:
            await clock.sleep(1)
            await Client(wire).create(CONFIG_MAP, new(CONFIG_MAP, f"second-{len(times)}"), "default")
            times.append(clock.monotonic())

    task = asyncio.create_task(write_every_second())
    await pass_time(clock, 3.5, wire)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert times == [1, 2, 3]
    assert clock.monotonic() == 3.5
