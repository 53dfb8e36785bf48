"""Fixtures of the in-process world: real controllers, a simulated node, and commands that run on this machine.

A conftest names those that its tests use. There ``world`` takes the place of the fixture of ``tests.support.backends``,
which runs a test on all backends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient
from tests.support.local_commands import LocalCommands


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = await InProcessBackend.start(tmp_path)
    world = World(backend)
    await world.start()
    yield world
    await world.stop()
    await backend.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The working directory of commands in sandboxes."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest_asyncio.fixture
async def pods(directory: Path) -> AsyncIterator[FakePodClient]:
    pods = FakePodClient(LocalCommands(directory).play)
    yield pods
    await pods.close()
