from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Expired, Forbidden, Invalid, NotFound
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.tokens import ADMIN
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.request.messages import User
from sandpool.server.serving.inprocess import InProcessTransport, as_received
from sandpool.testing.objects import new
from sandpool.testing.waiting import drain
from tests.support.mutation_detector import verify_all


async def test_caller_and_server_do_not_share_objects(client: Client) -> None:
    mine: Object = new(CONFIG_MAP, "a", data={"k": "v"})
    await client.create(CONFIG_MAP, mine, "default")
    mine["data"]["k"] = "changed"
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "v"}


async def test_caller_that_changes_an_answer_is_detected(client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), "default")
    assert verify_all() == []
    (await client.get(CONFIG_MAP, "a", "default"))["data"]["k"] = "changed"
    [violation] = verify_all()
    assert "GET" in violation and "/configmaps/a" in violation and '"k":"changed"' in violation


async def test_caller_that_changes_an_event_of_a_watch_is_detected(client: Client) -> None:
    created = await client.create(CONFIG_MAP, new(CONFIG_MAP, "a", data={"k": "v"}), "default")
    async with aclosing(cast(AsyncGenerator[WatchEvent, None], client.watch(CONFIG_MAP, "default"))) as events:
        event = await anext(events)
        event.object["data"]["k"] = "changed"
    [violation] = verify_all()
    assert "WATCH" in violation and created["metadata"]["uid"] in violation


async def test_bytes_are_sent_unchanged(client: Client) -> None:
    path = CONFIG_MAP.path("default")
    body = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}"
    created = await client.transport.request(Request("POST", path, body=body, content_type="application/yaml"))
    assert created["metadata"]["name"] == "a"


async def test_errors_are_those_of_a_network_client(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "b", "default")
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAP, "a", MergePatch({"metadata": {"resourceVersion": "1"}}), "default")
    with pytest.raises(Invalid):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "A_"), "default")
    with pytest.raises(BadRequest):
        await client.list(CONFIG_MAP, label_selector="a in (")
    with pytest.raises(Forbidden):
        await server.client(User("missing")).list(CONFIG_MAP)


def test_internal_error_types_arrive_as_their_public_type() -> None:
    class Special(BadRequest):
        pass

    received = as_received(Special("why"))
    assert type(received) is BadRequest
    assert (received.message, received.code) == ("why", 400)


async def test_request_rejects_a_watch(server: ApiServer, client: Client) -> None:
    with pytest.raises(ValueError, match="stream"):
        await client.transport.request(Request("GET", CONFIG_MAP.path(), {"watch": "true"}))
    assert len(server.store.resource_store("configmaps").hub) == 0


async def test_stream_rejects_a_request(client: Client) -> None:
    with pytest.raises(ApiError, match="single document"):
        await anext(client.transport.stream(Request("GET", CONFIG_MAP.path())))


async def test_error_event_is_raised(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    server.store.compact("configmaps")
    with pytest.raises(Expired):
        await anext(client.watch(CONFIG_MAP, resource_version="1"))


async def test_close_ends_streams_and_rejects_requests(server: ApiServer) -> None:
    client = server.client()
    stream = client.watch(NAMESPACE)
    await anext(stream)
    following = asyncio.create_task(drain(stream))
    await asyncio.sleep(0)
    await client.transport.close()
    await asyncio.wait_for(following, 5)
    assert len(server.store.resource_store("namespaces").hub) == 0
    with pytest.raises(ConnectionError):
        await client.list(NAMESPACE)


async def test_closing_a_stream_ends_its_subscription(server: ApiServer, client: Client) -> None:
    stream = client.watch(NAMESPACE)
    await anext(stream)
    assert len(server.store.resource_store("namespaces").hub) == 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert len(server.store.resource_store("namespaces").hub) == 0


class Records:
    """An audit log that is a list."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, str, int, str]] = []

    def record(self, cycle: RequestCycle, status: int, message: str, seconds: float) -> None:
        request = cycle.request
        self.entries.append((request.user.name, request.method, request.headers["user-agent"], status, message))


async def test_every_request_is_recorded_with_its_result(server: ApiServer) -> None:
    records: Any = Records()
    transport = InProcessTransport(server.handler, ADMIN, clock=SystemClock(), audit=records, user_agent="me")
    client = Client(transport)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAP, "b", "default")
    assert records.entries == [
        ("sandpool-admin", "POST", "me", 201, ""),
        ("sandpool-admin", "GET", "me", 404, 'configmaps "b" not found'),
    ]


async def test_immediate_retries_yield_to_other_tasks(client: Client) -> None:
    """Over a network every refusal takes time in which others get on. Here it takes a turn of the loop."""

    async def create_later() -> None:
        await asyncio.sleep(0)
        await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")

    creating = asyncio.create_task(create_later())
    for _ in range(100_000):
        try:
            await client.get(CONFIG_MAP, "a", "default")
            break
        except NotFound:
            continue
    await creating
