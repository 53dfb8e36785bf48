"""An API server for volume tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.kube.client import Client
from sandpool.server.api_server import ApiServer


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "api")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def client(server: ApiServer) -> Client:
    return server.client()
