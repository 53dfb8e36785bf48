"""Binds pods to nodes where there is no kube-scheduler.

Pods are scheduled in arrival order. The free resources of each node are updated with every pod that comes and goes, so
placing a pod costs one check per node and none per pod. A pod that fits no node gets its condition once. It is enqueued
again when resources are released or when a node or a volume it needs changes, never by a timer. The condition of a pod
whose volumes do not exist yet is delayed by two seconds: usually they are being made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from sandpool.api.conditions import FALSE, POD_SCHEDULED, UNSCHEDULABLE, condition_of
from sandpool.api.events import NORMAL, WARNING, EventSpec
from sandpool.api.kinds import NODE, POD, RUNTIME_CLASS
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.views.pod import FAILED, SUCCEEDED
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock, timestamp
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.kube.client import Client, StrategicPatch
from sandpool.kube.errors import Conflict, NotFound
from sandpool.node.scheduling.fit import NodeView, matches, message, none_of, shortages, unmet_requirements
from sandpool.node.scheduling.requirements import PodRequirements, requirements_of
from sandpool.node.scheduling.unschedulable import UnschedulablePods
from sandpool.node.scheduling.volume_binding import VolumeBindings, VolumeTopology

SCHEDULER: Final = "default-scheduler"
# Concurrent bindings. Decisions are made one after the other, in order; only the API requests overlap.
_AT_ONCE: Final = 32
# Seconds before missing volumes are reported in a pod's condition.
_REPORT_DELAY: Final = 2.0
_BY_CLAIM: Final = "claim"


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod as the scheduler sees it."""

    namespace: str
    name: str
    uid: str
    node: str
    requirements: PodRequirements
    ours: bool  # this scheduler binds it, if it is not bound yet
    ended: bool
    reported: str  # message of its condition; empty if it has none

    @property
    def waits(self) -> bool:
        return self.ours and not self.node and not self.ended

    @property
    def uses_node(self) -> bool:
        """Whether it takes up resources of its node."""
        return bool(self.node) and not self.ended

    @classmethod
    def from_object(cls, pod: SharedObject) -> QueuedPod:
        metadata, spec = pod["metadata"], pod["spec"]
        condition = condition_of(pod, POD_SCHEDULED) or {}
        reported = condition.get("message") or "" if condition.get("status") == FALSE else ""
        return cls(
            metadata.get("namespace") or "",
            metadata["name"],
            metadata["uid"],
            spec.get("nodeName") or "",
            requirements_of(pod),
            (spec.get("schedulerName") or SCHEDULER) == SCHEDULER
            and not spec.get("schedulingGates")
            and not metadata.get("deletionTimestamp"),
            (pod.get("status") or {}).get("phase") in (SUCCEEDED, FAILED),
            reported,
        )


@dataclass(slots=True)
class _NodeUsage:
    """Requested amounts of a node by resource, in billionths."""

    used: dict[str, int] = field(default_factory=dict)

    def change(self, requirements: PodRequirements, sign: int) -> None:
        for name, amount in requirements.requests:
            self.used[name] = self.used.get(name, 0) + sign * amount


