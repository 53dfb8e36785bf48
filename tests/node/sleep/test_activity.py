"""How many clients a pod has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from sandpool.node.sleep.activity import ClientActivity
from sandpool.testing.clock import ManualClock

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_connection_counts_until_its_stream_is_closed(run: Run) -> None:
    async def use() -> None:
        clients = ClientActivity(ManualClock())
        ours, theirs = socket.socketpair()
        with theirs:
            _, writer = await asyncio.open_connection(sock=clients.counted(ours))
            assert clients.connected == 1
            writer.close()
            await writer.wait_closed()
            assert clients.connected == 0

    run(use())


def test_connection_counts_once_however_it_ends() -> None:
    clients = ClientActivity(ManualClock())
    ours, theirs = socket.socketpair()
    with theirs:
        connection = clients.counted(ours)
        with socket.socket(fileno=connection.detach()):
            connection.close()
        assert clients.connected == 0
