"""The three APIs every conformance test runs on: embedded in-process, embedded over HTTPS, and a real Kubernetes. Tests
of our own kinds also run on a real Kubernetes that passes requests for them on to our server.

One of each lives for the whole session of a worker; a test gets a namespace of its own in it, and uses that
namespace's name to make the names of cluster-wide things its own too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from sandpool.api.kinds import CONFIG_MAP, NAMESPACE
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, NotFound
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.tokens import ADMIN as ADMIN_USER
from sandpool.server.request.messages import User
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.aggregated_backend import AggregatedBackend
from tests.support.api_access import ApiEndpoint, HttpEndpoint, Raw
from tests.support.api_objects import custom_type, definition
from tests.support.control_plane import ControlPlane
from tests.support.custom_kinds import Provide, install
from tests.support.users import ADMIN, USERS, token_file

CRDS = Path(__file__).parents[2] / "deploy" / "crds"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that uses an API runs on all three; what only HTTP has cannot be asked of the in-process one."""
    if "variant" in metafunc.fixturenames:
        variants = [pytest.param("http"), pytest.param("kubernetes", marks=pytest.mark.kubernetes)]
        if "raw" not in metafunc.fixturenames:
            variants.insert(0, pytest.param("in-process"))
        if "sandbox_kinds" in metafunc.fixturenames:
            variants.append(pytest.param("aggregated", marks=pytest.mark.kubernetes))
        # The scope makes pytest finish with one API before it turns to the next.
        metafunc.parametrize("variant", variants, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these tests share one event loop, because they share servers that live in it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class InProcess:
    """The embedded API, reached without a network."""

    name = "in-process"

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    @classmethod
    async def start(cls, directory: Path) -> InProcess:
        server = ApiServer(directory)
        await server.start()
        return cls(server)

    def client_for(self, user: str) -> Client:
        return self.server.client(ADMIN_USER if user == ADMIN else User(user, USERS[user], f"{user}-uid"))

    async def forget_history(self) -> None:
        for resource in self.server.store.resources():
            self.server.store.compact(resource)

    async def close(self) -> None:
        await self.server.stop()


class OverHttp(HttpEndpoint):
    """The embedded API behind TLS."""

    name = "http"
    daemon: Daemon

    @classmethod
    async def start(cls, directory: Path) -> OverHttp:
        tokens = {user: f"token-of-{user}" for user in USERS}
        users = directory / "tokens.csv"
        users.write_text(token_file(tokens, USERS))
        daemon = Daemon(ServerOptions(directory / "data", port=0, token_file=users))
        await daemon.start()
        config = yaml.safe_load(daemon.kubeconfig.read_text())
        tokens[ADMIN] = config["users"][0]["user"]["token"]
        opened = cls(daemon.url, daemon.server.root_ca or "", tokens)
        opened.daemon = daemon
        return opened

    async def forget_history(self) -> None:
        for resource in self.daemon.server.store.resources():
            self.daemon.server.store.compact(resource)

    async def close(self) -> None:
        await super().close()
        await self.daemon.stop()


class Kubernetes(HttpEndpoint):
    """The real thing."""

    name = "kubernetes"
    plane: ControlPlane

    @classmethod
    async def start(cls, plane: ControlPlane) -> Kubernetes:
        opened = cls(plane.url, plane.ca, plane.tokens)
        opened.plane = plane
        return opened

    async def forget_history(self) -> None:
        await asyncio.to_thread(self.plane.compact)


class Endpoints:
    """The APIs of a session, each started when the first test asks for it."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        self._request = request
        self._directory = directory
        self._starting: dict[str, asyncio.Task[ApiEndpoint]] = {}
        self.installed: set[tuple[str, str]] = set()  # API and definition

    async def get(self, variant: str) -> ApiEndpoint:
        """A start that failed stays failed: one report of it is enough, and so is one attempt."""
        if variant not in self._starting:
            self._starting[variant] = asyncio.create_task(self._start(variant))
        return await self._starting[variant]

    async def _start(self, variant: str) -> ApiEndpoint:
        directory = self._directory / variant
        directory.mkdir()
        if variant == "in-process":
            return await InProcess.start(directory)
        if variant == "http":
            return await OverHttp.start(directory)
        if variant == "aggregated":
            plane = self._request.getfixturevalue("aggregating_control_plane")
            return await AggregatedBackend.shared(plane, directory)
        return await Kubernetes.start(self._request.getfixturevalue("control_plane"))

    async def close(self) -> None:
        for start in self._starting.values():
            if start.exception() is None:
                await start.result().close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def endpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Endpoints]:
    endpoints = Endpoints(request, tmp_path_factory.mktemp("endpoints"))
    yield endpoints
    await endpoints.close()


@pytest_asyncio.fixture(loop_scope="session")
async def api(variant: str, endpoints: Endpoints) -> ApiEndpoint:
    return await endpoints.get(variant)


@pytest.fixture
def client(api: ApiEndpoint) -> Client:
    """A client that may do anything."""
    return api.client_for(ADMIN)


@pytest.fixture
def raw(api: ApiEndpoint) -> Raw:
    """Requests and answers as they are on the wire."""
    assert isinstance(api, HttpEndpoint)
    return api.raw


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(api: ApiEndpoint, client: Client) -> str:
    """A namespace for one test."""
    name = f"t-{secrets.token_hex(5)}"
    await client.create(NAMESPACE, new(NAMESPACE, name))
    if api.name == "http":
        # What every namespace is given comes a moment later; tests that watch should not see it arrive.
        await until(lambda: _is_there(client, CONFIG_MAP, "kube-root-ca.crt", name))
    return name


async def _is_there(client: Client, type: ResourceType, name: str, namespace: str) -> bool:
    try:
        await client.get(type, name, namespace)
    except NotFound:
        return False
    return True


@pytest.fixture
def provide(api: ApiEndpoint, client: Client, endpoints: Endpoints) -> Provide:
    """Installs a custom kind that many tests share; it is not removed."""

    async def once(definition: Object) -> None:
        key = (api.name, definition["metadata"]["name"])
        if key not in endpoints.installed:
            with suppress(AlreadyExists):  # by tests elsewhere that share a real Kubernetes with us
                await install(client, definition)
            endpoints.installed.add(key)

    return once


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox_kinds(api: ApiEndpoint, provide: Provide) -> None:
    """Our own kinds are served: the embedded API has them from the start, Kubernetes is given their definitions."""
    if api.name == "kubernetes":
        for manifest in sorted(CRDS.glob("*.yaml")):
            await provide(yaml.load(manifest.read_text(), yaml.CSafeLoader))


@pytest_asyncio.fixture(loop_scope="session")
async def widgets(provide: Provide) -> ResourceType:
    """A custom kind without subresources that keeps whatever it is given."""
    type = custom_type("conformance.example.com", "Widget")
    await provide(definition(type))
    return type


@pytest_asyncio.fixture(loop_scope="session")
async def gadgets(provide: Provide) -> ResourceType:
    """A custom kind with the subresources status and scale."""
    type = custom_type("conformance.example.com", "Gadget")
    await provide(definition(type, subresources=("status", "scale")))
    return type
