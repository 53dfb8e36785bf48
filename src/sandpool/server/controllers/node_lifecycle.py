"""Says of a Node that is not heard of that nobody knows how it is, as kube-controller-manager does.

A node renews its Lease every few seconds. Where that has ended without a word, neither the Node nor its pods can be
ready: nothing new is bound there, and who waits for something that is there hears of it. Everything else is left to
those who decide about pods. The node itself says that it is ready, and its pods are, when it is back.

A Node without a Lease was never heard of and is left alone, as is one that does not say of itself that it is ready.

Like the other keepers it follows the feed of committed changes and remembers nothing that is not in the objects, except
since when nothing was heard of a node: after a restart that begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from sandpool.api.conditions import FALSE, READY, UNKNOWN, is_ready
from sandpool.api.kinds import LEASE, NODE, NODE_LEASES, POD
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.backlog import Backlog
from sandpool.server.controllers.owner_graph import Ref

#: Seconds without a sign of life; kube-controller-manager's figure.
GRACE: Final = 50.0


class Objects(Protocol):
    """The store, as the keeper needs it."""

    def get(self, ref: Ref) -> Object | None:
        """The newest state of an object."""

    def instances(self, storage: str) -> Iterable[tuple[Ref, Object]]:
        """Every object of a resource."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is not the current one."""


class NodeLifecycle:
    def __init__(self, objects: Objects, clock: Clock) -> None:
        self.objects = objects
        self.clock = clock
        self.backlog: Backlog[str] = Backlog(self._look_after, clock)  # of names of nodes
        # When a node that has a Lease was last heard of. Each of them is in the backlog, now or later.
        self._heard: dict[str, float] = {}

    def start(self) -> None:
        """Learn what there is. No change may be committed between this and the first call of ``notice``."""
        for ref, lease in self.objects.instances(LEASE.group_resource):
            self.notice("ADDED", ref, lease)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """A committed change: ADDED, MODIFIED or DELETED, with the object as it is or was."""
        if ref.resource != LEASE.group_resource or ref.namespace != NODE_LEASES:
            return
        if type == "DELETED":
            self._heard.pop(ref.name, None)
            return
        if ref.name not in self._heard:
            self.backlog.add_later(ref.name, GRACE)
        self._heard[ref.name] = self.clock.monotonic()

    async def _look_after(self, name: str) -> None:
        heard = self._heard.get(name)
        if heard is None:
            return
        left = heard + GRACE - self.clock.monotonic()
        if left <= 0:
            await self._mark(name)
        self.backlog.add_later(name, left if left > 0 else GRACE)

    async def _mark(self, name: str) -> None:
        """Raises Conflict if somebody else writes at the same time, who may be the node."""
        ref = Ref(NODE.group_resource, "", name)
        node = self.objects.get(ref)
        if node is None or not is_ready(node):
            return
        for pod_ref, pod in list(self.objects.instances(POD.group_resource)):
            if pod["spec"].get("nodeName") == name and is_ready(pod):
                await self._say(pod_ref, pod, FALSE, "NodeNotReady", "nothing is heard of the node")
        # At last: a node of which this has been said is not looked at again before it is back.
        await self._say(ref, node, UNKNOWN, "NodeStatusUnknown", f"nothing was heard of the node for {GRACE:g} s")

    async def _say(self, ref: Ref, obj: Object, status: str, reason: str, message: str) -> None:
        since = timestamp(self.clock.now())
        said = {"status": status, "reason": reason, "message": message, "lastTransitionTime": since}
        conditions = [{**each, **said} if each["type"] == READY else each for each in obj["status"]["conditions"]]
        seen = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        with suppress(NotFound):
            await self.objects.patch(ref, {"metadata": seen, "status": {"conditions": conditions}}, "status")
