"""Removes pods of a Node that does not exist, as the pod garbage collector of kube-controller-manager does.

Whoever would have ended them is gone, so they are removed without waiting for anybody. A node that still works makes
its Node again within seconds when somebody has deleted it; so the Node must have been missing for a while.

Like the other keepers it follows the feed of committed changes and remembers nothing that is not in the objects, except
since when a Node is missing: after a restart that begins anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress
from typing import Final, Protocol

from sandpool.api.kinds import NODE, POD
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.errors import Conflict, NotFound
from sandpool.server.controllers.backlog import Backlog
from sandpool.server.controllers.owner_graph import Ref

#: Seconds for which a Node must have been missing; kube-controller-manager's figure.
QUARANTINE: Final = 40.0


class Objects(Protocol):
    """The store, as the keeper needs it."""

    def instances(self, storage: str) -> Iterable[tuple[Ref, Object]]:
        """Every object of a resource."""

    async def delete(self, ref: Ref, *, uid: str, grace_period: int | None = None) -> None:
        """Raises NotFound, and Conflict if the uid is another."""


class PodGC:
    """``nodeless`` are names of nodes whose pods stay although there is no such Node."""

    def __init__(self, objects: Objects, clock: Clock, nodeless: Container[str] = ()) -> None:
        self.objects = objects
        self.clock = clock
        self.nodeless = nodeless
        self.backlog: Backlog[str] = Backlog(self._look_after, clock)  # of names of nodes
        self._nodes: set[str] = set()
        self._pods: dict[str, dict[Ref, str]] = {}  # by node: the UIDs of what is bound to it; none is empty
        # Since when a node that has pods is missing. Each of them is in the backlog, now or later.
        self._missing: dict[str, float] = {}

    def start(self) -> None:
        """Learn what there is. No change may be committed between this and the first call of ``notice``."""
        for ref, _ in self.objects.instances(NODE.group_resource):
            self._nodes.add(ref.name)
        for ref, pod in self.objects.instances(POD.group_resource):
            self._pod_changed("ADDED", ref, pod)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """A committed change: ADDED, MODIFIED or DELETED, with the object as it is or was."""
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
            self.backlog.add_later(node, QUARANTINE)

    async def _look_after(self, node: str) -> None:
        since = self._missing.get(node)
        if since is None:
            return  # it is there again, or has no pods any more
        if (left := since + QUARANTINE - self.clock.monotonic()) > 0:
            self.backlog.add_later(node, left)  # it was there in between
            return
        del self._missing[node]  # whoever comes from now on is missed anew
        try:
            for ref, uid in list(self._pods.get(node, {}).items()):
                with suppress(NotFound, Conflict):  # it went, and perhaps another has its name
                    await self.objects.delete(ref, uid=uid, grace_period=0)
        except BaseException:
            self._missing[node] = since
            raise