class Scheduler:
    """``start`` returns when it schedules, ``stop`` when all its tasks have ended. ``has_volume`` tells whether node
    ``instance`` has the data of a volume, even if the node was renamed since.

    A ``simulated`` scheduler is for nodes that run nothing. Pods do not wait for their volumes, which no node makes.
    Bindings are no Events, so that a load test of the API costs no further write per pod."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        rng: Random,
        *,
        instance: str = "sandpool",
        has_volume: Callable[[str], bool] = lambda volume: False,
        simulated: bool = False,
    ) -> None:
        self.client = client
        self.clock = clock
        self.instance = instance
        self.has_volume = has_volume
        self.simulated = simulated
        self.pods = Cache(QueuedPod.from_object, name="pods to be bound")
        self.nodes = Cache(NodeView.from_object, name="nodes")
        self.classes: Cache[str] = Cache(lambda found: str(found["handler"]), name="runtime classes")
        self.recorder = EventRecorder(client, clock, instance)
        self.controller: Controller[Key] = Controller("scheduler", self._reconcile, clock, rng, workers=_AT_ONCE)
        self.claims = VolumeBindings(client, clock, rng, self._claim_changed)
        self.waiting = UnschedulablePods()
        self._silent_until: dict[Key, float] = {}  # pod -> time until which missing volumes are not reported
        self._usage: dict[str, _NodeUsage] = {}  # by node
        # Pods bound by this scheduler whose binding has not reached the cache.
        self._assumed: dict[Key, tuple[str, PodRequirements]] = {}
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, NODE, self.nodes, clock, rng),
            Reflector(client, RUNTIME_CLASS, self.classes, clock, rng),
            *(() if simulated else self.claims.reflectors),
            Reflector(client, POD, self.pods, clock, rng),
        ]
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.recorder.start()
        self.pods.add_index(_BY_CLAIM, lambda pod: pod.requirements.claims)
        self.claims.start()
        self.pods.subscribe(self._pod_changed)
        self.nodes.subscribe(self._node_changed)
        self.classes.subscribe(lambda key, old, new: self._retry_waiting())
        for reflector in self._reflectors:
            self._running.append(asyncio.create_task(reflector.run(), name=f"{reflector.type} of the scheduler"))
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self._running.append(asyncio.create_task(self.controller.run(), name="scheduler"))

    async def stop(self) -> None:
        await self.controller.stop(5.0)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.recorder.stop()

    # -- observations --------------------------------------------------------------------------------------------------

    def _pod_changed(self, key: Key, old: QueuedPod | None, new: QueuedPod | None) -> None:
        used = old is not None and old.uses_node
        if old is not None and old.uses_node:
            self._usage.setdefault(old.node, _NodeUsage()).change(old.requirements, -1)
        if new is None or new.node:
            used = self._forget_assumed(key) or used
        if new is not None and new.uses_node:
            self._usage.setdefault(new.node, _NodeUsage()).change(new.requirements, +1)
        if new is None or not new.waits:
            self.waiting.remove(key)
            self._silent_until.pop(key, None)
        elif old is None or not old.waits or old.requirements != new.requirements:
            self.controller.enqueue(key)
        if used and not (new is not None and new.uses_node):
            self._retry_waiting()

    def _forget_assumed(self, key: Key) -> bool:
        assumed = self._assumed.pop(key, None)
        if assumed is not None:
            self._usage[assumed[0]].change(assumed[1], -1)
        return assumed is not None

    def _node_changed(self, key: Key, old: NodeView | None, new: NodeView | None) -> None:
        self._retry_waiting()

    def _claim_changed(self, claim: Key) -> None:
        for pod in self.pods.by_index(_BY_CLAIM, claim):
            if (key := Key(pod.namespace, pod.name)) in self.waiting:
                self.controller.enqueue(key)

    def _retry_waiting(self) -> None:
        """Enqueue the unschedulable pods that may fit now: the first of each kind, and further ones while there is
        room."""
        if not len(self.waiting):
            return
        room = {name: dict(found.used) for name, found in self._usage.items()}

        def fits(requirements: PodRequirements) -> bool:
            node = self._select_node(requirements, room)
            if isinstance(node, str):
                return False
            used = room.setdefault(node.name, {})
            for name, amount in requirements.requests:
                used[name] = used.get(name, 0) + amount
            return True

        for key in self.waiting.offer(fits):
            self.controller.enqueue(key)

    def _select_node(self, requirements: PodRequirements, room: Mapping[str, Mapping[str, int]]) -> NodeView | str:
        """Return the node with the fewest pods among those that fit, or why none fits."""
        volumes = self._volumes(requirements)
        if isinstance(volumes, str):
            return none_of(len(self.nodes), volumes)
        selectors = [self._selector(each) for each in volumes]
        reasons: list[list[str]] = []
        fitting: list[NodeView] = []
        for node in self.nodes:
            found = list(unmet_requirements(requirements, node, room.get(node.name, {}), self._handler, selectors))
            if found:
                reasons.append(found)
            else:
                fitting.append(node)
        if not fitting:
            return message(reasons, shortages(requirements, self.nodes, room))
        return min(fitting, key=lambda node: (room.get(node.name, {}).get("pods", 0), node.name))

    def _volumes(self, requirements: PodRequirements) -> tuple[VolumeTopology, ...] | str:
        """Return the volumes that restrict the nodes of a pod, or why its volume claims do not tell them. Simulated
        nodes have no volumes."""
        return () if self.simulated else self.claims.topologies(requirements.claims)

    def _selector(self, volume: VolumeTopology) -> Object:
        """Return the node selector of a volume. If none of the selected nodes is ready, the node that has the data is
        used."""
        terms = volume.terms
        if any(node.ready and matches(terms, node) for node in self.nodes) or not self.has_volume(volume.volume):
            return terms
        here = {"key": "metadata.name", "operator": "In", "values": [self.instance]}
        return {"nodeSelectorTerms": [{"matchFields": [here]}]}

    def _handler(self, name: str) -> str | None:
        return self.classes.get(Key("", name))

    # -- binding -------------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> Result:
        pod = self.pods.get(key)
        if pod is None or not pod.waits or key in self._assumed:
            return DONE
        node = self._select_node(pod.requirements, {name: room.used for name, room in self._usage.items()})
        if isinstance(node, str):
            self.waiting.add(key, pod.requirements)
            if delay := self._report_delay(key, pod):
                return Result(delay)
            await self._report_unschedulable(pod, node)
        else:
            await self._bind(key, pod, node.name)
        return DONE

    def _report_delay(self, key: Key, pod: QueuedPod) -> float:
        """Seconds for which a pod is not reported as unschedulable yet, because its volumes may be on their way."""
        if not isinstance(self._volumes(pod.requirements), str):
            self._silent_until.pop(key, None)
            return 0.0
        now = self.clock.monotonic()
        return max(self._silent_until.setdefault(key, now + _REPORT_DELAY) - now, 0.0)

    async def _bind(self, key: Key, pod: QueuedPod, node: str) -> None:
        self._assumed[key] = (node, pod.requirements)
        self._usage.setdefault(node, _NodeUsage()).change(pod.requirements, +1)
        target = {"apiVersion": NODE.api_version, "kind": NODE.kind, "name": node}
        metadata = {"name": pod.name, "uid": pod.uid}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self.client.create(POD, binding, pod.namespace, name=pod.name, subresource="binding")
        except (NotFound, Conflict):
            self._forget_assumed(key)  # deleted, or bound by another scheduler
            return
        except BaseException:
            self._forget_assumed(key)
            raise
        if not self.simulated:
            note = f"Successfully assigned {key} to {node}"
            self.recorder.event(_reference(pod), EventSpec(SCHEDULER, NORMAL, "Scheduled", "Binding", note))

    async def _report_unschedulable(self, pod: QueuedPod, why: str) -> None:
        if pod.reported == why:
            return
        now = timestamp(self.clock.now())
        condition = {"type": POD_SCHEDULED, "status": FALSE, "reason": UNSCHEDULABLE, "message": why}
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [{**condition, "lastTransitionTime": now}]}}
        self.recorder.event(_reference(pod), EventSpec(SCHEDULER, WARNING, "FailedScheduling", "Scheduling", why))
        try:
            answer = await self.client.patch(POD, pod.name, StrategicPatch(body), pod.namespace, subresource="status")
        except (NotFound, Conflict):
            return
        self.pods.record_write(answer)


def _reference(pod: QueuedPod) -> ObjectReference:
    return ObjectReference(POD.api_version, POD.kind, pod.name, pod.namespace, pod.uid)
