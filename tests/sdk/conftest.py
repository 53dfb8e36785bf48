"""A client in the in-process world: real controllers, a simulated node, and commands that run on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support import in_process_world
from tests.support.fake_pod_client import FakePodClient

directory, pods, world = in_process_world.directory, in_process_world.pods, in_process_world.world


@pytest_asyncio.fixture
async def service(world: World, pods: FakePodClient) -> Service:
    return Service(world.client, pods, world.namespace)


@pytest_asyncio.fixture
async def client(service: Service) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(service=service)
    yield client
    await client.leases.close()
    await client._watch.close()
