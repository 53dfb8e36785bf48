"""The server over HTTP, with the SDK's own client: sessions, who may use it, and from where."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from sandpool.engine.listener import GateLimits
from sandpool.mcp import http as http_module
from sandpool.mcp import sessions as module
from sandpool.mcp.http import application, serve
from sandpool.mcp.server import new_server
from sandpool.mcp.sessions import Sessions
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.mcp.conftest import call, claims, fails, held

TOKEN = "a-token-for-tests"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def serving_at(sessions: Sessions) -> AsyncIterator[str]:
    """Serve for the length of the block; yields the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = application(new_server(sessions, over_http=True), sessions, TOKEN, ("known.example",))
    serving = asyncio.create_task(serve(app, listening))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    listening.close()


@pytest_asyncio.fixture
async def url(sessions: Sessions) -> AsyncIterator[str]:
    async with serving_at(sessions) as url:
        yield url


def connected(url: str, mode: str = "legacy") -> AbstractAsyncContextManager[Client]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            yield client

    return connect()


async def test_sandboxes_of_a_session_end_with_it_and_others_never_see_them(url: str, service: Service) -> None:
    async with held(connected(url)) as one, held(connected(url)) as two:
        await call(one, "execute_command", command="true")
        (name,) = (await call(one, "list_sandboxes"))["sandbox_claim_names"]
        assert (await call(two, "list_sandboxes"))["sandbox_claim_names"] == []
        assert "no sandbox" in await fails(two, "execute_command", command="true", sandbox_claim_name=name)
        await call(two, "execute_command", command="true")
        assert len(await claims(service)) == 2
    assert await claims(service) == []


async def test_sessions_without_sandboxes_are_forgotten(url: str, sessions: Sessions) -> None:
    """Clients that leave without a DELETE do not fill the memory of the server."""
    async with held(connected(url)) as keeping, held(connected(url)) as looking:
        await call(keeping, "create_sandbox")
        await call(looking, "list_sandboxes")
        assert len(sessions) == 1
        (name,) = (await call(keeping, "list_sandboxes"))["sandbox_claim_names"]
        await call(keeping, "delete_sandbox", sandbox_claim_name=name)
        assert len(sessions) == 0
        await call(keeping, "execute_command", command="true")
        assert len(sessions) == 1


async def test_clients_without_sessions_name_their_sandboxes(url: str, service: Service) -> None:
    """Since the protocol of 2026-07-28 a request over HTTP stands alone."""
    async with held(connected(url, "2026-07-28")) as model:
        assert "this client has no session" in await fails(model, "execute_command", command="true")
        name = (await call(model, "create_sandbox"))["sandbox_claim_name"]
    async with held(connected(url, "2026-07-28")) as model:
        done = await call(model, "execute_command", command="echo here", sandbox_claim_name=name)
        assert done["stdout"] == "here\n"
        await call(model, "delete_sandbox", sandbox_claim_name=name)
    assert await claims(service) == []


async def test_output_arrives_over_http_while_the_command_runs(url: str) -> None:
    seen: list[str | None] = []

    async def show(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with held(connected(url)) as model:
        await model.call_tool("execute_command", {"command": "echo one; sleep 0.1; echo two"}, progress_callback=show)
    assert "".join(filter(None, seen)) == "one\ntwo\n"


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}])
async def test_requests_need_the_token(url: str, given: dict[str, str]) -> None:
    async with httpx2.AsyncClient() as http:
        for method in ("GET", "POST", "DELETE"):
            refused = await http.request(method, url, headers=given)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"Host": "attacker.example"}, 421),
        ({"Host": "127.0.0.1.attacker.example:80"}, 421),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "known.example"}, 200),
        ({"Origin": "https://known.example"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
    ],
    ids=str,
)
async def test_pages_of_others_cannot_reach_the_server(url: str, given: dict[str, str], status: int) -> None:
    initialize = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    async with httpx2.AsyncClient() as http:
        answer = await http.post(url, headers={**HEADERS, **given}, json=initialize)
    assert answer.status_code == status


async def test_a_session_that_was_made_up_does_not_exist(url: str) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(url, headers={**HEADERS, "mcp-session-id": "made-up"}, json=PING)
    assert answer.status_code == 404


async def test_an_unused_sandbox_is_released(
    url: str, service: Service, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(connected(url, "2026-07-28")) as model:
        monkeypatch.setattr(module, "SESSIONLESS_IDLE", 0.05)
        await call(model, "create_sandbox")

        async def released() -> bool:
            return await claims(service) == []

        await world.until(released)
        assert (await call(model, "list_sandboxes"))["sandbox_claim_names"] == []


async def test_a_connection_without_the_token_gets_one_answer(url: str) -> None:
    host, port = httpx2.URL(url).host, httpx2.URL(url).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_connections_without_the_token_make_room_and_sessions_stay(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "LIMITS", GateLimits(strangers_per_address=2))
    async with serving_at(sessions) as address, held(connected(address)) as client:
        await call(client, "list_sandboxes")
        host, port = httpx2.URL(address).host, httpx2.URL(address).port
        silent = [await asyncio.open_connection(host, port) for _ in range(3)]
        assert await silent[0][0].read() == b"", "the oldest one is closed"
        await call(client, "list_sandboxes")
        for _, writer in silent:
            writer.close()


async def test_long_heads_are_refused(url: str) -> None:
    host, port = httpx2.URL(url).host, httpx2.URL(url).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write((b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000)[: (64 << 10) + 1])
    assert (await reader.readline()).split()[1] in (b"400", b"431")
    writer.close()
