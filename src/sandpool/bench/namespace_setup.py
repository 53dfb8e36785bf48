"""The namespace, template and pool of a load, deleted afterwards in a shared cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from sandpool.api.kinds import NAMESPACE, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import CLAIM_UID, LAUNCH_TYPE, LAUNCH_WARM
from sandpool.api.resource import Object, ResourceType
from sandpool.api.warmpool import RECREATE
from sandpool.bench.load import Show
from sandpool.bench.members import MARK
from sandpool.bench.subjects import sandbox
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound

POOL: Final = "pool"
_TEMPLATE: Final = "python"
# Seconds: limit for deleting a namespace, and the interval of checks.
_TIMEOUT: Final = 300.0
_PAUSE: Final = 0.5
# Concurrent deletions.
_AT_ONCE: Final = 16


class Ground:
    """A new namespace, used as ``async with``. With ``remove``, it is deleted however the body ends."""

    def __init__(
        self, client: Client, clock: Clock, namespace: str, image: str, show: Show, *, remove: bool = False
    ) -> None:
        self.client = client
        self.clock = clock
        self.namespace = namespace
        self.image = image
        self.show = show
        self.remove = remove

    async def __aenter__(self) -> Ground:
        await self.client.create(NAMESPACE, _new(NAMESPACE, self.namespace))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.remove:
            self.show(f"removing namespace {self.namespace}")
            try:
                await self._removed()
            except asyncio.CancelledError:
                self.show(f"interrupted; see what is left with: kubectl get namespace {self.namespace}")
                raise

    async def make_pool(self, replicas: int, *, replace_at_once: bool = False) -> None:
        template = {"podTemplate": self._pod_template("")}
        await self.client.create(SANDBOX_TEMPLATE, _new(SANDBOX_TEMPLATE, _TEMPLATE, spec=template), self.namespace)
        pool: Object = {"replicas": replicas, "sandboxTemplateRef": {"name": _TEMPLATE}}
        if replace_at_once:
            pool["updateStrategy"] = {"type": RECREATE}
        await self.client.create(SANDBOX_WARM_POOL, _new(SANDBOX_WARM_POOL, POOL, spec=pool), self.namespace)

    async def change_template(self, mark: str) -> None:
        """Change the template, so that new sandboxes carry this mark."""
        patch = MergePatch({"spec": {"podTemplate": self._pod_template(mark)}})
        await self.client.patch(SANDBOX_TEMPLATE, _TEMPLATE, patch, self.namespace)

    async def sandboxes(self, names: set[str]) -> dict[str, Object]:
        found: dict[str, Object] = {}
        token: str | None = None
        while True:
            page = await self.client.list(SANDBOX, self.namespace, limit=500, continue_token=token)
            found |= {item["metadata"]["name"]: item for item in page["items"] if item["metadata"]["name"] in names}
            token = page["metadata"].get("continue")
            if not token:
                return found

    async def call(self, times: int) -> None:
        """Send many small requests at once, so that the client has as many connections open as a burst needs."""
        await asyncio.gather(*(self.client.get(NAMESPACE, self.namespace) for _ in range(times)))

    async def delete_claims(self, names: Iterable[str]) -> None:
        """Delete the claims in batches; return when they and their sandboxes are gone."""
        left = iter(names)

        async def work() -> None:
            for name in left:
                with suppress(NotFound):
                    await self.client.delete(SANDBOX_CLAIM, name, self.namespace)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        end = self.clock.monotonic() + _TIMEOUT
        while (await self.client.list(SANDBOX, self.namespace, label_selector=CLAIM_UID, limit=1))["items"]:
            if self.clock.monotonic() > end:
                raise TimeoutError(f"claims were deleted and sandboxes of theirs are still there, in {self.namespace}")
            await self.clock.sleep(_PAUSE)

    @staticmethod
    def is_warm(sandbox: Object) -> bool:
        """Return whether a sandbox came from a pool; the others were created for a claim."""
        return bool((sandbox["metadata"].get("labels") or {}).get(LAUNCH_TYPE) == LAUNCH_WARM)

    def _pod_template(self, mark: str) -> Object:
        template: Object = _small(self.image) if self.image else sandbox("", containers=1)["spec"]["podTemplate"]
        if mark:
            container = template["spec"]["containers"][0]
            container["env"] = [*container.get("env", ()), {"name": MARK, "value": mark}]
        return template

    async def _removed(self) -> None:
        """The pool goes first, or it would replace what is being removed."""
        with suppress(NotFound):  # a run may end before it is made
            await self.client.delete(SANDBOX_WARM_POOL, POOL, self.namespace)
        end = self.clock.monotonic() + _TIMEOUT
        try:
            await self.client.delete(NAMESPACE, self.namespace)
            while True:
                await self.client.get(NAMESPACE, self.namespace)
                if self.clock.monotonic() > end:
                    raise TimeoutError(f"namespace {self.namespace} is being deleted and still there")
                await self.clock.sleep(_PAUSE)
        except NotFound:
            return


def _small(image: str) -> Object:
    """For nodes that do run it: as little as there can be, so that hundreds fit."""
    resources = {"requests": {"cpu": "1m", "memory": "8Mi"}}
    return {"spec": {"containers": [{"name": "main", "image": image, "resources": resources}]}}


def _new(type: ResourceType, name: str, **fields: Any) -> Object:
    return {"apiVersion": type.api_version, "kind": type.kind, "metadata": {"name": name}, **fields}
