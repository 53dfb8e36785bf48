"""Assembles a node for this machine: runtimes that pass their self-test, a network, images, volumes and logs.

What is not available here is left out, never silently replaced by something weaker. A runtime that fails its self-test
is unavailable, and without network privileges every pod is isolated. The Node's conditions state both.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.kinds import SECRET
from sandpool.api.resource import Key
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.node import agent
from sandpool.node.agent import SHUTDOWN_GRACE, NodeAgent, Parts
from sandpool.node.cgroups.environment_groups import EnvironmentGroups
from sandpool.node.cgroups.group import Groups
from sandpool.node.cgroups.hierarchy import Cgroups
from sandpool.node.cgroups.mounts import NoCgroups, discover
from sandpool.node.cgroups.pid_namespace_groups import PidNamespaceGroups
from sandpool.node.images.resolver import ImageResolver
from sandpool.node.kubelet import kubelet
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.logs.manager import LogManager
from sandpool.node.machine import read_machine
from sandpool.node.network import routed
from sandpool.node.network.dns import name_servers
from sandpool.node.network.informers import NetworkInformers
from sandpool.node.network.isolated import IsolatedNetwork
from sandpool.node.network.loopback import LoopbackNetwork
from sandpool.node.network.pod_cidr import NoPodCidrAvailable, check_pod_cidr, choose_pod_cidr
from sandpool.node.network.rootless import RootlessNetwork
from sandpool.node.pod_access import NodePodAccess
from sandpool.node.pods import interfaces
from sandpool.node.pods.context import PODS, Runtimes
from sandpool.node.pods.downward import PodPlacement
from sandpool.node.pods.host_users import FIRST
from sandpool.node.registration import RegistrationOptions, allocatable
from sandpool.node.runtimes.bwrap import BwrapRuntime
from sandpool.node.runtimes.gvisor import GvisorRuntime
from sandpool.node.runtimes.handlers import SUPPORTED, with_aliases, with_unsupported
from sandpool.node.runtimes.oci import CrunRuntime, RuncRuntime
from sandpool.node.runtimes.process import PROCESS, WARNING, ProcessRuntime
from sandpool.node.runtimes.runtime import Runtime
from sandpool.node.runtimes.simulated import SIMULATED, SimulatedRuntime
from sandpool.node.runtimes.spec_codec import recorded_roots
from sandpool.node.scheduling.scheduler import Scheduler
from sandpool.node.volumes import disk
from sandpool.node.volumes.manager import VolumeManager
from sandpool.node.volumes.provisioner import Provisioner
from sandpool.node.volumes.root_disk import ROOT_SIZE, RootDisks

_log = logging.getLogger(__name__)

# Seconds between updates of files made of API objects; kubelet's figure.
_REFRESH: Final = 60.0
# The default runtime is the first of these that is available.
_PREFERRED: Final = ("bwrap", "crun")
#: Bytes of an emptyDir that sets no sizeLimit. The file is sparse: only what is written takes up room.
VOLUME_SIZE: Final = 10 << 30
# Guarantees that do not hold without root: type of a node condition -> its message.
_WITHOUT_ROOT: Final = {
    "SandboxLimitsNotEnforced": "limits of CPU, memory and processes are not enforced: only root can set them",
    "SandboxUserShared": "all sandboxes are one user of this machine, the node's own: namespaces alone keep them apart",
}
_PLAIN: Final = "this node runs without root and with --allow-unsafe-process-runtime"
# Type and message of the condition for volumes on disk without a size.
_UNLIMITED: Final = "SandboxVolumesNotLimited"
_UNLIMITED_WHY: Final = "sandboxes can use up the disk: sizes of volumes on disk are not enforced"
# Type of the condition for an available runtime without isolation.
_UNSAFE: Final = "SandboxesNotIsolated"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Settings of a node.

    * ``alone``: there is no other control plane, so the node also binds pods and claims and publishes RuntimeClasses.
    * ``instance`` distinguishes several nodes on one machine.
    * ``host`` is the network namespace that the node treats as the machine's, if not its own.
    * ``unsafe_processes`` lets pods run without isolation if they ask for the runtime class of that name. Without root,
      where no other runtime exists then, it runs all pods.
    """

    directory: Path
    registration: RegistrationOptions
    alone: bool = True
    instance: str = ""
    addresses: IPv4Network | None = None  # of pods; None: a free range
    first_host_user: int = FIRST
    allow_host_paths: bool = False
    host: Path | None = None
    unsafe_processes: bool = False
    volume_size: int = VOLUME_SIZE  # bytes of an emptyDir that sets no sizeLimit
    root_size: int = ROOT_SIZE  # bytes of a container's root that sets no ephemeral-storage limit
    kubelet: kubelet.KubeletOptions | None = None  # None: all clients of pods are in this process
    freezes: bool = True  # unused pods that ask for it; clients must not reach pods without passing through the node


