"""A server without a network, for the tests of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.kube.client import Client
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "data")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def cluster(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ApiServer]:
    """A server that looks after nodes and their pods."""
    server = ApiServer(tmp_path / "data", clock=clock, nodeless={"nowhere"})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def passes(cluster: ApiServer, clock: ManualClock) -> Callable[[float], Awaitable[None]]:
    """Lets so many seconds pass for the cluster."""

    async def wait(seconds: float) -> None:
        await clock.advance(seconds)
        for each in cluster.controllers.values():
            await each.controller.queue.settled()

    return wait


@pytest.fixture
def client(server: ApiServer) -> Client:
    return server.client()
