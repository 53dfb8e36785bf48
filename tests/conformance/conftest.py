"""The three APIs every conformance test runs on: embedded in-process, embedded over HTTPS, and a real Kubernetes.

One of each lives for the whole session of a worker; a test gets a namespace of its own in it, and uses that
namespace's name to make the names of cluster-wide things its own too.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml
import yarl
from sandpool.kube.http import HttpTransport

from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.testing.control_plane import ADMIN, ControlPlane
from sandpool.testing.definitions import install
from sandpool.testing.endpoint import Answer, Endpoint
from sandpool.testing.objects import custom_type, definition, new

USERS: dict[str, tuple[str, ...]] = {"alice": ("developers",), "bob": ()}

VARIANTS = [
    pytest.param("in-process"),
    pytest.param("http"),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these tests share one event loop, because they share servers that live in it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class HttpEndpoint:
    """An API reached over HTTPS with a bearer token for each user."""

    def __init__(self, name: str, url: str, ca: str, tokens: Mapping[str, str], forget: Callable[[], None]) -> None:
        self.name = name
        self.url = url
        self.tokens = tokens
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca), limit=200),
            timeout=aiohttp.ClientTimeout(total=60),
            auto_decompress=False,
        )
        self._ca = ca
        self._forget = forget
        self._clients: dict[str, Client] = {}
        self.client = self.client_for(ADMIN)

    def client_for(self, user: str) -> Client:
        if user not in self._clients:
            s = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=self._ca), limit=200),
                headers={"Authorization": f"Bearer {self.tokens[user]}"},
            )
            self._clients[user] = Client(HttpTransport(s, self.url))
        return self._clients[user]

    async def raw(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = ADMIN,
    ) -> Answer:
        sent = {"Authorization": f"Bearer {self.tokens[user]}"} if user is not None else {}
        async with self._session.request(
            method,
            yarl.URL(self.url + target, encoded=True),
            data=body,
            headers={**sent, **(headers or {})},
            skip_auto_headers=("Content-Type", "Accept"),
        ) as answer:
            return Answer(
                answer.status,
                await answer.read(),
                {name.lower(): value for name, value in answer.headers.items()},
                tuple(answer.headers.getall("Warning", [])),
            )

    async def forget_history(self) -> None:
        await asyncio.to_thread(self._forget)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.transport.session.close()
        await self._session.close()


class Endpoints:
    """The APIs of a session, each started when the first test asks for it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._open: dict[str, Endpoint] = {}
        self.installed: set[object] = set()
        self._control_plane: ControlPlane | None = None

    async def get(self, variant: str) -> Endpoint:
        if variant not in self._open:
            self._open[variant] = await self._start(variant)
        return self._open[variant]

    async def _start(self, variant: str) -> Endpoint:
        if variant == "kubernetes":
            assets = self._request.getfixturevalue("kubernetes_assets")
            # Without snapshots of its cache the apiserver forgets when etcd does.
            flags = ["--feature-gates=ListFromCacheSnapshot=false"]
            plane = await ControlPlane(assets, fsync=False, users=USERS, apiserver_flags=flags).__aenter__()
            self._control_plane = plane
            return HttpEndpoint(variant, plane.url, plane.ca, plane.tokens, plane.compact)
        pytest.skip("not there yet")

    async def close(self) -> None:
        for endpoint in self._open.values():
            await endpoint.close()
        if self._control_plane is not None:
            await asyncio.to_thread(self._control_plane.stop)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def endpoints(request: pytest.FixtureRequest) -> AsyncIterator[Endpoints]:
    endpoints = Endpoints(request)
    yield endpoints
    await endpoints.close()


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Which API; of session scope so that pytest runs all tests on one before it turns to the next."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def api(variant: str, endpoints: Endpoints) -> Endpoint:
    return await endpoints.get(variant)


@pytest.fixture
def client(api: Endpoint) -> Client:
    """A client that may do anything."""
    return api.client


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(client: Client) -> str:
    """A namespace nobody else uses."""
    name = f"t-{secrets.token_hex(5)}"
    await client.create(NAMESPACE, new(NAMESPACE, name))
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox_kinds(api: Endpoint, endpoints: Endpoints) -> None:
    """Our own kinds are served: the embedded API has them from the start, Kubernetes is given their definitions."""
    if api.name == "kubernetes" and "sandboxes" not in endpoints.installed:
        endpoints.installed.add("sandboxes")
        manifests = sorted((Path(__file__).parents[2] / "deploy" / "crds").glob("*.yaml"))
        if not manifests:
            pytest.skip("no crds yet")
        for manifest in manifests:
            await install(api.client, yaml.safe_load(manifest.read_text()))


@pytest_asyncio.fixture(loop_scope="session")
async def widgets(api: Endpoint, endpoints: Endpoints) -> ResourceType:
    """A custom kind without subresources that keeps whatever it is given."""
    type = custom_type("conformance.example.com", "Widget")
    if (api.name, type) not in endpoints.installed:
        endpoints.installed.add((api.name, type))
        await install(api.client, definition(type))
    return type


@pytest_asyncio.fixture(loop_scope="session")
async def gadgets(api: Endpoint, endpoints: Endpoints) -> ResourceType:
    """A custom kind with the subresources status and scale."""
    type = custom_type("conformance.example.com", "Gadget")
    if (api.name, type) not in endpoints.installed:
        endpoints.installed.add((api.name, type))
        await install(api.client, definition(type, subresources=("status", "scale")))
    return type