class Node:
    """``start`` returns when it serves, ``stop`` when all its tasks have ended; with ``keep`` pods keep running. A
    start that fails undoes itself: the machine is as it was before, with the pods of an earlier node if there are any.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        rng: Random,
        settings: NodeOptions,
        *,
        logs: interfaces.Logs | None = None,
    ) -> None:
        self.client = client
        self.clock = clock
        self.rng = rng
        self.settings = settings
        self.logs = LogManager(clock)
        self.listener: interfaces.Logs = self.logs if logs is None else logs  # stores the output of containers
        self.launcher = LauncherClient()
        self._grace = SHUTDOWN_GRACE
        self._running: list[asyncio.Task[None]] = []
        self._cgroups: Groups | None = None
        self._simulated = SimulatedRuntime(settings.directory / PODS)
        self.runtimes = Runtimes({}, _PREFERRED[0])
        # Undo of each step of the start, in start order; the argument tells whether pods are kept.
        self._ends: list[Callable[[bool], Coroutine[Any, Any, None]]] = []

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop(keep=await self._has_pods())
            raise

    async def _start(self) -> None:
        settings = self.settings
        settings.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._ends.append(self._end_confinement)
        self.runtimes = await self._with_volume_sizes(await self._runtimes())
        self._ends.append(self._end_work)
        self.network = await self._network()
        self._ends[-1:] = [lambda keep: self.network.stop(keep=keep), self._end_work]
        amounts = allocatable(read_machine(settings.directory), settings.registration)
        storage = settings.directory / "volumes"
        self.provisioner = Provisioner(
            self.client, self.clock, self.rng, storage, settings.registration.name, binds=settings.alone
        )
        self.volumes = VolumeManager(
            self.client,
            storage,
            PodPlacement(settings.registration.name, self.network.host_addresses),
            amounts,
            self.clock,
            self.provisioner,
            host_paths=settings.allow_host_paths,
            disk_size=settings.volume_size if _UNLIMITED not in self.runtimes.weaknesses else None,
        )
        images = ImageResolver(
            settings.directory / "images",
            used=lambda: recorded_roots(self.agent.context.options.pods),
            secrets=lambda name, namespace: self.client.get(SECRET, name, namespace),
        )
        images.store.close_to_others()
        self.agent = NodeAgent(
            self.client,
            self.clock,
            self.rng,
            agent.AgentOptions(
                settings.directory,
                settings.registration,
                allow_host_paths=settings.allow_host_paths,
                publish_classes=settings.alone,
                first_host_user=settings.first_host_user,
                own_user=self._is_unprivileged,
                freezes=settings.freezes,
            ),
            Parts(self.runtimes, images, self.network, self.volumes, self.listener, await self._root_disks()),
        )
        self.pod_access = NodePodAccess(self.agent, self.logs)
        if settings.kubelet is not None:
            await self._start_kubelet(settings.kubelet)
        self._begin(self.provisioner.run(), "provisioner")
        self._ends.append(self._end_volumes)
        self._ends.append(lambda keep: self.agent.stop(keep=keep, grace=self._grace))
        await self.agent.start()
        self._begin(self._refresh(), "volumes that follow the API")
        self.scheduler = Scheduler(
            self.client,
            self.clock,
            self.rng,
            instance=settings.registration.name,
            has_volume=lambda volume: (storage / volume).is_dir(),
        )
        if settings.alone:
            self._ends.append(lambda keep: self.scheduler.stop())
            await self.scheduler.start()

    async def _start_kubelet(self, settings: kubelet.KubeletOptions) -> None:
        """Serve the node's own API to other processes. Its endpoint is part of the Node object from the beginning."""
        agent = self.agent
        server = kubelet.Kubelet(
            self.client,
            self.clock,
            settings,
            agent.name,
            self.settings.directory / "pki",
            lambda namespace, name: agent.pods.get(Key(namespace, name)),
            self.pod_access,
        )
        agent.endpoint = await server.start()
        self._ends.append(lambda keep: server.stop())

    async def wait(self) -> None:
        """Wait until stopped. Raises unexpected errors of background tasks."""
        waiting = [*self._running, asyncio.create_task(self.agent.wait())]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            waiting[-1].cancel()

    async def stop(self, *, keep: bool = False, grace: float = SHUTDOWN_GRACE) -> None:
        self._grace = grace
        while self._ends:
            await self._ends.pop()(keep)

    async def _has_pods(self) -> bool:
        """Whether pods of an earlier node run here, or seem to."""
        return bool((self._cgroups is not None and self._cgroups.group().children()) or await self._simulated.pods())

    async def _end_work(self, keep: bool) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.logs.close()

    async def _end_volumes(self, keep: bool) -> None:
        if not keep:
            await self.volumes.close()
            # Also of pods whose start was cut short: their directory could not be removed.
            await asyncio.to_thread(disk.unmount_below, self.settings.directory / PODS)

    async def _end_confinement(self, keep: bool) -> None:
        for runtime in self.runtimes.every.values():
            await runtime.close()
        if self._cgroups is not None:
            if not keep:
                await self._cgroups.group().remove()
            self._cgroups.close()
        self.launcher.close()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._running.append(asyncio.create_task(work, name=name))

    async def refresh(self) -> None:
        """Update volumes that are made of API objects."""
        await self.volumes.refresh({uid: worker.state.pod.object for uid, worker in self.agent.workers.items()})

    async def _refresh(self) -> None:
        while True:
            await self.clock.sleep(_REFRESH)
            await self.refresh()

    # -- optional parts ------------------------------------------------------------------------------------------------

    async def _runtimes(self) -> Runtimes:
        try:
            self._cgroups = self._groups()
        except NoCgroups as error:
            why_not = with_unsupported({}, dict.fromkeys(SUPPORTED, str(error)))
            return Runtimes({}, _PREFERRED[0], why_not, failed={SIMULATED: self._simulated})
        available: dict[str, Runtime] = {}
        failed: dict[str, Runtime] = {}
        unavailable = dict.fromkeys(SUPPORTED, _PLAIN) if self._is_plain else {}
        candidates = self._candidates(self._cgroups)
        for runtime, why in zip(candidates, await asyncio.gather(*(each.probe() for each in candidates)), strict=True):
            if why is None:
                available[runtime.name] = runtime
            else:
                _log.debug("runtime %s cannot be used: %s", runtime.name, why)
                failed[runtime.name] = runtime
                unavailable[runtime.name] = why
        # Without another runtime the node must not be ready, or other pods would be scheduled here.
        (available if available else failed)[SIMULATED] = self._simulated
        preferred = (PROCESS,) if self._is_plain else _PREFERRED
        default = next((name for name in preferred if name in available), _PREFERRED[0])
        weaknesses = dict(_WITHOUT_ROOT) if self._is_unprivileged and not self._is_plain else {}
        if PROCESS in available:
            _log.warning("%s", WARNING)
            weaknesses[_UNSAFE] = WARNING
        return Runtimes(with_aliases(available), default, with_unsupported(available, unavailable), weaknesses, failed)

    async def _with_volume_sizes(self, runtimes: Runtimes) -> Runtimes:
        """Record as a weakness that volumes on disk cannot be given a size here."""
        why = await asyncio.to_thread(disk.unavailable, self.settings.directory)
        if not why:
            return runtimes
        _log.warning("%s: %s", _UNLIMITED_WHY, why)
        return replace(runtimes, weaknesses={**runtimes.weaknesses, _UNLIMITED: f"{_UNLIMITED_WHY} ({why})"})

    async def _root_disks(self) -> RootDisks | None:
        """Disks for the roots of containers, or None where they have to write to memory."""
        if self._is_unprivileged or _UNLIMITED in self.runtimes.weaknesses:
            return None
        disks = RootDisks(self.settings.directory / "roots", self.settings.root_size)
        if why := await asyncio.to_thread(disks.unavailable):
            _log.warning("the roots of sandboxes are kept in memory: %s", why)
            return None
        return disks

    @property
    def _is_unprivileged(self) -> bool:
        """Whether this node runs without root."""
        return os.geteuid() != 0

    @property
    def _is_plain(self) -> bool:
        """Whether all pods run without isolation, because the operator allows it and is not root."""
        return self.settings.unsafe_processes and self._is_unprivileged

    def _groups(self) -> Groups:
        if self._is_unprivileged:
            directory = self.settings.directory / "processes"
            return EnvironmentGroups(directory) if self._is_plain else PidNamespaceGroups(directory)
        return Cgroups(discover(), f"sandpool{self.settings.instance}")

    def _candidates(self, cgroups: Groups) -> list[Runtime]:
        directory = self.settings.directory / "selftest"
        if self._is_plain:
            return [ProcessRuntime(cgroups, self.launcher, self.clock, directory=directory)]
        found: list[Runtime] = [
            BwrapRuntime(cgroups, self.launcher, self.clock, directory=directory),
            CrunRuntime(cgroups, self.launcher, self.clock, directory=directory),
            RuncRuntime(cgroups, self.launcher, self.clock, directory=directory),
            GvisorRuntime(cgroups, self.launcher, self.clock, directory=directory),
        ]
        if self.settings.unsafe_processes:
            found.append(ProcessRuntime(cgroups, self.launcher, self.clock, directory=directory))
        return found

    async def _network(self) -> routed.RoutedNetwork | IsolatedNetwork | LoopbackNetwork | RootlessNetwork:
        settings = self.settings
        if self._is_unprivileged:
            place = settings.directory / "addresses"
            network = LoopbackNetwork(place) if self._is_plain else RootlessNetwork(place, self.launcher)
            await network.start()
            return network
        directory = settings.directory / "network"
        around = NetworkInformers(self.client, self.clock, self.rng, settings.registration.name)
        self._begin(around.run(), "what the network knows of the API")
        await around.synced()
        chosen = settings.addresses
        try:
            if chosen is None:
                chosen = await asyncio.to_thread(choose_pod_cidr, settings.directory, settings.host)
            else:
                await asyncio.to_thread(check_pod_cidr, chosen, settings.host, routed.uplink_name(settings.instance))
        except NoPodCidrAvailable as error:
            return await self._isolated_network(str(error))
        connected = routed.RoutedNetwork(
            routed.RoutedNetworkOptions(
                directory,
                chosen,
                settings.instance,
                host=settings.host,
                resolve=around.resolve,
                name_servers=name_servers(),
            ),
            around.policies,
            around.namespaces,
            self.clock,
        )
        try:
            await connected.start()
        except routed.NetworkUnavailable as error:
            return await self._isolated_network(str(error))
        around.report_labels(connected.enforcer)
        return connected

    async def _isolated_network(self, why: str) -> IsolatedNetwork:
        _log.warning("%s", why)
        isolated = IsolatedNetwork(self.settings.directory / "namespaces", why)
        await isolated.start()
        return isolated
