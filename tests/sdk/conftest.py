"""A client in the in-process world: real controllers, a simulated node, and commands that run on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient, PlayedSession


class LocalCommands:
    """Runs the commands of sandboxes as processes of this machine, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def play(self, session: PlayedSession) -> int | str:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *session.options.command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=self.directory, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        tasks = [
            asyncio.create_task(self._copy(process.stdout, session, 1)),
            asyncio.create_task(self._copy(process.stderr, session, 2)),
        ]
        feeding = asyncio.create_task(self._feed(process.stdin, session))
        try:
            await asyncio.gather(*tasks)
            code = await process.wait()
            return code if code >= 0 else 128 - code
        finally:
            feeding.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()

    async def _copy(self, reader: asyncio.StreamReader, session: PlayedSession, stream: int) -> None:
        while data := await reader.read(1 << 16):
            session.write(data, stream)

    async def _feed(self, writer: asyncio.StreamWriter, session: PlayedSession) -> None:
        with suppress(ConnectionError):
            while data := await session.input.get():
                writer.write(data)
                await writer.drain()
        writer.close()


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
    """The working directory of commands."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest_asyncio.fixture
async def pods(directory: Path) -> AsyncIterator[FakePodClient]:
    pods = FakePodClient(LocalCommands(directory).play)
    yield pods
    await pods.close()


@pytest_asyncio.fixture
async def service(world: World, pods: FakePodClient) -> Service:
    return Service(world.client, pods, world.namespace)


@pytest_asyncio.fixture
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(service=service)
    yield client
    await client.leases.close()
    await client._watch.close()
