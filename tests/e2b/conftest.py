"""An endpoint in the in-process world, whose sandboxes run their commands on this machine, and a plain HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.e2b.listener import listening
from sandpool.e2b.options import EndpointOptions
from sandpool.e2b.rpc import END, EnvelopeReader, envelope
from sandpool.engine.clock import SystemClock
from sandpool.testing.world import World
from tests.support import in_process_world
from tests.support.fake_pod_client import FakePodClient

directory, pods, world = in_process_world.directory, in_process_world.pods, in_process_world.world


@pytest.fixture
def options() -> EndpointOptions:
    return EndpointOptions("localhost:1", max_processes=4, max_contexts=3, max_watchers=2, max_upload=1 << 20)


@pytest.fixture
def keys(world: World) -> ApiKeys:
    return ApiKeys(world.client)


@pytest_asyncio.fixture
async def endpoint(
    world: World, pods: FakePodClient, keys: ApiKeys, options: EndpointOptions
) -> AsyncIterator[Endpoint]:
    async with Endpoint.opened(world.client, pods, keys, options, SystemClock()) as endpoint:
        yield endpoint


@dataclass
class Answer:
    """An answer; ``document`` is its JSON, None if it has none."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def document(self) -> Any:
        return orjson.loads(self.body) if self.body else None


class Api:
    """Sends requests to the endpoint, as a tenant or with the token of a sandbox."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, **rest: Any) -> Answer:
        async with self.session.request(method, self.url + path, headers=headers, **rest) as response:
            return Answer(response.status, await response.read(), response.headers)


class Tenant:
    """The owner of an API key."""

    def __init__(self, api: Api, key: str) -> None:
        self.api = api
        self.headers = {"X-API-Key": key}

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.api.request(method, path, {**self.headers, **headers}, json=body)

    async def create(self, **body: Any) -> Guest:
        answer = await self("POST", "/v2/sandboxes", {"templateID": "base", **body})
        assert answer.status == 201, answer
        return Guest(self.api, answer.document)


class Guest:
    """A sandbox, reached with its token."""

    def __init__(self, api: Api, document: dict[str, Any]) -> None:
        self.api = api
        self.id: str = document["sandboxID"]
        self.token: str = document["envdAccessToken"]
        self.traffic_token: str = document["trafficAccessToken"]
        self.headers = {"E2b-Sandbox-Id": self.id, "X-Access-Token": self.token}

    async def call(self, method: str, **message: Any) -> Answer:
        """A unary call."""
        return await self.api.request("POST", f"/{method}", self.headers, json=message)

    def open(self, method: str, *messages: Any, **headers: str) -> Any:
        """A call with a stream, as a context manager."""
        body = b"".join(envelope(orjson.dumps(message)) for message in messages)
        sent = {**self.headers, "Content-Type": "application/connect+json", **headers}
        return self.api.session.post(f"{self.api.url}/{method}", headers=sent, data=body)

    async def stream(self, method: str, *messages: Any, **headers: str) -> tuple[list[Any], Any]:
        """A call with a stream to its end: the messages of the answer, and its error."""
        async with self.open(method, *messages, **headers) as response:
            assert response.status == 200, await response.text()
            reader = EnvelopeReader()
            found = reader.feed(await response.read())
            reader.finish()
        assert [each.flags for each in found] == [0] * (len(found) - 1) + [END]
        documents = [orjson.loads(each.data) for each in found]
        return documents[:-1], documents[-1].get("error")


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The messages of an answer as they arrive."""
    reader = EnvelopeReader()
    async for data in response.content.iter_any():
        for found in reader.feed(data):
            if not found.flags & END:
                yield orjson.loads(found.data)


@pytest_asyncio.fixture
async def api(endpoint: Endpoint) -> AsyncIterator[Api]:
    async with listening(endpoint, "127.0.0.1", 0) as (_, port), aiohttp.ClientSession() as session:
        yield Api(session, f"http://127.0.0.1:{port}")


@pytest_asyncio.fixture
async def tenant(world: World, api: Api, keys: ApiKeys) -> Tenant:
    """A tenant with a pool of warm sandboxes."""
    await world.template(name="python")
    await world.pool(replicas=2, name="python", template="python")
    await world.filled(2)
    key, _ = await keys.create(world.namespace, max_sandboxes=3)
    return Tenant(api, key)


@pytest_asyncio.fixture
async def other(world: World, api: Api, keys: ApiKeys, tenant: Tenant) -> Tenant:
    """Another tenant of the same namespace, which is the worst case."""
    key, _ = await keys.create(world.namespace)
    return Tenant(api, key)
