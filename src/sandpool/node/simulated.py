"""A node without containers: it takes pods, says about them what a kubelet would say, and runs nothing.

Tests of controllers need pods that become ready, fail, hang, find no node and go when they are told to, at exact times.
``SimulatedNode`` does what scheduler and kubelet do as far as the API shows it: it binds a pod that is bound to nobody,
reports one ``Stage`` after the other, each after a delay on the clock that was passed in, and removes a pod whose
deletion was asked for. A pod's ``Fate`` says how it goes; tests change ``fate`` at any time, for pods to come.

It sees the API through a client like any other and survives its failures: a report that cannot be made is made later.
Several nodes may work on one API. Whoever binds a pod first has it.
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
from sandpool.api.resource import Object
from sandpool.api.views import PodView
from sandpool.api.views.pod import FAILED, RUNNING, SUCCEEDED
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache, Key
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound

NO_NODE: Final = "0/1 nodes are available: 1 Insufficient cpu."

_HOST: Final = "192.0.2.1"
# Before something is tried again that the API did not take.
_PAUSE: Final = 1.0


class Stage(Enum):
    """What is reported about a pod on its way, in this order."""

    SCHEDULED = "it is bound to the node"
    INITIALIZED = "its init containers are done"
    ADDRESS = "it has an address"
    RUNNING = "its containers have been started"
    CONTAINERS_READY = "they are ready"
    READY = "it is ready"


class Fate(Enum):
    READY = "becomes ready and stays so"
    HANGING = "runs and never becomes ready"
    FAILED = "fails as soon as it runs"
    SUCCEEDED = "is done as soon as it runs"
    UNSCHEDULABLE = "finds no node"


def all_ready(pod: PodView) -> Fate:
    """The fate of pods unless a test has another in mind."""
    return Fate.READY


class SimulatedNode:
    """A node named ``name``. ``delays`` are the seconds before each report, ``termination`` those between the request
    to delete a pod and its end; what is not given takes no time. It serves one ``namespace``, or all. A ``brief`` node
    reports only where a pod has got to in the end, in one write beside the binding; a kubelet reports every stage. Pods
    have addresses from the ``first_address`` upwards. ``run`` is to be started as a task."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        name: str = "node",
        namespace: str | None = None,
        delays: Mapping[Stage, float] | None = None,
        termination: float = 0.0,
        fate: Callable[[PodView], Fate] = all_ready,
        brief: bool = False,
        first_address: str = "10.0.0.1",
    ) -> None:
        self.client = client
        self.clock = clock
        self.name = name
        self.brief = brief
        self.first_address = ip_address(first_address)
        self.delays = dict(delays or {})
        self.termination = termination
        self.fate = fate
        self.pods = Cache(PodView.from_object, name="pods of a simulated node")
        self.reflector = Reflector(client, POD, self.pods, clock, Random(0), namespace=namespace)
        # By UID, of pods that are there: what is being done about them, or was. One that is not here has not been seen.
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._dying: set[str] = set()  # UIDs of pods that are being removed
        self._addresses = 0  # given out so far

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.pods.subscribe(self._noticed)
            group.create_task(self.reflector.run(), name=f"pods seen by {self.name}")

    async def synced(self) -> None:
        """Wait until it knows the pods there are."""
        await self.reflector.synced.wait()

    def reconsider(self) -> None:
        """Look again for a place for the pods that found none; to be called when their ``fate`` has changed."""
        for pod in self.pods:
            if not pod.node_name and not pod.deleting and self._lives[pod.uid].done():
                self._begin(pod, self._live)

    async def end(self, namespace: str, name: str, phase: str = FAILED) -> None:
        """Have the containers of a pod end, by failure unless ``phase`` is Succeeded."""
        pod = self.pods.get(Key(namespace, name))
        if pod is None:
            raise LookupError(f"{self.name} has no pod {namespace}/{name}")
        await _Reports(self, pod).ended(phase)

    def _noticed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if new is None:
            if old is not None and (life := self._lives.pop(old.uid, None)) is not None:
                self._dying.discard(old.uid)
                life.cancel()
        elif new.deleting:
            if new.node_name == self.name and new.uid not in self._dying:
                self._dying.add(new.uid)
                self._begin(new, partial(self._die, life=self._lives.get(new.uid)))
        elif new.node_name in ("", self.name) and new.uid not in self._lives:
            self._begin(new, self._live)

    def _begin(self, pod: PodView, story: Callable[[PodView], Awaitable[None]]) -> None:
        async def told() -> None:
            with suppress(NotFound, Conflict):  # the pod has gone or is another one now, and this was its story
                await story(pod)

        telling = told()
        try:
            self._lives[pod.uid] = self._group.create_task(telling, name=f"pod {pod.namespace}/{pod.name}")
        except RuntimeError:  # the node is being stopped, and what it hears last is for the next one
            telling.close()

    async def _live(self, pod: PodView) -> None:
        if pod.ended or pod.ready:
            return  # somebody has told its story before, perhaps we ourselves
        reports = _Reports(self, pod)
        fate = self.fate(pod)
        if fate is Fate.UNSCHEDULABLE and not pod.node_name:
            await reports.unschedulable()
            return
        if not await reports.scheduled():
            return
        stages = [Stage.INITIALIZED, Stage.ADDRESS, Stage.RUNNING]
        if fate is Fate.READY:
            stages += [Stage.CONTAINERS_READY, Stage.READY]
        ends = fate in (Fate.FAILED, Fate.SUCCEEDED)
        for stage in stages:
            await reports.reached(stage, told=not self.brief or (stage is stages[-1] and not ends))
        if ends:
            await reports.ended(FAILED if fate is Fate.FAILED else SUCCEEDED)

    async def _die(self, pod: PodView, *, life: asyncio.Task[None] | None) -> None:
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
        await self.pause(self.termination)
        await self.insist(lambda: self.client.delete(POD, pod.name, pod.namespace, grace_period_seconds=0, uid=pod.uid))

    def new_address(self) -> str:
        self._addresses += 1
        return str(self.first_address + self._addresses - 1)

    async def pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.clock.sleep(seconds)

    async def insist(self, request: Callable[[], Awaitable[Object]]) -> Object:
        """Send until the API has said yes or no."""
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
    """What is said about one pod. Every report repeats what was said before, as a kubelet's does."""

    def __init__(self, node: SimulatedNode, pod: PodView) -> None:
        self.node = node
        self.pod = pod
        self.phase = pod.phase
        self.address: Object = {}
        # By type of condition; every report of a pod contains them all.
        self._conditions: dict[str, Object] = {}

    async def scheduled(self) -> bool:
        """Bind the pod, if it is not bound to us already. False: somebody else has it, or it is about to go."""
        node, pod = self.node, self.pod
        if not pod.node_name:
            await node.pause(node.delays.get(Stage.SCHEDULED, 0.0))
            target = {"apiVersion": "v1", "kind": "Node", "name": node.name}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            try:
                await node.insist(
                    lambda: node.client.create(POD, binding, pod.namespace, name=pod.name, subresource="binding")
                )
            except Conflict:
                # It may be ours all the same: the answer to a binding that was carried out can be lost.
                found = await node.insist(lambda: node.client.get(POD, pod.name, pod.namespace))
                if (found["metadata"]["uid"], found["spec"].get("nodeName")) != (pod.uid, node.name):
                    return False
        self._set(POD_SCHEDULED, TRUE)
        return True

    async def unschedulable(self) -> None:
        await self.node.pause(self.node.delays.get(Stage.SCHEDULED, 0.0))
        self._set(POD_SCHEDULED, FALSE, reason="Unschedulable", message=NO_NODE)
        await self._write()

    async def reached(self, stage: Stage, *, told: bool = True) -> None:
        node = self.node
        await node.pause(node.delays.get(stage, 0.0))
        match stage:
            case Stage.INITIALIZED:
                self._set("Initialized", TRUE)
                self._set("ContainersReady", FALSE)
                self._set(READY, FALSE)
            case Stage.ADDRESS:
                ip = node.new_address()
                self.address = {"hostIP": _HOST, "hostIPs": [{"ip": _HOST}], "podIP": ip, "podIPs": [{"ip": ip}]}
            case Stage.RUNNING:
                self.phase = RUNNING
            case Stage.CONTAINERS_READY:
                self._set("ContainersReady", TRUE)
            case Stage.READY:
                self._set(READY, TRUE)
        if told:
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
        await self.node.insist(
            lambda: client.patch(POD, pod.name, MergePatch({"status": status}), pod.namespace, subresource="status")
        )
