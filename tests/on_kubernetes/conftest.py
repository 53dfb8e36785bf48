"""A real Kubernetes with Sandpool installed, for tests that break it: it gets restarted, stopped and starved."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit, request_of_kubernetes
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions
from sandpool.node.simulated import SimulatedNode
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane
from tests.support.installed_cluster import ACCOUNT, Cluster
from tests.support.ownership_log import OwnershipLog
from tests.support.permissions import use_of
from tests.support.persistent_clients import PersistentClients
from tests.support.users import ADMIN

SIZE = 12  # of the pool


@pytest.fixture(scope="session")
def plane(kubernetes_assets: Assets, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes_assets, fsync=False, audit=(ACCOUNT,)) as plane:
        yield plane
        use_of(pytestconfig).note(plane.audit_log, refusals=False)


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect sockets that asyncio leaked for a killed server here, and not in the next test."""
    yield
    gc.collect()


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
    client = endpoint.client_for(ADMIN)
    told: list[str] = []
    await Installer(client, SystemClock(), told.append).install(chosen(InstallOptions(), router=False, monitored=False))
    if any(line.endswith(" created") for line in told):
        # The garbage collector looks for new kinds every half a minute, and when it starts.
        plane.restart(plane.controller_manager)
    yield Cluster(plane, client, Audit(plane.audit_log, request_of_kubernetes))
    await endpoint.close()


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[PersistentClients]:
    """Clients with a pool, and a simulated node for their pods. Fails if a sandbox has two owners at any time of the
    test, or if an object is left at its end."""
    clients = PersistentClients(cluster.client, f"t-{secrets.token_hex(4)}", SIZE)
    await clients.settle_down()
    running = SimulatedNode(cluster.client, SystemClock(), namespace=clients.namespace, brief=True)
    node = asyncio.create_task(running.run())
    async with OwnershipLog(cluster.client, clients.namespace) as ownerships:
        yield clients
        await ownerships.complete()
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)
    ownerships.check()
