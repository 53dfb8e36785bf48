"""Moving the storage of a real Kubernetes with live pods, while its garbage collector runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest

from sandpool.api.kinds import NAMESPACE, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM, SERVICE
from sandpool.api.resource import Object
from sandpool.controllers.leader import ControllerProcess
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaderElector
from sandpool.install import names
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, core, namespace
from sandpool.install.storage import present_storage
from sandpool.install.storage_move import Direction, StorageMover
from sandpool.kube.client import Client, MergePatch
from sandpool.node.simulated import SimulatedNode
from sandpool.server.serving.pki import Authority
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.install.moving_world import Dying, Killed
from tests.support.aggregated_backend import ACCOUNT
from tests.support.aggregated_cluster import AggregatedApi
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.cluster_collector import collected_something, is_gone
from tests.support.control_plane import ControlPlane, aggregation_flags
from tests.support.installed_cluster import account_token
from tests.support.permissions import use_of
from tests.support.persistent_clients import PersistentClients
from tests.support.shared_template import change_shared_template, create_shared_template
from tests.support.users import ADMIN, USERS

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    # Of a server that is killed while a client of these tests shakes hands with it: asyncio forgets the socket.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|function _Selector)"),
]

SIZE: Final = 3  # of the pool
_ATTACHED: Final = (SERVICE, PERSISTENT_VOLUME_CLAIM)


class Workloads:
    """Runs what the Deployment and the StatefulSet of the installation say: the cluster has no kubelet."""

    def __init__(self, plane: ControlPlane, client: Client, api: AggregatedApi) -> None:
        self.plane = plane
        self.client = client
        self.api = api
        self.controllers: ControllerProcess | None = None
        self._robot: HttpEndpoint | None = None
        self.told: list[str] = []

    async def lead(self) -> None:
        """Start the controllers of custom resources."""
        token = await account_token(self.client, names.CONTROLLER)
        self._robot = HttpEndpoint(self.plane.url, self.plane.ca, {"robot": token})
        robot = self._robot.client_for("robot")
        election = LeaderElector(robot, names.LEASE, names.NAMESPACE, "robot", SystemClock(), Random(1))
        self.controllers = ControllerProcess(robot.transport, SystemClock(), Random(1), election=election)
        await self.controllers.start()

    async def end(self) -> None:
        if self.controllers is not None and self._robot is not None:
            await self.controllers.stop()
            await self._robot.close()
            self.controllers = None

    async def follow(self, to: Direction) -> None:
        """Replace the workloads when the move says so, until cancelled."""
        if to == "aggregated":
            await until(lambda: self._has_told("the controllers end"), within=120)
            await self.end()
            await self.api.run(self.client)
        else:
            await until(lambda: self._has_told(f"statefulset.apps/{names.APISERVER} deleted"), within=120)
            await asyncio.to_thread(self.api.process.stop, 30)
            await until(lambda: self._has_told(f"deployment.apps/{names.CONTROLLER} created"), within=120)
            await self.lead()

    async def _has_told(self, text: str) -> bool:
        return any(text in line for line in self.told)


@pytest.fixture
async def cluster(
    kubernetes_assets: Assets, tmp_path: Path, pytestconfig: pytest.Config
) -> AsyncIterator[tuple[Workloads, Client]]:
    flags = aggregation_flags(Authority(tmp_path / "front-proxy", SystemClock()))
    with ControlPlane(kubernetes_assets, fsync=False, users=USERS, audit=(ACCOUNT,), apiserver_flags=flags) as plane:
        endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
        client = endpoint.client_for(ADMIN)
        workloads = Workloads(plane, client, AggregatedApi(plane, tmp_path))
        yield workloads, client
        await workloads.end()
        workloads.api.close()
        await endpoint.close()
        use_of(pytestconfig, ACCOUNT).note(plane.audit_log, refusals=False)


def objects(api: AggregatedApi) -> tuple[list[Object], list[Object]]:
    """An installation with either storage, the aggregated one registered as in a cluster without kube-proxy."""
    registration = api.registration()
    replaced = {(each["kind"], each["metadata"]["name"]) for each in registration}
    others = [
        each
        for each in core(InstallOptions(storage="aggregated"))
        if (each["kind"], each["metadata"]["name"]) not in replaced
    ]
    return [namespace(), *core(InstallOptions())], [namespace(), *others, *registration]


async def test_live_pods_survive_moves_that_are_killed_at_many_steps(
    cluster: tuple[Workloads, Client],
) -> None:
    """The server is killed each time, too."""
    workloads, client = cluster
    custom, aggregated = objects(workloads.api)
    await Installer(client, SystemClock(), lambda line: None).install(custom)
    workloads.plane.restart(workloads.plane.controller_manager)  # its collector learns of the kinds
    await workloads.lead()
    clients = PersistentClients(client, f"t-{secrets.token_hex(4)}", SIZE)
    await clients.settle_down()
    node = asyncio.create_task(SimulatedNode(client, SystemClock(), namespace=clients.namespace, brief=True).run())
    try:
        suspended = f"{clients.namespace}-suspended"
        await suspend_one(client, suspended)
        await create_shared_template(client, suspended)
        await clients.filled()
        await clients.claim(["a", "b"])
        await clients.served(2)
        await clients.filled()
        directions: tuple[Direction, ...] = ("aggregated", "crd")
        for number, to in enumerate(directions, 1):
            pods, held, uids = await state(client, clients.namespace)
            others = await attached(client, suspended)
            follower = asyncio.create_task(workloads.follow(to))
            for at in count(4, 9):
                dying = Dying(client.transport, at, sent=at % 2 == 0)
                mover = StorageMover(
                    Client(dying), SystemClock(), workloads.told.append, custom, aggregated, timeout=60.0, grace=0.5
                )
                try:
                    await mover.move(to)
                    break
                except* Killed:
                    if workloads.api.process.running:
                        workloads.api.process.kill()
                        workloads.api.process.start()
            await follower
            assert await present_storage(client) == to
            await collected_something(client, clients.namespace)
            workloads.plane.restart(workloads.plane.controller_manager)
            await collected_something(client, clients.namespace)
            after = await state(client, clients.namespace)
            assert after[:2] == (pods, held)
            assert (after[2] == uids) is (to == "aggregated")
            assert await attached(client, suspended) == others
            await change_shared_template(client, suspended, f"after-{to}")
            await clients.claim([f"after-{to}"])
            await clients.served(2 + number)
            await clients.filled()
            await clients.check()
        await clients.leave()
    finally:
        node.cancel()
        await asyncio.gather(node, return_exceptions=True)


async def suspend_one(client: Client, namespace: str) -> None:
    """Create a namespace with a sandbox that has no pod, but a volume claim and a Service."""
    await client.create(NAMESPACE, new(NAMESPACE, namespace))
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [{"metadata": {"name": "work"}, "spec": storage}]
    spec = {"podTemplate": pod_template(), "service": True, "volumeClaimTemplates": volumes}
    await client.create(SANDBOX, new(SANDBOX, "mine", spec=spec), namespace)

    async def has_all() -> bool:
        return len(await attached(client, namespace)) == len(_ATTACHED)

    await until(has_all, within=60)
    await client.patch(SANDBOX, "mine", MergePatch({"spec": {"operatingMode": "Suspended"}}), namespace)
    await until(lambda: is_gone(client, POD, "mine", namespace), within=60)


async def attached(client: Client, namespace: str) -> set[str]:
    """The UIDs of the Service and the volume claim of the sandbox that is there now, but for those that are deleted."""
    owner = (await client.get(SANDBOX, "mine", namespace))["metadata"]["uid"]
    return {
        each["metadata"]["uid"]
        for type in _ATTACHED
        for each in (await client.list(type, namespace))["items"]
        if "deletionTimestamp" not in each["metadata"]
        and [reference["uid"] for reference in each["metadata"].get("ownerReferences") or ()] == [owner]
    }


async def state(client: Client, namespace: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The UIDs of pods by name, the sandboxes of claims by name, and the UIDs of sandboxes by name."""
    pods, claims, boxes = [(await client.list(type, namespace))["items"] for type in (POD, SANDBOX_CLAIM, SANDBOX)]
    return (
        {each["metadata"]["name"]: each["metadata"]["uid"] for each in pods},
        {each["metadata"]["name"]: each["status"]["sandbox"]["name"] for each in claims},
        {each["metadata"]["name"]: each["metadata"]["uid"] for each in boxes},
    )
