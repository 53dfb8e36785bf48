"""A backend with the storage ``aggregated``: a real Kubernetes that passes requests for our kinds on to this process.

Users and nodes talk to kube-apiserver. The controllers are those of the test, so they have the server of our kinds in
their process, as in ``sandpool apiserver``, and everything else over HTTPS with the installed service account.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from sandpool.api.kinds import SELF_SUBJECT_ACCESS_REVIEW
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit
from sandpool.install import names
from sandpool.kube.client import Client
from sandpool.kube.group_router import GroupRouter
from sandpool.server.aggregated.aggregated_server import AggregatedServer, ServingOptions
from sandpool.server.aggregated.authentication_config import NAME as CONFIG
from sandpool.server.aggregated.authentication_config import NAMESPACE as SYSTEM
from sandpool.server.aggregated.kinds_server import GROUPS
from sandpool.server.serving.audit import AuditLog
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.aggregated_cluster import AggregatedApi
from tests.support.api_access import HttpEndpoint
from tests.support.both_logs import BothLogs
from tests.support.control_plane import ControlPlane
from tests.support.installed_cluster import account_token
from tests.support.users import ADMIN

#: The user name of the process in audit logs of kube-apiserver.
ACCOUNT: Final = f"system:serviceaccount:{names.NAMESPACE}:{names.APISERVER}"
_CONTROLLERS: Final = "controllers"
_STARTING: Final[dict[ControlPlane, asyncio.Task[AggregatedBackend]]] = {}


async def _is_known(client: Client) -> bool:
    """Whether kube-apiserver knows every role of the account: until then it refuses what the account may do."""
    questions = [
        {"verb": "list", "resource": "pods"},
        {"verb": "create", "group": "authorization.k8s.io", "resource": "subjectaccessreviews"},
        {"verb": "get", "resource": "configmaps", "namespace": SYSTEM, "name": CONFIG},
        {"verb": "create", "group": "coordination.k8s.io", "resource": "leases", "namespace": names.NAMESPACE},
    ]
    for question in questions:
        review = new(SELF_SUBJECT_ACCESS_REVIEW, None, spec={"resourceAttributes": question})
        if not (await client.create(SELF_SUBJECT_ACCESS_REVIEW, review))["status"]["allowed"]:
            return False
    return True


class AggregatedBackend(HttpEndpoint):
    """Needs a control plane with an aggregation layer, the ``WRITERS`` and an audit log of them and of ``ACCOUNT``."""

    name = "aggregated"

    def __init__(
        self,
        plane: ControlPlane,
        account: str,
        registered: AggregatedApi,
        robot: HttpEndpoint,
        server: AggregatedServer,
        store: Store,
        log: AuditLog,
    ) -> None:
        super().__init__(plane.url, plane.ca, {**plane.tokens, _CONTROLLERS: account})
        self.audit: Audit = BothLogs(plane.audit_log, log.path, _CONTROLLERS, ACCOUNT, log.flush)
        self._registered = registered
        self._robot = robot
        self._server = server
        self._store = store
        self._log = log
        self._closed = False

    @classmethod
    async def shared(cls, plane: ControlPlane, directory: Path) -> AggregatedBackend:
        """The backend of a control plane, started once, because its kinds are registered once."""
        if plane not in _STARTING:
            _STARTING[plane] = asyncio.create_task(cls.start(plane, directory))
        return await _STARTING[plane]

    @classmethod
    async def start(cls, plane: ControlPlane, directory: Path) -> AggregatedBackend:
        endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
        admin = endpoint.client_for(ADMIN)
        registered = AggregatedApi(plane, directory)
        await registered.register(admin)
        account = await account_token(admin, names.APISERVER)
        robot = HttpEndpoint(plane.url, plane.ca, {_CONTROLLERS: account})
        await until(lambda: _is_known(robot.client_for(_CONTROLLERS)))
        log, store = AuditLog(directory / "audit.log"), Store(Journal(directory / "data"))
        service = f"{names.APISERVER}.{names.NAMESPACE}.svc"
        options = ServingOptions(directory / "data", "127.0.0.1", registered.port, (service,))
        server = AggregatedServer(robot.client_for(_CONTROLLERS), store, SystemClock(), Random(1), options, audit=log)
        await server.start()
        await registered.available(admin)
        await endpoint.close()
        # The garbage collector discovers new kinds every 30 seconds, and at its start.
        plane.restart(plane.controller_manager)
        return cls(plane, account, registered, robot, server, store, log)

    def client_for(self, user: str) -> Client:
        client = super().client_for(user)
        if user != _CONTROLLERS:
            return Client(client.transport, field_manager=user)
        return Client(GroupRouter(GROUPS, self._server.transport(user), client.transport), field_manager=user)

    async def forget_history(self) -> None:
        for resource in self._store.resources():
            self._store.compact(resource)

    async def close(self) -> None:
        """Close everything, once for all that share the backend."""
        if self._closed:
            return
        self._closed = True
        await super().close()
        await self._server.stop()
        await self._robot.close()
        await self._store.close()
        self._log.close()
        self._registered.close()
