"""Deletes pods of Nodes that do not exist, like the pod garbage collector of kube-controller-manager.

No kubelet is left to stop these pods, so they are deleted without a grace period. A running node registers its Node
again within seconds after a deletion, so the Node must have been missing for a while.

The only state that is not in the objects is since when a Node is missing; after a restart that time begins anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from sandpool.api.kinds import NODE, POD
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import Conflict, NotFound
from sandpool.server.controllers.owner_graph import Ref

#: Seconds for which a Node must have been missing; kube-controller-manager's figure.
QUARANTINE: Final = 40.0


class Objects(Protocol):
    """The operations that the controller needs."""

    def instances(self, storage: str) -> Iterable[tuple[Ref, Object]]:
        """All objects of a resource."""

    async def delete(self, ref: Ref, *, uid: str, grace_period: int | None = None) -> None:
        """Raises NotFound, and Conflict if the uid differs."""


class PodGC:
    """``nodeless`` are names of nodes whose pods stay although they have no Node."""

    def __init__(self, objects: Objects, clock: Clock, rng: Random, nodeless: Container[str] = ()) -> None:
        self.objects = objects
        self.clock = clock
        self.nodeless = nodeless
        # Keys are names of nodes.
        self.controller = Controller("pod-gc", self._reconcile, clock, rng, workers=16, quiet_failures=4)
        self._nodes: set[str] = set()
        self._pods: dict[str, dict[Ref, str]] = {}  # by node: the UIDs of its pods; never empty
        # Since when a node with pods is missing. Each is enqueued, now or later.
        self._missing: dict[str, float] = {}

    #: The resources whose changes ``notice`` handles.
    resources: Final = frozenset({POD.group_resource, NODE.group_resource})

    def start(self) -> None:
        """Read existing objects. No change may be committed between this and the first call of ``notice``."""
        for ref, _ in self.objects.instances(NODE.group_resource):
            self._nodes.add(ref.name)
        for ref, pod in self.objects.instances(POD.group_resource):
            self._pod_changed("ADDED", ref, pod)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """Handle a committed change: ADDED, MODIFIED or DELETED, with the current or last state of the object."""
        if ref.resource == POD.group_resource:
            self._pod_changed(type, ref, obj)
        elif ref.resource == NODE.group_resource:
            self._node_changed(type, ref.name)

    def _node_changed(self, type: str, name: str) -> None:
        if type != "DELETED":
            self._nodes.add(name)
            self._missing.pop(name, None)
            return
        self._nodes.discard(name)
        if name in self._pods:
            self._miss(name)

    def _pod_changed(self, type: str, ref: Ref, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if not node:
            return
        if type != "DELETED":
            self._pods.setdefault(node, {})[ref] = pod["metadata"]["uid"]
            if node not in self._nodes:
                self._miss(node)
        elif node in self._pods:
            self._pods[node].pop(ref, None)
            if not self._pods[node]:
                del self._pods[node]
                self._missing.pop(node, None)

    def _miss(self, node: str) -> None:
        if node not in self.nodeless and node not in self._missing:
            self._missing[node] = self.clock.monotonic()
            self.controller.enqueue_after(node, QUARANTINE)

    async def _reconcile(self, node: str) -> Result:
        since = self._missing.get(node)
        if since is None:
            return DONE  # the Node exists again, or has no pods any more
        if (left := since + QUARANTINE - self.clock.monotonic()) > 0:
            return Result(requeue_after=left)  # the Node existed in between
        del self._missing[node]  # pods that are bound from now on start a new quarantine
        try:
            for ref, uid in list(self._pods.get(node, {}).items()):
                with suppress(NotFound, Conflict):  # deleted meanwhile, perhaps replaced by a pod of the same name
                    await self.objects.delete(ref, uid=uid, grace_period=0)
        except BaseException:
            self._missing[node] = since
            raise
        return DONE
