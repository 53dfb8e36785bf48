"""A cluster whose storage moves, in one process: kube-apiserver with an aggregation layer, kubelets, and its workloads.

The embedded API stands for kube-apiserver and etcd. Requests for our kinds go where the APIServices say. The
Deployment and the StatefulSet of an installation run as objects of this process. The garbage collector is replaced by a
check after every write: it notes each object that a collector would delete then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    API_SERVICE,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SANDPOOL,
    SERVICE,
    STATEFUL_SET,
)
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.controllers.leader import ControllerProcess
from sandpool.engine.clock import SystemClock
from sandpool.engine.leaderelection import LeaderElector, LeaseTiming
from sandpool.install import names
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, core, namespace
from sandpool.install.storage_move import DEPENDENTS, StorageMover
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.node.simulated import SimulatedNode
from sandpool.server.aggregated.aggregated_server import ServingOptions
from sandpool.server.aggregated.kinds_server import GROUPS
from sandpool.server.aggregated.process import AggregatedProcess, ApiServerOptions
from sandpool.server.aggregated.volume_record import CHILDREN
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import User
from sandpool.server.serving.inprocess import InProcessTransport
from sandpool.server.serving.pki import Authority
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.support.api_objects import definition
from tests.support.custom_kinds import install

_VERSION: Final = SANDBOX.version
_TIMING: Final = LeaseTiming(15, 10.0, 0.5)
NS: Final = "ns"
SUSPENDED: Final = "suspended"  # a sandbox without a pod


class Killed(BaseException):
    """The mover was killed."""


class _Kubernetes(ApiServer):
    """Without a garbage collector: ``MovingWorld.would_collect`` has its part."""

    def _assemble(self, store: Any) -> None:
        super()._assemble(store)
        del self.controllers["garbage collector"]


class MovingWorld:
    """``start`` returns when Sandpool is installed with custom resources, and a pool is full."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api = _Kubernetes(directory / "etcd")
        self.would_collect: list[str] = []
        self.told: list[str] = []
        self.process: AggregatedProcess | None = None
        self.controllers: ControllerProcess | None = None
        self.killed_after: float = inf  # requests of each aggregated API server to come; it grows by one each time
        self.killed_after_sending = False
        self.kills = 0
        self._connection: _KillableTransport | None = None
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.api.start()
        self.client = Client(_Aggregator(self, self.api.client().transport))
        await self._prepare()
        self.api.store.observe(lambda resource, change: self._check())
        await Installer(self.client, SystemClock(), self.told.append, force=True).install([namespace(), *self.custom])
        node = SimulatedNode(self.client, SystemClock(), namespace=NS, brief=True)
        self._background(node.run())
        template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
        pool = new(SANDBOX_WARM_POOL, "python", spec={"replicas": 2, "sandboxTemplateRef": {"name": "python"}})
        await self.client.create(SANDBOX_TEMPLATE, template, NS)
        await self.client.create(SANDBOX_WARM_POOL, pool, NS)
        await self._suspend_one()
        await self.filled()

    async def _suspend_one(self) -> None:
        """Leave a sandbox that has no pod, but a volume claim and a Service."""
        storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        volumes = [{"metadata": {"name": "work"}, "spec": storage}]
        spec = {"podTemplate": pod_template(), "service": True, "volumeClaimTemplates": volumes}
        await self.client.create(SANDBOX, new(SANDBOX, SUSPENDED, spec=spec), NS)

        async def has_all() -> bool:
            return all([len(await self._all(type)) == 1 for type in (SERVICE, PERSISTENT_VOLUME_CLAIM)])

        await until(has_all, within=60)
        await self.client.patch(SANDBOX, SUSPENDED, MergePatch({"spec": {"operatingMode": "Suspended"}}), NS)

    async def _prepare(self) -> None:
        admin = self.api.client()
        await admin.create(NAMESPACE, new(NAMESPACE, NS))
        crd = definition(replace(API_SERVICE, list_kind="APIServiceList", singular="apiservice"))
        crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
        await install(admin, crd)
        ca = Authority(self.directory / "proxy-ca", SystemClock()).ca_pem
        config = new(CONFIG_MAP, "extension-apiserver-authentication", data={"requestheader-client-ca-file": ca})
        await admin.create(CONFIG_MAP, config, "kube-system")

    async def stop(self) -> None:
        await self._reconcile(stopping=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.stop()

    # What is installed

    custom = core(InstallOptions(storage="crd"))
    aggregated = core(InstallOptions(storage="aggregated"))

    def mover(self, transport: Transport | None = None) -> StorageMover:
        client = self.client if transport is None else Client(transport)
        return StorageMover(
            client, SystemClock(), self.told.append, self.custom, self.aggregated, timeout=60.0, grace=0.0
        )

    # What users do and see

    async def claim(self, name: str) -> None:
        await self.client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "python"}}), NS)
        await self.ready(name)

    async def ready(self, name: str) -> None:
        async def met() -> bool:
            return is_ready(await self.client.get(SANDBOX_CLAIM, name, NS))

        await until(met, within=60)

    async def served(self) -> None:
        """Wait until the kinds are served."""

        async def met() -> bool:
            try:
                return bool(await self._all(SANDBOX))
            except ServiceUnavailable:
                return False

        await until(met, within=60)

    async def filled(self) -> None:
        async def met() -> bool:
            status = (await self.client.get(SANDBOX_WARM_POOL, "python", NS)).get("status") or {}
            claims = await self._all(SANDBOX_CLAIM)
            boxes = [each for each in await self._all(SANDBOX) if each["metadata"]["name"] != SUSPENDED]
            replaced = len(boxes) == len(await self._all(POD)) == 2 + len(claims)
            return replaced and all(map(is_ready, boxes)) and status.get("readyReplicas") == 2

        await until(met, within=60)

    async def children(self) -> dict[tuple[str, str], str]:
        """The UID of each pod, Service and volume claim, by kind and name."""
        return {
            (type.kind, each["metadata"]["name"]): each["metadata"]["uid"]
            for type in CHILDREN
            for each in await self._all(type)
        }

    async def held(self) -> dict[str, str]:
        """The sandbox of each claim, by name."""
        return {each["metadata"]["name"]: each["status"]["sandbox"]["name"] for each in await self._all(SANDBOX_CLAIM)}

    async def uids(self) -> dict[tuple[str, str], str]:
        kinds = (SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM, SANDBOX)
        return {
            (type.kind, each["metadata"]["name"]): each["metadata"]["uid"]
            for type in kinds
            for each in await self._all(type)
        }

    async def unowned(self) -> set[tuple[str, str]]:
        """The pods, Services and volume claims whose owner is not the sandbox that is there now."""
        boxes = {each["metadata"]["uid"] for each in await self._all(SANDBOX)}
        owners = {
            (type.kind, each["metadata"]["name"]): [ref["uid"] for ref in each["metadata"].get("ownerReferences") or ()]
            for type in CHILDREN
            for each in await self._all(type)
        }
        return {child for child, uids in owners.items() if len(uids) != 1 or not boxes.issuperset(uids)}

    async def defined(self) -> bool:
        try:
            await self.client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)
        except NotFound:
            return False
        return True

    async def _all(self, type: Any) -> list[SharedObject]:
        items: list[SharedObject] = (await self.client.list(type, NS))["items"]
        return items

    # The cluster

    def passes_on(self, group: str) -> bool:
        """Whether requests for a group go to the aggregated API server."""
        entry = self.api.store.get(API_SERVICE.group_resource, Key("", f"{_VERSION}.{group}"))
        return entry is not None and bool(entry.decode()["spec"].get("service"))

    def workload_changed(self) -> None:
        self._background(self._reconcile())

    async def crash_process(self) -> None:
        """Kill the aggregated API server, if it runs. What it would still say reaches no other process."""
        async with self._changing:
            if self._connection is not None:
                self._connection.kill()
            await self._stop_process()
        await self._reconcile()

    async def end_controllers(self) -> None:
        """Stop the controllers of custom resources."""
        if self.controllers is not None:
            ended, self.controllers = self.controllers, None
            await ended.stop()

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reconcile(self, *, stopping: bool = False) -> None:
        """Run what the workloads say."""
        async with self._changing:
            wanted = not stopping and self._exists(STATEFUL_SET.group_resource, names.APISERVER)
            if not wanted:
                await self._stop_process()
            elif self.process is None:
                await self._start_process()
            wanted = not stopping and self._exists(DEPLOYMENT.group_resource, names.CONTROLLER)
            if not wanted:
                await self.end_controllers()
            elif self.controllers is None:
                election = LeaderElector(
                    self.client, names.LEASE, names.NAMESPACE, "controllers", SystemClock(), Random(1), terms=_TIMING
                )
                self.controllers = ControllerProcess(self.client.transport, SystemClock(), Random(1), election=election)
                await self.controllers.start()

    def _exists(self, resource: str, name: str) -> bool:
        return self.api.store.get(resource, Key(names.NAMESPACE, name)) is not None

    async def _start_process(self) -> None:
        serving = ServingOptions(self.directory / "volume", "127.0.0.1", 0, ("localhost",), names.NAMESPACE)
        options = ApiServerOptions(serving, names.LEASE, names.NAMESPACE, terms=_TIMING)
        self.killed_after += 1
        transport = self._connection = _KillableTransport(self, self.client.transport)
        self.process = AggregatedProcess(transport, transport, SystemClock(), Random(1), options)
        await self.process.start()
        self._background(self.process.wait())

    async def _stop_process(self) -> None:
        if self.process is not None:
            stopped, self.process = self.process, None
            await stopped.stop()

    def process_killed(self) -> None:
        """From now on its clients get 503; the StatefulSet restarts it."""
        self.kills += 1
        if self.process is not None:
            self.process.serving.clear()
        self._background(self.crash_process())

    def _check(self) -> None:
        """Note the objects that a garbage collector would delete now."""
        for type in DEPENDENTS:
            for entry in self.api.store.scan(type.group_resource):
                child = entry.decode()["metadata"]
                references = child.get("ownerReferences") or ()
                if references and not any(self._lives(child["namespace"], each) for each in references):
                    self.would_collect.append(f"{type.kind} {child['name']}: {references}")

    def _lives(self, namespace: str, reference: Object) -> bool:
        type = next((each for each in SANDPOOL if each.kind == reference["kind"]), None)
        if type is None:
            return True  # of another kind
        key = Key(namespace, reference["name"])
        if not self.passes_on(type.group):
            entry = self.api.store.get(type.group_resource, key)
        elif self.process is None or not self.process.serving.is_set():
            return True  # 503
        else:
            entry = self.process._store.head(type.group_resource, key)
        return entry is not None and entry.uid == reference["uid"]


