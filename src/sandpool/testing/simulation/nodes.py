"""Simulated nodes: pods are scheduled, become ready, hang, fail, flap and terminate at random times.

Unlike ``node.simulated.SimulatedNode``, these nodes read the API's store directly. Lagging kubelets are not part of the
simulation, and a watch per node would be most of its cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError
from sandpool.node.simulated import Fate
from sandpool.server.store.entry import Change

_PAUSE = 0.5  # seconds before a failed request is retried


@dataclass(slots=True)
class _Pod:
    namespace: str
    name: str
    uid: str
    address: str
    node: str = ""
    is_dying: bool = False
    is_ready: bool = False
    task: asyncio.Task[None] | None = None


class Nodes:
    """``pace`` scales all durations. Every new pod draws its fate from ``fates``, until ``heal``."""

    def __init__(self, client: Client, clock: Clock, rng: Random, *, pace: float, fates: tuple[Fate, ...]) -> None:
        self.client = client
        self.clock = clock
        self.rng = rng
        self.pace = pace
        self.fates = fates
        self.names = tuple(f"node-{number}" for number in range(rng.randint(1, 3)))
        self._pods: dict[str, _Pod] = {}  # by UID
        self._addresses = 0
        self._healed = asyncio.Event()

    def observe_write(self, resource: str, change: Change, writer: str) -> None:
        if resource != POD.group_resource:
            return
        metadata = change.object["metadata"]
        pod = self._pods.get(metadata["uid"])
        if change.type == "DELETED":
            if pod is not None:
                del self._pods[pod.uid]
                if pod.task is not None:
                    pod.task.cancel()
            return
        if pod is None:
            self._addresses += 1
            address = f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
            pod = self._pods[metadata["uid"]] = _Pod(metadata["namespace"], metadata["name"], metadata["uid"], address)
            self._restart_task(pod, self._start_pod)
        if metadata.get("deletionTimestamp") and not pod.is_dying:
            pod.is_dying = True
            self._restart_task(pod, self._terminate)

    def heal(self) -> None:
        """Let every pod that can become ready do so from now on."""
        self.fates = (Fate.READY,)
        self._healed.set()

    def disturb(self) -> str:
        """Make a ready pod flap or end. Returns a description, empty if no pod is ready."""
        ready = [pod for pod in self._pods.values() if pod.is_ready and not pod.is_dying]
        if not ready or self._healed.is_set():
            return ""
        pod = self.rng.choice(ready)
        phase = self.rng.choice(("", "", "Failed", "Succeeded"))
        pod.is_ready = False
        self._restart_task(pod, lambda pod: self._report(pod, phase, ready=False) if phase else self._flap(pod))
        return f"pod {pod.name} {phase or 'flaps'}"

    def _restart_task(self, pod: _Pod, story: Callable[[_Pod], Awaitable[None]]) -> None:
        if pod.task is not None:
            pod.task.cancel()

        async def guarded() -> None:
            try:
                await story(pod)
            except ApiError as error:
                if error.code not in (404, 409):  # else the pod is gone or was replaced
                    raise

        pod.task = asyncio.create_task(guarded(), name=f"pod {pod.name}")

    async def _start_pod(self, pod: _Pod) -> None:
        fate = self.rng.choice(self.fates)
        await self._pause(1.0)
        if fate is Fate.UNSCHEDULABLE:
            details = {"reason": "Unschedulable", "message": "0/1 nodes are available."}
            await self._status(
                pod, {"phase": "Pending", "conditions": [self._condition("PodScheduled", False, details)]}
            )
            await self._healed.wait()
            await self._pause(1.0)
        pod.node = self.rng.choice(self.names)
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name, "uid": pod.uid}}
        binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": pod.node}
        await self._retry(lambda: self.client.create(POD, binding, pod.namespace, name=pod.name, subresource="binding"))
        await self._pause(1.0)
        if self.rng.random() < 0.5 or fate is Fate.HANGING:
            await self._report(pod, "Running", ready=False)
            await self._pause(1.0)
        if fate is Fate.HANGING:
            await self._healed.wait()
        if fate in (Fate.FAILED, Fate.SUCCEEDED):
            await self._report(pod, "Failed" if fate is Fate.FAILED else "Succeeded", ready=False)
            return
        await self._report(pod, "Running", ready=True)

    async def _flap(self, pod: _Pod) -> None:
        await self._report(pod, "Running", ready=False)
        await self._pause(3.0)
        await self._report(pod, "Running", ready=True)

    async def _terminate(self, pod: _Pod) -> None:
        await self._pause(1.0)
        await self._retry(lambda: self.client.delete(POD, pod.name, pod.namespace, grace_period_seconds=0, uid=pod.uid))

    async def _report(self, pod: _Pod, phase: str, *, ready: bool) -> None:
        conditions = [
            self._condition("PodScheduled", True),
            self._condition("Ready", ready),
        ]
        await self._status(
            pod,
            {
                "phase": phase,
                "conditions": conditions,
                "hostIP": "192.0.2.1",
                "podIP": pod.address,
                "podIPs": [{"ip": pod.address}],
            },
        )
        pod.is_ready = ready

    def _condition(self, type: str, status: bool, details: Object | None = None) -> Object:
        since = timestamp(self.clock.now())
        return {"type": type, "status": "True" if status else "False", "lastTransitionTime": since, **(details or {})}

    async def _status(self, pod: _Pod, status: Object) -> None:
        body = MergePatch({"metadata": {"uid": pod.uid}, "status": status})
        await self._retry(lambda: self.client.patch(POD, pod.name, body, pod.namespace, subresource="status"))

    async def _pause(self, seconds: float) -> None:
        await self.clock.sleep(self.rng.random() * seconds * self.pace)

    async def _retry(self, request: Callable[[], Awaitable[Any]]) -> None:
        """Send a request until the API accepts or rejects it."""
        while True:
            try:
                await request()
                return
            except (ConnectionError, TimeoutError):
                pass
            except ApiError as error:
                if error.code < 500 and error.code != 429:
                    raise
            await self.clock.sleep(_PAUSE)
