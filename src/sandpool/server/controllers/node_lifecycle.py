"""Marks Nodes that stopped renewing their Lease, and their pods, as not ready, like kube-controller-manager.

A node renews its Lease every few seconds. When the renewals stop, neither the Node nor its pods count as ready, so the
scheduler binds no new pods and clients learn of it. Other consequences are left to the controllers of the pods. The
node reports itself and its pods as ready when it is back.

Nodes without a Lease, and Nodes that are not ready, are ignored.

The only state that is not in the objects is the time of the last renewal; after a restart it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from sandpool.api.conditions import FALSE, READY, UNKNOWN, is_ready
from sandpool.api.kinds import LEASE, NODE, NODE_LEASES, POD
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, timestamp
from sandpool.engine.controller import DONE, Controller, Result
from sandpool.kube.errors import NotFound
from sandpool.server.controllers.owner_graph import Ref

#: Seconds without a renewal; kube-controller-manager's default.
GRACE: Final = 50.0


class Objects(Protocol):
    """The operations that the controller needs."""

    def get(self, ref: Ref) -> Object | None:
        """The newest accepted state of an object."""

    def instances(self, storage: str) -> Iterable[tuple[Ref, Object]]:
        """All objects of a resource."""

    async def patch(self, ref: Ref, merge_patch: Object, subresource: str = "") -> None:
        """Raises NotFound, and Conflict if ``metadata.resourceVersion`` is outdated."""


class NodeLifecycle:
    def __init__(self, objects: Objects, clock: Clock, rng: Random) -> None:
        self.objects = objects
        self.clock = clock
        # Keys are names of nodes.
        self.controller = Controller("node-lifecycle", self._reconcile, clock, rng, workers=16, quiet_failures=4)
        # The last renewal of each node with a Lease. Each is enqueued, now or later.
        self._renewed: dict[str, float] = {}

    #: The resources whose changes ``notice`` handles.
    resources: Final = frozenset({LEASE.group_resource})

    def start(self) -> None:
        """Read existing Leases. No change may be committed between this and the first call of ``notice``."""
        for ref, lease in self.objects.instances(LEASE.group_resource):
            self.notice("ADDED", ref, lease)

    def notice(self, type: str, ref: Ref, obj: Object) -> None:
        """Handle a committed change: ADDED, MODIFIED or DELETED, with the current or last state of the object."""
        if ref.resource != LEASE.group_resource or ref.namespace != NODE_LEASES:
            return
        if type == "DELETED":
            self._renewed.pop(ref.name, None)
            return
        if ref.name not in self._renewed:
            self.controller.enqueue_after(ref.name, GRACE)
        self._renewed[ref.name] = self.clock.monotonic()

    async def _reconcile(self, name: str) -> Result:
        renewed = self._renewed.get(name)
        if renewed is None:
            return DONE
        left = renewed + GRACE - self.clock.monotonic()
        if left <= 0:
            await self._mark_not_ready(name)
        return Result(requeue_after=left if left > 0 else GRACE)

    async def _mark_not_ready(self, name: str) -> None:
        """Raises Conflict if the node writes its status at the same time."""
        ref = Ref(NODE.group_resource, "", name)
        node = self.objects.get(ref)
        if node is None or not is_ready(node):
            return
        for pod_ref, pod in list(self.objects.instances(POD.group_resource)):
            if pod["spec"].get("nodeName") == name and is_ready(pod):
                await self._write_condition(pod_ref, pod, FALSE, "NodeNotReady", "Kubelet stopped posting node status.")
        # The Node last: a Node that is not ready is ignored until it is back.
        await self._write_condition(
            ref, node, UNKNOWN, "NodeStatusUnknown", f"Kubelet stopped posting node status for {GRACE:g} s."
        )

    async def _write_condition(self, ref: Ref, obj: Object, status: str, reason: str, message: str) -> None:
        since = timestamp(self.clock.now())
        fields = {"status": status, "reason": reason, "message": message, "lastTransitionTime": since}
        conditions = [{**each, **fields} if each["type"] == READY else each for each in obj["status"]["conditions"]]
        precondition = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        with suppress(NotFound):
            await self.objects.patch(ref, {"metadata": precondition, "status": {"conditions": conditions}}, "status")
