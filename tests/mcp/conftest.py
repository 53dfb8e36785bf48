"""Servers of the in-process world: real controllers, and commands that run on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import pytest_asyncio
from mcp import Client
from mcp_types import CallToolResult

from sandpool.mcp.server import new_server
from sandpool.mcp.sessions import Sessions
from sandpool.sdk.client import AsyncClient
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.sdk.conftest import client, service  # noqa: F401 - fixtures
from tests.support import in_process_world

directory, pods, world = in_process_world.directory, in_process_world.pods, in_process_world.world

T = TypeVar("T")
POOL = "python"


@pytest_asyncio.fixture
async def sessions(world: World, client: AsyncClient) -> AsyncIterator[Sessions]:  # noqa: F811
    await world.template()
    await client.service.pools.create(POOL, POOL, 2)
    await client.service.pools.wait_ready(POOL, 2, 30.0)

    async def pool() -> str:
        return POOL

    sessions = Sessions(client, pool)
    yield sessions
    await sessions.close()


@pytest_asyncio.fixture
async def model(sessions: Sessions) -> AsyncIterator[Client]:
    """A client that is connected in memory."""
    async with held(Client(new_server(sessions, max_output=1024))) as connected:
        yield connected


@asynccontextmanager
async def held(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager in one task, as anyio wants it; fixtures begin and end in different ones."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()

    async def hold() -> None:
        async with manager as value:
            entered.set_result(value)
            await leaving.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait((entered, holding), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield entered.result() if entered.done() else holding.result()  # type: ignore[misc]
    finally:
        leaving.set()
        await holding


async def claims(service: Service) -> list[str]:  # noqa: F811
    """The names of all claims."""
    return [claim.name for claim in await service.claims.list()]


def text(result: CallToolResult) -> str:
    """The text of a result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


async def call(model: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that has to succeed, and return its structured result."""
    result = await model.call_tool(tool, arguments)
    assert not result.is_error, text(result)
    return result.structured_content or {}


async def fails(model: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that has to fail, and return what the model is told."""
    result = await model.call_tool(tool, arguments)
    assert result.is_error
    return text(result)
