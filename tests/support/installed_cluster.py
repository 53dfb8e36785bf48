"""A real Kubernetes with Sandpool installed in it, and the controllers at work as its service account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from sandpool.api.kinds import SERVICE_ACCOUNT
from sandpool.controllers.leader import ControllerProcess
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaderElector
from sandpool.explain.audit import Audit
from sandpool.install import names
from sandpool.kube.client import Client
from sandpool.node.simulated import SimulatedNode
from tests.support.api_access import HttpEndpoint
from tests.support.control_plane import ControlPlane

# The user that the controllers are, as audit logs have it.
ACCOUNT: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.CONTROLLER}"
_ROBOT: Final = "robot"
_SECONDS: Final = 4 * 3600  # longer than any run of the tests


async def account_token(client: Client, account: str, namespace: str = names.NAMESPACE) -> str:
    """Of a service account that was installed, as a pod of its Deployment would have it; or of another."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _SECONDS},
    }
    answer = await client.create(SERVICE_ACCOUNT, request, namespace, name=account, subresource="token")
    token: str = answer["status"]["token"]
    return token


@dataclass(frozen=True)
class Cluster:
    """``client`` is an administrator's. ``audit`` has what the controllers asked."""

    plane: ControlPlane
    client: Client
    audit: Audit

    async def token(self, account: str = names.CONTROLLER) -> str:
        return await account_token(self.client, account)

    @asynccontextmanager
    async def controllers(self, namespace: str) -> AsyncIterator[ControllerProcess]:
        """As the Deployment runs them, contending for the lease; and a node that runs nothing, for pods of one
        namespace."""
        clock, endpoint = SystemClock(), HttpEndpoint(self.plane.url, self.plane.ca, {_ROBOT: await self.token()})
        robot = endpoint.client_for(_ROBOT)
        election = LeaderElector(robot, names.LEASE, names.NAMESPACE, _ROBOT, clock, Random(1))
        process = ControllerProcess(robot.transport, clock, Random(1), election=election)
        node = asyncio.create_task(SimulatedNode(self.client, clock, namespace=namespace).run())
        await process.start()
        try:
            yield process
        finally:
            await process.stop()
            node.cancel()
            await asyncio.gather(node, return_exceptions=True)
            await endpoint.close()
