"""The node agent: runs the pods that are bound to this node, through nothing but a ``Client``.

It works the same with the embedded API and a real kube-apiserver. It registers the Node, renews its Lease, and starts
one worker per pod. The order at the start matters: first list every pod bound here, then remove what an earlier agent
left of pods that no longer exist, and only then start anything.

An agent may be killed at any time. Its containers keep running, and the next agent adopts them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from sandpool.api.kinds import POD, RUNTIME_CLASS, SERVICE
from sandpool.api.resource import Key, Object
from sandpool.api.views import ServiceView
from sandpool.engine.background import BackgroundGate
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock, within
from sandpool.engine.events import EventRecorder
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists
from sandpool.node.heartbeat import Heartbeat
from sandpool.node.machine import read_machine, read_remaining
from sandpool.node.pods import context, events
from sandpool.node.pods.checkpoint import PodCheckpoint, read_checkpoint
from sandpool.node.pods.context import NodeContext, Runtimes
from sandpool.node.pods.host_users import FIRST, HostUsers, OwnUser
from sandpool.node.pods.interfaces import Images, Logs, Network, RootDisks, Volumes
from sandpool.node.pods.phase import phase
from sandpool.node.pods.resource_admission import ResourceAdmission
from sandpool.node.pods.resources import volume_directory
from sandpool.node.pods.restore import restore_state
from sandpool.node.pods.service_links import service_links
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.state import FailureReason, Moment, PodState
from sandpool.node.pods.unsupported_fields import REASON, find_unsupported, message
from sandpool.node.pods.worker import PodWorker
from sandpool.node.registration import KubeletEndpoint, NodeCapabilities, RegistrationOptions, allocatable
from sandpool.node.runtimes.handlers import DESCRIPTIONS
from sandpool.node.runtimes.runtime import PodSandbox
from sandpool.node.runtimes.simulated import SIMULATED
from sandpool.node.sleep.monitor import SleepMonitor

_log = logging.getLogger(__name__)

_NAMESPACE: Final = "namespace"
# Seconds before a worker that failed is replaced.
_PAUSE: Final = 1.0
_API_SERVICE: Final = Key("default", "kubernetes")
# Kubernetes' own annotation for it.
_DESCRIPTION: Final = "kubernetes.io/description"
#: Seconds that containers have to end when the node stops and takes them along.
SHUTDOWN_GRACE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The implementations that do the work on this machine."""

    runtimes: Runtimes
    images: Images
    network: Network
    volumes: Volumes
    logs: Logs
    root_disks: RootDisks | None = None


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Settings of an agent. ``publish_classes`` creates a RuntimeClass for every known handler."""

    directory: Path
    registration: RegistrationOptions
    cluster_domain: str = "cluster.local"
    allow_host_paths: bool = False
    publish_classes: bool = False
    first_host_user: int = FIRST
    own_user: bool = False  # pods run as the node's own user, for lack of privileges
    freezes: bool = True  # every client of pods passes through this process, so that it can thaw them


class NodeAgent:
    """``start`` returns when it serves, ``stop`` when all its tasks have ended. ``wait`` raises if it breaks."""

    def __init__(self, client: Client, clock: Clock, rng: Random, settings: AgentOptions, parts: Parts) -> None:
        self.client = client
        self.clock = clock
        self.rng = rng
        self.settings = settings
        self.parts = parts
        self.name = settings.registration.name
        self.endpoint: KubeletEndpoint | None = None  # of its own API; set before it starts
        self.pods: Cache[Object] = Cache(lambda pod: pod, name=f"pods of node {self.name}")
        self.services = Cache(ServiceView.from_object, name="services")
        self.services.add_index(_NAMESPACE, lambda service: (service.namespace,))
        self.classes: Cache[str] = Cache(lambda found: str(found["handler"]), name="runtime classes")
        self.recorder = EventRecorder(client, clock, self.name)
        self.workers: dict[str, PodWorker] = {}  # by pod UID; only workers that have not ended
        self.sleep = SleepMonitor(self.workers, client, clock, freezes=settings.freezes)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the workers
        self._running: list[asyncio.Task[Any]] = []  # tasks that end only when the agent stops
        self._replacing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        settings = self.settings
        settings.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        machine = read_machine(settings.directory)
        self.context = self._make_context(allocatable(machine, settings.registration))
        self.admission = ResourceAdmission(self.context.allocatable, self.context.options.pod_directory)
        self.context.options.pods.mkdir(mode=0o711, exist_ok=True)
        self.heartbeat = Heartbeat(
            self.client,
            self.clock,
            machine,
            settings.registration,
            self._capabilities,
            lambda: read_remaining(settings.directory),
        )
        self.recorder.start()
        if settings.publish_classes:
            await self._publish_classes()
        await self._reflect()
        await self._remove_orphans()
        await self.heartbeat.register()
        self._run_in_background(self.heartbeat.run(), "heartbeat")
        self._run_in_background(self.sleep.run(), "sleep of pods")
        self.pods.subscribe(self.admission.pod_changed)  # count pods that an earlier agent admitted before new ones
        self.pods.subscribe(self._pod_changed)

    async def wait(self) -> None:
        """Wait until stopped. Raises unexpected errors of background tasks."""
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def stop(self, *, keep: bool = False, grace: float = SHUTDOWN_GRACE) -> None:
        """Stop every container within ``grace`` seconds; with ``keep`` leave them for the next agent to adopt."""
        termination = [*self._running, *self._replacing]
        for task in termination:
            task.cancel()
        await asyncio.gather(*termination, return_exceptions=True)
        if not keep:
            await self._halt(grace)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if not keep:
            await self.heartbeat.stop()
        await self.recorder.stop()

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of a pod that is bound here."""
        pod = self.pods.get(Key(namespace, name))
        return None if pod is None else self.workers.get(pod["metadata"]["uid"])

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def _capabilities(self) -> NodeCapabilities:
        runtimes, network = self.parts.runtimes, self.parts.network
        return NodeCapabilities(
            tuple(sorted(runtimes.available)),
            runtimes.unavailable,
            {**network.weaknesses, **runtimes.weaknesses},
            network.host_addresses,
            self.endpoint,
        )

    def _make_context(self, amounts: Mapping[str, str]) -> NodeContext:
        parts, settings = self.parts, self.settings
        own = context.PodOptions(
            self.name, settings.directory, settings.cluster_domain, allow_host_paths=settings.allow_host_paths
        )
        checkpoints = map(read_checkpoint, own.pods.iterdir() if own.pods.is_dir() else ())
        taken = (checkpoint.host_uid for checkpoint in checkpoints if checkpoint is not None)
        return NodeContext(
            client=self.client,
            clock=self.clock,
            rng=self.rng,
            recorder=self.recorder,
            options=own,
            runtimes=parts.runtimes,
            images=parts.images,
            network=parts.network,
            volumes=parts.volumes,
            logs=parts.logs,
            host_users=OwnUser() if settings.own_user else HostUsers(settings.first_host_user, taken=taken),
            allocatable=amounts,
            service_links=self._service_links,
            runtime_handler=lambda name: self.classes.get(Key("", name)),
            record_write=self.pods.record_write,
            background_turn=BackgroundGate(self.clock).wait,
            root_disks=parts.root_disks,
        )

    async def _reflect(self) -> None:
        """Start the informers and return once their caches have synced."""
        mine = f"spec.nodeName={self.name}"
        reflectors: list[Reflector[Any]] = [
            Reflector(self.client, POD, self.pods, self.clock, self.rng, field_selector=mine),
            Reflector(self.client, SERVICE, self.services, self.clock, self.rng),
            Reflector(self.client, RUNTIME_CLASS, self.classes, self.clock, self.rng),
        ]
        for reflector in reflectors:
            self._run_in_background(reflector.run(), f"reflector of {reflector.type}")
        for reflector in reflectors:
            await reflector.synced.wait()

    def _run_in_background(self, work: Any, name: str) -> None:
        self._running.append(asyncio.create_task(work, name=f"{name} of node {self.name}"))

    async def _publish_classes(self) -> None:
        for handler in (*self.parts.runtimes.available, *self.parts.runtimes.unavailable):
            body = {"apiVersion": RUNTIME_CLASS.api_version, "kind": RUNTIME_CLASS.kind, "handler": handler}
            metadata: Object = {"name": handler}
            if handler in DESCRIPTIONS:
                metadata["annotations"] = {_DESCRIPTION: DESCRIPTIONS[handler]}
            try:
                await self.client.create(RUNTIME_CLASS, {**body, "metadata": metadata})
            except AlreadyExists:
                continue

    async def _halt(self, grace: float) -> None:
        for worker in self.workers.values():
            worker.halt(grace)
        waiting = [worker.stopped.wait() for worker in self.workers.values()]
        try:
            # After the grace period every container is killed; what takes longer than this is stuck.
            await within(self.clock, grace + 10.0, _all(waiting))
        except TimeoutError:
            _log.warning("some pods of node %s did not stop in time", self.name)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _pod_changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        if new is None:
            if old is not None and (worker := self.workers.get(old["metadata"]["uid"])) is not None:
                worker.pod_deleted()
        elif (worker := self.workers.get(new["metadata"]["uid"])) is not None:
            worker.pod_updated(new)
            self.sleep.changed(worker)
        else:
            self._start_worker(Pod.read(new))

    def _start_worker(self, pod: Pod) -> None:
        worker = self.workers[pod.uid] = PodWorker(self._admit(pod), self.context)
        task = self._tasks[pod.uid] = asyncio.create_task(worker.run(), name=f"pod {pod.key}")
        task.add_done_callback(lambda task: self._ended(pod, task))
        self.sleep.changed(worker)

    def _admit(self, pod: Pod) -> PodState:
        """Return the state of a pod, with a rejection if the node does not run it."""
        now = Moment(self.clock.monotonic(), self.clock.now())
        state = restore_state(pod, now)
        found = find_unsupported(
            pod.object,
            host_paths=self.settings.allow_host_paths,
            resources=self.context.allocatable,
            simulated=self.context.runtime_handler(pod.object["spec"].get("runtimeClassName") or "") == SIMULATED,
        )
        if state.rejection is not None or phase(state) != "Pending":
            return state
        why = FailureReason(REASON, message(found)) if found else self.admission.admit(pod.object)
        if why is None:
            return state
        self.recorder.event(pod.reference, events.rejected(why.reason, why.message))
        return PodState.of(pod, start_time=state.start_time).rejected(why)

    def _ended(self, pod: Pod, task: asyncio.Task[None]) -> None:
        del self.workers[pod.uid], self._tasks[pod.uid]
        self.sleep.forget(pod.uid)
        if task.cancelled() or task.exception() is None:
            return
        _log.error("the worker of pod %s failed and is replaced", pod.key, exc_info=task.exception())
        replacing = asyncio.create_task(self._replace(pod), name=f"replacement of the worker of pod {pod.key}")
        self._replacing.add(replacing)
        replacing.add_done_callback(self._replacing.discard)

    async def _replace(self, pod: Pod) -> None:
        await self.clock.sleep(_PAUSE)
        now = self.pods.get(pod.key)
        if now is not None and now["metadata"]["uid"] == pod.uid and pod.uid not in self.workers:
            self._start_worker(Pod.read(now))

    def _service_links(self, namespace: str, enabled: bool) -> Mapping[str, str]:
        api = self.services.get(_API_SERVICE)
        found = list(self.services.by_index(_NAMESPACE, namespace)) if enabled else []
        if api is not None and api not in found:
            found.append(api)
        return service_links(found, namespace, enabled)

    # -- orphans -------------------------------------------------------------------------------------------------------

    async def _remove_orphans(self) -> None:
        """Remove what is left of pods that are no longer bound here."""
        owned = {pod["metadata"]["uid"] for pod in self.pods}
        left = {path.name for path in self.context.options.pods.iterdir()} | await self.parts.network.attached()
        for runtime in self.parts.runtimes.every.values():
            left |= await runtime.pods()
        for uid in sorted(left - owned):
            _log.info("removing what is left of pod %s", uid)
            await self._remove_orphan(uid)

    async def _remove_orphan(self, uid: str) -> None:
        directory = self.context.options.pod_directory(uid)
        checkpoint = read_checkpoint(directory)
        for runtime in self.parts.runtimes.every.values():
            await runtime.close_pod(_remains(uid, directory, checkpoint))
        await self.parts.network.detach(uid)
        await self.parts.volumes.release(uid, volume_directory(directory))
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        if checkpoint is not None:
            self.context.host_users.give_back(checkpoint.host_uid)


def _remains(uid: str, directory: Path, checkpoint: PodCheckpoint | None) -> PodSandbox:
    """Return enough of a pod to have its runtime close it."""
    user = FIRST if checkpoint is None else checkpoint.host_uid
    return PodSandbox(uid, directory, user, user, None, uid)


async def _all(waiting: list[Any]) -> None:
    await asyncio.gather(*waiting)
