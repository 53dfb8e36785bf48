"""A real Kubernetes with Sandpool installed, each part in a process whose costs are measured.

etcd, kube-apiserver and kube-controller-manager run as in a cluster, and ``sandpool install`` installs the same objects
as everywhere. No kubelet runs the Deployment, so ``sandpool controller`` is started as a process with the installed
service account. A simulated node runs the pods. With the storage ``aggregated``, ``sandpool apiserver`` takes the place
of that process; the requests of its controllers to its own store are in an audit log of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import aiohttp

from sandpool.api.sandbox_spec import Profile
from sandpool.bench.accounting import CLIENT, CONTROLLERS, NODES, OTHERS
from sandpool.bench.child_process import Component, ComponentFailed
from sandpool.bench.environments import Place, free_port
from sandpool.bench.load import Show
from sandpool.bench.subjects import client_of, cpu_seconds, resident_bytes, starved_seconds
from sandpool.bench.usage import Usage, usage_in
from sandpool.engine.clock import Clock
from sandpool.explain.audit import Audit, AuditedRequest, request_of_kubernetes
from sandpool.install import manifests, names
from sandpool.install.installer import Installer
from sandpool.install.manifests import DEFAULT_PROFILE, InstallOptions
from sandpool.install.storage import DEFAULT_STORAGE, Storage
from sandpool.server.aggregated.process import CONTROLLERS as IN_PROCESS
from sandpool.server.serving.pki import Authority
from sandpool.testing.waiting import until
from tests.support.aggregated_backend import ACCOUNT as AGGREGATED_ACCOUNT
from tests.support.aggregated_cluster import AggregatedApi
from tests.support.api_access import HttpEndpoint
from tests.support.both_logs import BothLogs
from tests.support.control_plane import ControlPlane, aggregation_flags
from tests.support.installed_cluster import ACCOUNT, Cluster
from tests.support.users import ADMIN

T = TypeVar("T")

#: The name of the controller process in figures. Other processes have the names of their programs.
CONTROLLER: Final = "controller"
LOAD: Final = "the load"
_NODE: Final = "node"
_USERS: Final = {CLIENT: ("system:masters",), _NODE: ("system:masters",)}
_WRITERS: Final = {
    CLIENT: CLIENT,
    ACCOUNT: CONTROLLERS,
    AGGREGATED_ACCOUNT: CONTROLLERS,
    IN_PROCESS: CONTROLLERS,
    _NODE: NODES,
}
# A control plane on a busy machine may take seconds to renew a lease, and the benchmark measures claims.
_PATIENT: Final = ("--leader-elect-lease-duration", "60s", "--leader-elect-renew-deadline", "50s")
# The arguments of the Deployment.
_ARGUMENTS: Final = ("controller", "--leader-elect=true", "--leader-election-namespace", names.NAMESPACE, *_PATIENT)
# Seconds until a process must answer, and between two checks that it still runs.
_TIMEOUT: Final = 60.0
_PAUSE: Final = 0.5


@dataclass(frozen=True)
class Installation:
    """``place`` describes the cluster for a load. ``controller`` can be stopped and started at any time."""

    plane: ControlPlane
    controller: Component
    node: Component
    place: Place
    clock: Clock

    async def working(self, work: Coroutine[None, None, T]) -> T:
        """Return the result of ``work``. Raises ``ComponentFailed`` if a process ends first."""
        task, watching = asyncio.create_task(work), asyncio.create_task(self._ended())
        try:
            await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await watching
            return await task
        finally:
            task.cancel()
            watching.cancel()
            await asyncio.gather(task, watching, return_exceptions=True)

    async def _ended(self) -> None:
        while True:
            for each in (self.controller, self.node, *self.plane.components):
                if not each.running:
                    raise ComponentFailed(f"{each.name} has ended\n{each.tail()}")
            await self.clock.sleep(_PAUSE)


@asynccontextmanager
async def installation(
    directory: Path,
    clock: Clock,
    show: Show,
    *,
    profile: Profile = DEFAULT_PROFILE,
    storage: Storage = DEFAULT_STORAGE,
    flags: Sequence[str] = (),
) -> AsyncIterator[Installation]:
    """Start the control plane and install Sandpool. Logs are written to ``directory``; ``flags`` are passed to the
    controller. Everything is durable: etcd syncs every write."""
    show("starting etcd, kube-apiserver and kube-controller-manager")
    aggregating = aggregation_flags(Authority(directory / "front-proxy", clock)) if storage == "aggregated" else ()
    control_plane = ControlPlane(users=_USERS, audit=(*_WRITERS, ADMIN), apiserver_flags=aggregating)
    async with control_plane as plane, _endpoint(plane) as endpoint:
        admin = endpoint.client_for(ADMIN)
        audit: Audit = Audit(plane.audit_log, request_of_kubernetes)
        metrics, health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        addresses = ("--metrics-bind-address", metrics, "--health-probe-bind-address", health)
        show(f"installing with the storage {storage}")
        if storage == "aggregated":
            own = directory / "own-audit.log"
            api = AggregatedApi(plane, directory, options=(*addresses, *_PATIENT, "--audit-log", str(own), *flags))
            await api.start(admin)
            audit = BothLogs(plane.audit_log, own, IN_PROCESS, AGGREGATED_ACCOUNT)
            controller = api.process
        else:
            objects = [manifests.namespace(), *manifests.core(InstallOptions(profile=profile))]
            await Installer(admin, clock, lambda line: None).install(objects)
            token = await Cluster(plane, admin, audit).token()
            kubeconfig = plane.write_kubeconfig(directory / "controller.kubeconfig", ACCOUNT, token=token)
            command: list[str | Path] = [
                sys.executable,
                "-m",
                "sandpool.cli.main",
                *_ARGUMENTS,
                "--kubeconfig",
                kubeconfig,
            ]
            controller = Component("sandpool controller", [*command, *addresses, *flags], directory / "controller.log")
            controller.start()
        # The garbage collector discovers new kinds at its start, and then every 30 seconds.
        plane.restart(plane.controller_manager)
        kubeconfigs = {who: plane.write_kubeconfig(directory / name, who) for who, name in _KUBECONFIGS.items()}
        node = Component(
            "node", [sys.executable, "-m", "benchmarks.simulated_kubelet", kubeconfigs[_NODE]], directory / "node.log"
        )
        users = client_of(kubeconfigs[CLIENT])
        async with aiohttp.ClientSession() as session, users as load:

            async def usage() -> Usage:
                async with session.get(f"http://{metrics}/metrics") as answer:
                    told = usage_in(await answer.text(), CONTROLLER)
                return _used(plane, controller, node, told)

            async def ready() -> bool:
                try:
                    async with session.get(f"http://{health}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    if not controller.running:
                        raise RuntimeError(f"the controller has ended\n{controller.tail()}") from None
                    return False

            node.start()
            try:
                await until(ready, within=_TIMEOUT)
                place = Place("kubernetes", load, audit, writer, usage)
                yield Installation(plane, controller, node, place, clock)
            finally:
                node.stop()
                controller.stop()


_KUBECONFIGS: Final = {_NODE: "node.kubeconfig", CLIENT: "load.kubeconfig"}


def writer(asked: AuditedRequest) -> str:
    """Return the writer of a request: each part has its own user here."""
    return _WRITERS.get(asked.user, OTHERS)


@asynccontextmanager
async def _endpoint(plane: ControlPlane) -> AsyncIterator[HttpEndpoint]:
    endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
    try:
        yield endpoint
    finally:
        await endpoint.close()


def _used(plane: ControlPlane, controller: Component, node: Component, told: Usage) -> Usage:
    components = {CONTROLLER: controller, _NODE: node, **{each.name: each for each in plane.components}}
    processes = {name: component.pid for name, component in components.items()} | {LOAD: os.getpid()}
    return Usage(
        told.reconciles,
        {name: cpu_seconds(pid) for name, pid in processes.items()} | {LOAD: time.process_time()},
        {name: starved_seconds(pid) for name, pid in processes.items()},
        {name: resident_bytes(pid) for name, pid in processes.items()},
        told.startups,
    )
