"""The API objects by which clients find the router: a Service ``sandbox-router-svc`` with a pod behind it.

Clients forward a port to the Service, and kubectl resolves the Service to a ready pod. The pod stands for the router:
it is on no node, no runtime runs it, and port-forwards to it are connected to the router (``pod_access``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import NAMESPACE, POD, SERVICE
from sandpool.api.resource import Key, Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.api.views import PodView
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound

_log = logging.getLogger(__name__)

SERVICE_NAME: Final = "sandbox-router-svc"
POD_NAME: Final = "sandbox-router"
PORT: Final = 8080
#: The default of the SDK, and the namespace of the published manifests.
NAMESPACES: Final = ("agent-sandbox-system", "default")

# No Node has this name, so no node agent takes the pod for its own.
NODE: Final = "sandpool-router"
_LABELS: Final = {"app": "sandbox-router"}
#: Selects the pods by their label.
SELECTOR: Final = "app=sandbox-router"
_IMAGE: Final = "sandpool.local/router"


# Delay before a deleted pod is created again: a client that keeps deleting it causes one write per second.
_RECREATE_DELAY: Final = 1.0


class RouterRegistration:
    """``register`` creates the objects, ``deregister`` deletes the pods. In between, ``run`` recreates pods that were
    deleted, as ``pod_changed`` reports."""

    def __init__(self, client: Client, clock: Clock, namespaces: Iterable[str] = NAMESPACES) -> None:
        self.client = client
        self.clock = clock
        self.namespaces = tuple(namespaces)
        self.uids: set[str] = set()  # of the pods that stand for this router
        self._lost = asyncio.Event()

    async def register(self) -> None:
        for namespace in self.namespaces:
            await self._register(namespace)

    def pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        """Handle a change of any pod."""
        if old is not None and old.uid in self.uids and (new is None or new.uid != old.uid or new.deleting):
            self._lost.set()

    async def run(self) -> None:
        while True:
            await self._lost.wait()
            await self.clock.sleep(_RECREATE_DELAY)
            self._lost.clear()
            try:
                for namespace in self.namespaces:
                    if await self._is_missing(namespace):
                        await self._register(namespace)
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("cannot recreate the pod of the router yet: %s", error)
                self._lost.set()

    async def _register(self, namespace: str) -> None:
        await self._ensure(NAMESPACE, {"metadata": {"name": namespace}}, None)
        await self._ensure(SERVICE, _service(), namespace)
        await self._remove_pod(namespace)
        made = await self.client.create(POD, _pod(), namespace)
        self.uids.add(made["metadata"]["uid"])
        status = MergePatch({"status": _status(timestamp(self.clock.now()))})
        await self.client.patch(POD, POD_NAME, status, namespace, subresource="status")

    async def _is_missing(self, namespace: str) -> bool:
        """A pod that is being deleted counts as missing: no node agent will confirm its end. Pods of others do not."""
        try:
            metadata = (await self.client.get(POD, POD_NAME, namespace))["metadata"]
        except NotFound:
            return True
        return metadata["uid"] in self.uids and "deletionTimestamp" in metadata

    async def deregister(self) -> None:
        for namespace in self.namespaces:
            await self._remove_pod(namespace)
        self.uids.clear()

    async def _ensure(self, kind: ResourceType, wanted: Object, namespace: str | None) -> None:
        """Create the object. One that exists already stays unchanged: a user may have edited it."""
        with suppress(AlreadyExists):
            await self.client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, **wanted}, namespace)

    async def _remove_pod(self, namespace: str) -> None:
        with suppress(NotFound):
            await self.client.delete(POD, POD_NAME, namespace, grace_period_seconds=0)


def _service() -> Object:
    ports = [{"name": "http", "port": PORT, "targetPort": PORT}]
    return {"metadata": {"name": SERVICE_NAME, "labels": _LABELS}, "spec": {"selector": _LABELS, "ports": ports}}


def _pod() -> Object:
    container = {"name": "router", "image": _IMAGE, "ports": [{"name": "http", "containerPort": PORT}]}
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {"name": POD_NAME, "labels": _LABELS},
        "spec": {"nodeName": NODE, "containers": [container], "automountServiceAccountToken": False},
    }


def _status(now: str) -> Object:
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [{"type": name, "status": "True", "lastTransitionTime": now} for name in conditions],
        "containerStatuses": [
            {
                "name": "router",
                "image": _IMAGE,
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
        ],
    }
