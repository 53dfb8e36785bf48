"""A service in the in-process world: real controllers, a simulated node, and commands that the test plays."""

from __future__ import annotations

import pytest_asyncio

from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support import in_process_world
from tests.support.fake_pod_client import FakePodClient, PlayedSession

world = in_process_world.world


async def play(session: PlayedSession) -> int | str:
    match tuple(session.options.command):
        case ("echo", *words):
            session.write(" ".join(words).encode() + b"\n")
        case ("warn", word):
            session.write(word.encode(), stream=2)
        case ("exit", code):
            return int(code)
        case ("cat",):
            while data := await session.input.get():
                session.write(data)
        case ("wait",):
            session.write(b"waiting")
            await session.input.get()
        case ("impossible",):
            return "no such program"
    return 0


@pytest_asyncio.fixture
async def pods() -> FakePodClient:
    return FakePodClient(play)


@pytest_asyncio.fixture
async def service(world: World, pods: FakePodClient) -> Service:
    return Service(world.client, pods, world.namespace)
