"""A real cluster that each test finds empty: its own control plane, because these tests replace definitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit, request_of_kubernetes
from sandpool.install import names
from sandpool.install.installer import type_of
from sandpool.install.manifests import InstallOptions
from sandpool.install.remover import Remover
from sandpool.kube.errors import NotFound
from sandpool.testing.waiting import until
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane
from tests.support.installed_cluster import ACCOUNT, Cluster
from tests.support.permissions import use_of
from tests.support.users import ADMIN

# The router, as audit logs have it.
ROUTER = f"system:serviceaccount:{names.NAMESPACE}:{names.ROUTER_ACCOUNT}"


@pytest.fixture(scope="module")
def plane(kubernetes_assets: Assets, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes_assets, fsync=False, audit=(ACCOUNT, ROUTER)) as plane:
        yield plane
        use_of(pytestconfig).note(plane.audit_log)


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
    client = endpoint.client_for(ADMIN)
    yield Cluster(plane, client, Audit(plane.audit_log, request_of_kubernetes))
    everything = chosen(InstallOptions(), router=True, monitored=True)
    await Remover(client, SystemClock(), lambda line: None, with_claims=True).remove(everything)
    # The removal keeps what another tool made, such as kustomize or the test itself.
    for each in reversed(everything):
        with suppress(NotFound):
            await client.delete(type_of(each), each["metadata"]["name"], each["metadata"].get("namespace"))

    async def gone() -> bool:
        for each in everything:
            if type_of(each) in (NAMESPACE, CUSTOM_RESOURCE_DEFINITION):
                with suppress(NotFound):
                    await client.get(type_of(each), each["metadata"]["name"])
                    return False
        return True

    await until(gone, within=120)
    await endpoint.close()
