"""A real Kubernetes with Sandpool installed, and the controllers running with its service account."""

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

# The user name of the controllers in audit logs.
ACCOUNT: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.CONTROLLER}"
_ROBOT: Final = "robot"
_SECONDS: Final = 4 * 3600  # longer than any run of the tests


async def account_token(client: Client, account: str, namespace: str = names.NAMESPACE) -> str:
    """Return a token of an installed service account, as a pod of its Deployment gets it, or of another account."""
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
    """``client`` is that of an administrator. ``audit`` holds the requests of the controllers."""

    plane: ControlPlane
    client: Client
    audit: Audit

    async def token(self, account: str = names.CONTROLLER) -> str:
        return await account_token(self.client, account)

    @asynccontextmanager
    async def controllers(self, namespace: str) -> AsyncIterator[ControllerProcess]:
        """Run the controllers as the Deployment does, with leader election, and a simulated node for the pods of one
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