class _KillableTransport:
    """The connection of one process with kube-apiserver. It breaks when the process is killed: by ``kill``, or at a
    request of the process, before it is sent or before the response arrives."""

    def __init__(self, world: MovingWorld, transport: Transport) -> None:
        self._world = world
        self._transport = transport
        self._left = world.killed_after
        self._killed = False

    def kill(self) -> None:
        self._killed = True

    async def request(self, request: Request) -> Any:
        self._refuse_killed()
        self._left -= 1
        if self._left > 0:
            response = await self._transport.request(request)
            self._refuse_killed()
            return response
        if self._world.killed_after_sending:
            await self._transport.request(request)
        if not self._killed:
            self.kill()
            self._world.process_killed()
        raise ConnectionResetError("the process was killed")

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        self._refuse_killed()
        async for event in self._transport.stream(request):
            self._refuse_killed()
            yield event

    def _refuse_killed(self) -> None:
        if self._killed:
            raise ConnectionResetError("the process was killed")

    async def close(self) -> None:
        """The world closes what is behind it."""


class _Aggregator:
    """Sends requests where the APIServices say."""

    def __init__(self, world: MovingWorld, kubernetes: Transport) -> None:
        self._world = world
        self._kubernetes = kubernetes
        self._passed: dict[AggregatedProcess, Transport] = {}
        self._changed = asyncio.Event()  # replaced at each change of a definition

    async def request(self, request: Request) -> Any:
        try:
            return await self._side(request).request(request)
        finally:
            if "/customresourcedefinitions" in request.path and request.method != "GET":
                self._changed.set()
                self._changed = asyncio.Event()
            if "/deployments" in request.path or "/statefulsets" in request.path:
                self._world.workload_changed()

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        side = self._side(request)
        if "/moving/" in request.path:  # a change of the definition ends its watches
            await self._changed.wait()
            return
        async for event in side.stream(request):
            yield event

    async def close(self) -> None:
        """The world closes what is behind it."""

    def _side(self, request: Request) -> Transport:
        world = self._world
        for group in GROUPS:
            if request.path.startswith(f"/apis/{group}/{_VERSION}/") and world.passes_on(group):
                process = world.process
                if process is None or not process.serving.is_set():
                    raise ServiceUnavailable("service unavailable")
                assert process._server is not None
                user = User("admin", (MASTERS,))
                if process not in self._passed:
                    self._passed[process] = InProcessTransport(process._server.handler, user, clock=SystemClock())
                return self._passed[process]
        return self._kubernetes


class Dying:
    """A transport whose user is killed at its ``at``-th write: before it is sent, or before the response arrives."""

    def __init__(self, transport: Transport, at: int, *, sent: bool) -> None:
        self._transport = transport
        self._left = at
        self._sent = sent

    async def request(self, request: Request) -> Any:
        if self._left <= 0:
            raise Killed
        if request.method != "GET":
            self._left -= 1
            if self._left == 0:
                if self._sent:
                    await self._transport.request(request)
                raise Killed
        return await self._transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self._transport.stream(request)

    async def close(self) -> None:
        """The world closes what is behind it."""
