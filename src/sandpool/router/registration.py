"""The router as clients look for it: a Service called ``sandbox-router-svc`` with a pod behind it.

Clients forward a port to the Service, and kubectl resolves that to a ready pod. Here the pod is this process: it is on
no node, nothing runs it, and the way into it leads to where the router listens (``door``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sandpool.api.kinds import NAMESPACE, POD, SERVICE
from sandpool.api.resource import Object, ResourceType
from sandpool.api.times import timestamp
from sandpool.api.views import PodView
from sandpool.engine.cache.store import Key
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound

_log = logging.getLogger(__name__)

SERVICE_NAME: Final = "sandbox-router-svc"
POD_NAME: Final = "sandbox-router"
PORT: Final = 8080
#: Where the SDK looks unless told otherwise, and where published manifests put it.
NAMESPACES: Final = ("agent-sandbox-system", "default")

# Says on the pod that no node has it. No Node has this name, so no node takes it for its own.
NODE: Final = "sandpool-router"
_LABELS: Final = {"app": "sandbox-router"}
_IMAGE: Final = "sandpool.local/router"


# Before a pod that somebody has deleted is made again: who keeps deleting it does not keep us busy.
_PAUSE: Final = 1.0


class RouterRegistration:
    """``show`` makes the objects, whatever is left of earlier ones; ``hide`` takes the pods away again. In between,
    ``keep`` makes what somebody has deleted again, if it is told of it by ``saw``."""

    def __init__(self, client: Client, clock: Clock, namespaces: Iterable[str] = NAMESPACES) -> None:
        self.client = client
        self.clock = clock
        self.namespaces = tuple(namespaces)
        self.uids: set[str] = set()  # of the pods that are this process
        self._lost = asyncio.Event()

    async def show(self) -> None:
        for namespace in self.namespaces:
            await self._show(namespace)

    def saw(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        """What has become of a pod, any pod."""
        if old is not None and old.uid in self.uids and (new is None or new.uid != old.uid or new.deleting):
            self._lost.set()

    async def keep(self) -> None:
        while True:
            await self._lost.wait()
            await self.clock.sleep(_PAUSE)
            self._lost.clear()
            try:
                for namespace in self.namespaces:
                    if await self._is_missing(namespace):
                        await self._show(namespace)
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("the pod of the router cannot be made again yet: %s", error)
                self._lost.set()

    async def _show(self, namespace: str) -> None:
        await self._ensure(NAMESPACE, {"metadata": {"name": namespace}}, None)
        await self._ensure(SERVICE, _service(), namespace)
        await self._remove_pod(namespace)
        made = await self.client.create(POD, _pod(), namespace)
        self.uids.add(made["metadata"]["uid"])
        status = MergePatch({"status": _status(timestamp(self.clock.now()))})
        await self.client.patch(POD, POD_NAME, status, namespace, subresource="status")

    async def _is_missing(self, namespace: str) -> bool:
        """One that is on its way out is, for no node will ever say that it is gone. One that is not ours is not."""
        try:
            metadata = (await self.client.get(POD, POD_NAME, namespace))["metadata"]
        except NotFound:
            return True
        return metadata["uid"] in self.uids and "deletionTimestamp" in metadata

    async def hide(self) -> None:
        for namespace in self.namespaces:
            await self._remove_pod(namespace)
        self.uids.clear()

    async def _ensure(self, type: ResourceType, wanted: Object, namespace: str | None) -> None:
        """One that is there already stays as it is: somebody may have changed it."""
        with suppress(AlreadyExists):
            await self.client.create(type, {"apiVersion": type.api_version, "kind": type.kind, **wanted}, namespace)

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
