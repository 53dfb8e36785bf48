"""A node without containers: it binds pods and reports the statuses that a kubelet would report, but runs nothing.

Tests of controllers need pods that become ready, fail, hang, find no node and end at exact times. ``SimulatedNode``
does what scheduler and kubelet do as far as the API shows it: it binds unbound pods, reports one ``StartupStage``
after the other, each after a delay on the given clock, and deletes pods whose deletion was requested. The ``Fate`` of
a pod decides how far it gets; tests may change ``fate`` at any time, for pods that come later.

The node uses the API through a client like any other and survives its failures: a failed write is retried. Several
nodes may share one API. The first that binds a pod has it.

It has no Node object. ``node.simulated_assembly`` adds those, and a scheduler that binds the pods instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from ipaddress import ip_address
from random import Random
from typing import Final

from sandpool.api.conditions import FALSE, POD_SCHEDULED, READY, TRUE
from sandpool.api.kinds import POD
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.views import PodView, pod_view
from sandpool.api.views.pod import FAILED, RUNNING, SUCCEEDED
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound

NO_NODE: Final = "0/1 nodes are available: 1 Insufficient cpu."

#: The address of a node, from the range for documentation, unless it is given another one.
HOST: Final = "192.0.2.1"
# Seconds before a failed request is retried.
_PAUSE: Final = 1.0


class StartupStage(Enum):
    """Stages that are reported about a starting pod, in this order."""

    SCHEDULED = "bound to the node"
    INITIALIZED = "init containers complete"
    ADDRESS = "has an address"
    RUNNING = "containers started"
    CONTAINERS_READY = "containers ready"
    READY = "ready"


class Fate(Enum):
    """The stage up to which a pod gets."""

    READY = "becomes ready and stays so"
    HANGING = "runs and never becomes ready"
    FAILED = "fails as soon as it runs"
    SUCCEEDED = "is done as soon as it runs"
    UNSCHEDULABLE = "finds no node"


def all_ready(pod: PodView) -> Fate:
    """The default: every pod becomes ready."""
    return Fate.READY


class SimulatedNode:
    """A node named ``name``; start ``run`` as a task.

    ``delays`` are the seconds before each stage, ``termination`` those between the request to delete a pod and its end;
    both default to zero. The node serves one ``namespace``, or all. A ``brief`` node reports only the final stage, in
    one write besides the binding; a kubelet reports every stage. Pods get free addresses, from ``first_address`` on.

    A node that is not ``binding`` leaves that to a scheduler and watches its own pods only. Like a kubelet it reports a
    pod as ready again that the node lifecycle controller marked as not ready.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        name: str = "node",
        namespace: str | None = None,
        delays: Mapping[StartupStage, float] | None = None,
        termination: float = 0.0,
        fate: Callable[[PodView], Fate] = all_ready,
        brief: bool = False,
        binding: bool = True,
        host_address: str = HOST,
        first_address: str = "10.0.0.1",
    ) -> None:
        self.client = client
        self.clock = clock
        self.name = name
        self.brief = brief
        self.binding = binding
        self.host_address = host_address
        self.delays = dict(delays or {})
        self.termination = termination
        self.fate = fate
        self.pods = Cache(pod_view, name="pods of a simulated node")
        mine = "" if binding else f"spec.nodeName={name}"
        self.reflector = Reflector(client, POD, self.pods, clock, Random(0), namespace=namespace, field_selector=mine)
        # By UID of existing pods: the task that drives the pod, perhaps done. A pod without one is new.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deleting: set[str] = set()  # UIDs of pods that are being removed
        self._next_address = ip_address(first_address)
        self._addresses: set[str] = set()  # of existing pods

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.pods.subscribe(self._pod_changed)
            group.create_task(self.reflector.run(), name=f"pods seen by {self.name}")

    async def synced(self) -> None:
        """Wait until the pod cache has synced."""
        await self.reflector.synced.wait()

    async def end(self, namespace: str, name: str, phase: str = FAILED) -> None:
        """End the containers of a pod; it fails unless ``phase`` is Succeeded."""
        pod = self.pods.get(Key(namespace, name))
        if pod is None:
            raise LookupError(f"{self.name} has no pod {namespace}/{name}")
        await _Reports(self, pod).ended(phase)

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if old is not None:
            self._addresses.difference_update(old.ips)
        if new is not None:
            self._addresses.update(new.ips)
        if new is None:
            if old is not None and (task := self._tasks.pop(old.uid, None)) is not None:
                self._deleting.discard(old.uid)
                task.cancel()
        elif new.deleting:
            if new.node_name == self.name and new.uid not in self._deleting:
                self._deleting.add(new.uid)
                self._start_task(new, partial(self._delete, task=self._tasks.get(new.uid)))
        elif new.node_name in ("", self.name) and new.uid not in self._tasks:
            self._start_task(new, self._drive)
        elif not self.binding and old is not None and old.ready and not (new.ready or new.ended):
            self._start_task(new, lambda pod: _Reports(self, pod).ready_again())

    def _start_task(self, pod: PodView, work: Callable[[PodView], Awaitable[None]]) -> None:
        async def run_work() -> None:
            with suppress(NotFound, Conflict):  # the pod was deleted or replaced
                await work(pod)

        task_body = run_work()
        try:
            self._tasks[pod.uid] = self._group.create_task(task_body, name=f"pod {pod.namespace}/{pod.name}")
        except RuntimeError:  # the node is stopping; the next one handles the pod
            task_body.close()

    async def _drive(self, pod: PodView) -> None:
        if pod.ended or pod.ready:
            return  # already driven to its end, perhaps by this node
        reports = _Reports(self, pod)
        fate = self.fate(pod)
        if fate is Fate.UNSCHEDULABLE and not pod.node_name:
            await reports.unschedulable()
            return
        if not await reports.scheduled():
            return
        stages = [StartupStage.INITIALIZED, StartupStage.ADDRESS, StartupStage.RUNNING]
        if fate is Fate.READY:
            stages += [StartupStage.CONTAINERS_READY, StartupStage.READY]
        ends = fate in (Fate.FAILED, Fate.SUCCEEDED)
        for stage in stages:
            await reports.reached(stage, write=not self.brief or (stage is stages[-1] and not ends))
        if ends:
            await reports.ended(FAILED if fate is Fate.FAILED else SUCCEEDED)

    async def _delete(self, pod: PodView, *, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self.pause(self.termination)
        await self.retry(lambda: self.client.delete(POD, pod.name, pod.namespace, grace_period_seconds=0, uid=pod.uid))

    def new_address(self) -> str:
        while (address := str(self._next_address)) in self._addresses:
            self._next_address += 1
        self._next_address += 1
        return address

    async def pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.clock.sleep(seconds)

    async def retry(self, request: Callable[[], Awaitable[SharedObject]]) -> SharedObject:
        """Repeat a request until the API accepts or rejects it."""
        while True:
            try:
                return await request()
            except (ConnectionError, TimeoutError):
                pass
            except ApiError as error:
                if error.code < 500 and error.code != 429:
                    raise
            await self.clock.sleep(_PAUSE)


class _Reports:
    """Writes the status of one pod. As with a kubelet, every write contains all conditions."""

    def __init__(self, node: SimulatedNode, pod: PodView) -> None:
        self.node = node
        self.pod = pod
        self.phase = pod.phase
        self.address: Object = {}
        # By type; every write contains all of them.
        self._conditions: dict[str, Object] = {}

    async def scheduled(self) -> bool:
        """Bind the pod if it is not bound to this node. Returns False if another node has it or it is being deleted."""
        node, pod = self.node, self.pod
        if not pod.node_name:
            await node.pause(node.delays.get(StartupStage.SCHEDULED, 0.0))
            target = {"apiVersion": "v1", "kind": "Node", "name": node.name}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            try:
                await node.retry(
                    lambda: node.client.create(POD, binding, pod.namespace, name=pod.name, subresource="binding")
                )
            except Conflict:
                # It may be bound to this node all the same: the response to a successful binding can be lost.
                found = await node.retry(lambda: node.client.get(POD, pod.name, pod.namespace))
                if (found["metadata"]["uid"], found["spec"].get("nodeName")) != (pod.uid, node.name):
                    return False
        self._set(POD_SCHEDULED, TRUE)
        return True

    async def unschedulable(self) -> None:
        await self.node.pause(self.node.delays.get(StartupStage.SCHEDULED, 0.0))
        self._set(POD_SCHEDULED, FALSE, reason="Unschedulable", message=NO_NODE)
        await self._write()

    async def reached(self, stage: StartupStage, *, write: bool = True) -> None:
        node = self.node
        await node.pause(node.delays.get(stage, 0.0))
        match stage:
            case StartupStage.INITIALIZED:
                self._set("Initialized", TRUE)
                self._set("ContainersReady", FALSE)
                self._set(READY, FALSE)
            case StartupStage.ADDRESS:
                ip = node.new_address()
                host = node.host_address
                self.address = {"hostIP": host, "hostIPs": [{"ip": host}], "podIP": ip, "podIPs": [{"ip": ip}]}
            case StartupStage.RUNNING:
                self.phase = RUNNING
            case StartupStage.CONTAINERS_READY:
                self._set("ContainersReady", TRUE)
            case StartupStage.READY:
                self._set(READY, TRUE)
        if write:
            await self._write()

    async def ready_again(self) -> None:
        """Report all conditions of a ready pod. Its phase and its addresses stay."""
        for type in (POD_SCHEDULED, "Initialized", "ContainersReady", READY):
            self._set(type, TRUE)
        await self._write()

    async def ended(self, phase: str) -> None:
        self.phase = phase
        reason = "PodCompleted" if phase == SUCCEEDED else "PodFailed"
        self._set(POD_SCHEDULED, TRUE)
        self._set("Initialized", TRUE)
        self._set("ContainersReady", FALSE, reason=reason)
        self._set(READY, FALSE, reason=reason)
        await self._write()

    def _set(self, type: str, status: str, **words: str) -> None:
        before = self._conditions.get(type)
        if before is None or before["status"] != status:
            since = timestamp(self.node.clock.now())
            self._conditions[type] = {"type": type, "status": status, "lastTransitionTime": since, **words}

    async def _write(self) -> None:
        pod, client = self.pod, self.node.client
        status: Object = {"phase": self.phase, "conditions": list(self._conditions.values()), **self.address}
        await self.node.retry(
            lambda: client.patch(POD, pod.name, MergePatch({"status": status}), pod.namespace, subresource="status")
        )
