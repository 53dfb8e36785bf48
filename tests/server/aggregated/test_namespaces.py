"""Namespaces that are read live, because their event has not arrived, and deleted again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import NAMESPACE
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.transport import Request, Transport
from sandpool.server.aggregated.namespaces import NamespaceMirror
from sandpool.server.api_server import ApiServer
from sandpool.testing.faulty_transport import Fault, FaultyTransport
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.cluster_collector import is_gone


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


async def delete(client: Client, name: str) -> None:
    await client.delete(NAMESPACE, name)
    await until(lambda: is_gone(client, NAMESPACE, name))


def mirror_of(transport: Transport) -> NamespaceMirror:
    return NamespaceMirror(Client(transport), SystemClock(), Random(1))


async def test_new_namespace_is_found_before_its_event(client: Client) -> None:
    mirror = mirror_of(client.transport)
    await client.create(NAMESPACE, new(NAMESPACE, "new"))
    assert mirror.find("new") is None
    await mirror.ensure("new")
    assert mirror.find("new") == {"status": {"phase": "Active"}}
    await mirror.ensure("missing")
    assert mirror.find("missing") is None


async def test_namespace_that_was_deleted_before_a_list_is_forgotten(client: Client) -> None:
    mirror = mirror_of(client.transport)
    await client.create(NAMESPACE, new(NAMESPACE, "brief"))
    await mirror.ensure("brief")
    await delete(client, "brief")
    running = asyncio.create_task(mirror.run())
    await mirror.synced.wait()
    assert mirror.find("brief") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_namespace_whose_deletion_arrives_before_the_response_is_missing(client: Client) -> None:
    class Slow(FaultyTransport):
        """The response for a namespace takes so long that its deletion is known before."""

        async def request(self, request: Request) -> Any:
            response = await super().request(request)
            if request.path.endswith("/brief"):
                await delete(client, "brief")
                await client.create(NAMESPACE, new(NAMESPACE, "later"))
                await until(later_is_known)
            return response

    async def later_is_known() -> bool:
        return mirror.find("later") is not None

    mirror = mirror_of(Slow(client.transport))
    await client.create(NAMESPACE, new(NAMESPACE, "brief"))
    asking = asyncio.create_task(mirror.ensure("brief"))
    running = asyncio.create_task(mirror.run())
    await asking
    assert mirror.find("brief") is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_create_is_refused_while_the_namespace_cannot_be_read(client: Client) -> None:
    transport = FaultyTransport(client.transport)
    transport.fault = lambda request: Fault.CUT
    with pytest.raises(ServiceUnavailable, match="could not be asked whether the namespace new exists"):
        await mirror_of(transport).ensure("new")
