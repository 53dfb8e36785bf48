"""A pytest plugin that runs every test with the fixture ``world`` on all backends.

A backend is started for the first test that uses it and lives as long as the session of its worker. Each test gets its
own world on it: a namespace, controllers, a node, and a clock. The clock begins at the current time, because the API
stamps objects with that time, and advances only when the test says so.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from sandpool.api.kinds import NAMESPACE
from sandpool.testing.backend import Backend, InProcessBackend
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new
from sandpool.testing.world import World
from tests.support.aggregated_backend import AggregatedBackend
from tests.support.http_backends import HttpBackend, KubernetesBackend

KINDS: Final = (
    pytest.param("inprocess"),
    pytest.param("http"),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    pytest.param("aggregated", marks=pytest.mark.kubernetes),
)


async def new_namespace(backend: Backend) -> str:
    """Create a namespace with a random name."""
    name = f"t-{secrets.token_hex(5)}"
    await backend.client_for("users").create(NAMESPACE, new(NAMESPACE, name))
    return name


def embedded(*cases: tuple[Any, ...]) -> list[Any]:
    """Return parameter values for which a test runs on the embedded API only. Use it for tests with many variants, of
    which one or two suffice on a real Kubernetes, where each takes a second."""
    return [pytest.param(*case, marks=pytest.mark.backends("inprocess", "http")) for case in cases]


def reaches_kinds_in_memory(backend: Backend) -> bool:
    """Whether the controllers have our kinds in their process. There the status of a claim is stored together with its
    annotations, in one write."""
    return backend.client_for("controllers").stores_metadata_with_status


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backends(*names): runs on these backends only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_kind" in metafunc.fixturenames:
        # The scope makes pytest finish with one backend before it starts the next.
        metafunc.parametrize("backend_kind", KINDS, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests of a backend in the event loop of the backends, and only on the backends named by their mark."""
    elsewhere = []
    for item in items:
        if isinstance(item, pytest.Function) and "backend_kind" in item.fixturenames:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            marked = item.get_closest_marker("backends")
            if marked is not None and item.callspec.params["backend_kind"] not in marked.args:
                elsewhere.append(item)
    if elsewhere:
        items[:] = [item for item in items if item not in elsewhere]
        config.hook.pytest_deselected(items=elsewhere)


class Backends:
    """The backends of a session."""

    def __init__(self, request: pytest.FixtureRequest, directory: Path) -> None:
        self._request = request
        self._directory = directory
        self._starting: dict[str, asyncio.Task[Backend]] = {}

    async def get(self, kind: str) -> Backend:
        """Start a backend once. A failed start is not repeated."""
        if kind not in self._starting:
            self._starting[kind] = asyncio.create_task(self._start(kind))
        return await self._starting[kind]

    async def _start(self, kind: str) -> Backend:
        directory = self._directory / kind
        directory.mkdir()
        if kind == "inprocess":
            return await InProcessBackend.start(directory)
        if kind == "http":
            return await HttpBackend.start(directory)
        if kind == "aggregated":
            return await AggregatedBackend.shared(self._request.getfixturevalue("aggregating_control_plane"), directory)
        return await KubernetesBackend.start(self._request.getfixturevalue("control_plane"))

    async def close(self) -> None:
        for start in self._starting.values():
            if start.exception() is None:
                await start.result().close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backends]:
    backends = Backends(request, tmp_path_factory.mktemp("backends"))
    yield backends
    await backends.close()


@pytest_asyncio.fixture(loop_scope="session")
async def backend(backend_kind: str, backends: Backends) -> Backend:
    return await backends.get(backend_kind)


@pytest_asyncio.fixture(loop_scope="session")
async def world(backend: Backend) -> AsyncIterator[World]:
    world = World(backend, await new_namespace(backend), clock=ManualClock(datetime.now(UTC)))
    await world.start()
    await world.settle()
    yield world
    await world.stop()
