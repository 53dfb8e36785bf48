"""Who requests are from, in the User-Agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from sandpool import __version__
from sandpool.api.kinds import POD
from sandpool.kube import user_agent
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import RequestAuth
from sandpool.kube.http import HttpTransport
from sandpool.kube.http_stream import open_stream
from sandpool.kube.user_agent import on_behalf_of_key, on_behalf_of_session, shared_context


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest_asyncio.fixture
async def url(seen: list[str]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers["User-Agent"])
        return web.json_response({})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_program_and_key_are_in_every_request(seen: list[str], url: str) -> None:
    connection = Connection(url).of_program("e2b")
    client = Client(HttpTransport(connection))

    async def both() -> None:
        await client.get(POD, "a", "ns")
        (await open_stream(connection, RequestAuth(), "GET", "/x", {})).abort()

    try:
        await both()
        with on_behalf_of_key("7e9fa6c148c2"):
            await asyncio.create_task(both())
        await both()
    finally:
        await client.close()
    own = f"sandpool-e2b/{__version__}"
    assert seen == [own, own, f"{own} key/7e9fa6c148c2", f"{own} key/7e9fa6c148c2", own, own]


async def test_clients_at_the_same_time_are_told_apart(seen: list[str], url: str) -> None:
    client = Client(HttpTransport(Connection(url)))

    async def ask(key: str) -> None:
        with on_behalf_of_key(key):
            for _ in range(5):
                await client.get(POD, "a", "ns")

    try:
        await asyncio.gather(*(ask(f"k{number}") for number in range(4)))
    finally:
        await client.close()
    assert sorted(seen) == sorted(f"{user_agent.DEFAULT} key/k{number}" for number in range(4) for _ in range(5))


@pytest.mark.parametrize("key", ["a b", "a\r\nX: y", "a/b", "ü", "x" * 64])
def test_key_cannot_change_the_header(key: str) -> None:
    with pytest.raises(ValueError, match="not the ID"), on_behalf_of_key(key):
        raise AssertionError("not reached")


async def test_tasks_that_all_clients_share_are_on_behalf_of_none() -> None:
    async def agent() -> str:
        return user_agent.current("x/1")

    with on_behalf_of_session("4b6f"):
        assert await asyncio.create_task(agent()) == "x/1 session/4b6f"
        assert await asyncio.create_task(agent(), context=shared_context()) == "x/1"
        assert await agent() == "x/1 session/4b6f"


def test_claims_without_a_key_have_no_key() -> None:
    with on_behalf_of_key("a"), on_behalf_of_key(""):
        assert user_agent.current("x/1") == "x/1"


@pytest.mark.parametrize(
    ("agent", "shown"),
    [
        ("sandpool/0.1.0", "sandpool"),
        ("sandpool-dashboard/0.1.0", "sandpool-dashboard"),
        ("sandpool-e2b/0.1.0 key/7e9f", "sandpool-e2b, key 7e9f"),
        ("sandpool-mcp/0.1.0 session/4b6f", "sandpool-mcp, session 4b6f"),
        ("kubectl/v1.36 (linux/amd64) kubernetes/1 key/7e9f", "kubectl"),
        ("", ""),
    ],
)
def test_users_read_the_program_and_the_key(agent: str, shown: str) -> None:
    assert user_agent.shown(agent) == shown
