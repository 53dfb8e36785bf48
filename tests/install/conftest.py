"""A real cluster that each test finds empty: its own control plane, because these tests replace definitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from sandpool.api.kinds import NAMESPACE, SERVICE_ACCOUNT
from sandpool.cli.install import chosen
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.manifests import Choice
from sandpool.install.remover import Remover
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.testing.assets import Assets
from sandpool.testing.audit import Audit, asked_of_kubernetes
from sandpool.testing.control_plane import ControlPlane
from sandpool.testing.endpoint import HttpDoor
from sandpool.testing.users import ADMIN
from sandpool.testing.watching import until

ACCOUNT = f"system:serviceaccount:{names.NAMESPACE}:{names.CONTROLLER}"


@dataclass(frozen=True)
class Cluster:
    """``client`` is an administrator's. ``audit`` has what the controller's service account asked."""

    plane: ControlPlane
    client: Client
    audit: Audit

    async def token(self) -> str:
        """Of the service account of the controller, as a pod of its Deployment would have it."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        answer = await self.client.create(
            SERVICE_ACCOUNT, request, names.NAMESPACE, name=names.CONTROLLER, subresource="token"
        )
        token: str = answer["status"]["token"]
        return token


@pytest.fixture(scope="module")
def plane(kubernetes_assets: Assets) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes_assets, fsync=False, audit=(ACCOUNT,)) as plane:
        yield plane


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    door = HttpDoor(plane.url, plane.ca, plane.tokens)
    client = door.client_for(ADMIN)
    yield Cluster(plane, client, Audit(plane.audit_log, asked_of_kubernetes))
    everything = chosen(Choice(), router=True, monitored=True)
    await Remover(client, SystemClock(), lambda line: None, with_claims=True).remove(everything)

    async def gone() -> bool:
        try:
            await client.get(NAMESPACE, names.NAMESPACE)
        except NotFound:
            return True
        return False

    await until(gone, within=120)
    await door.close()
