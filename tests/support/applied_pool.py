"""Pools whose template a user applies as a manifest, in a running home with real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sandpool.api.conditions import find_condition, is_ready
from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube import kubeconfig
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.service.service import Service
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.playground import Playground

WITHIN = 120.0  # seconds, also on a busy machine


class Applied:
    """A template, and a pool of it, of the same name."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.client = client
        self.namespace = namespace
        self.name = name

    async def get(self, type: ResourceType, name: str) -> SharedObject:
        return await self.client.get(type, name, self.namespace)

    async def condition(
        self, type: ResourceType, name: str, condition: str, holds: Callable[[SharedObject], bool]
    ) -> SharedObject:
        async def found() -> SharedObject | None:
            conditions = (await self.get(type, name)).get("status", {}).get("conditions") or ()
            shown = find_condition(conditions, condition)
            return shown if shown is not None and holds(shown) else None

        shown = await until(found, within=WITHIN)
        assert shown is not None
        return shown

    async def claimed(self) -> None:
        """Claim a sandbox under the name of the pool, and wait until it is ready."""
        claim = new(SANDBOX_CLAIM, self.name, spec={"warmPoolRef": {"name": self.name}})
        await self.client.create(SANDBOX_CLAIM, claim, self.namespace)

        async def ready() -> bool:
            return is_ready(await self.get(SANDBOX_CLAIM, self.name))

        await until(ready, within=WITHIN)

    async def delete(self) -> None:
        for type in (SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE):
            try:
                await self.client.delete(type, self.name, self.namespace)
            except NotFound:
                continue


@asynccontextmanager
async def applied(
    home: Playground,
    name: str,
    size: int = 1,
    metadata: Object | None = None,
    pod: Object | None = None,
    **container: Any,
) -> AsyncIterator[Applied]:
    """Apply a template and a pool. ``metadata`` and ``pod`` are those of its pods, ``container`` of their container."""
    main = {"name": "main", "image": "sandpool.local/python", **container}
    pod_template = {"metadata": metadata or {}, "spec": {"containers": [main], **(pod or {})}}
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        made = Applied(service.client, service.namespace, name)
        template = new(SANDBOX_TEMPLATE, name, spec={"podTemplate": pod_template})
        pool = new(SANDBOX_WARM_POOL, name, spec={"replicas": size, "sandboxTemplateRef": {"name": name}})
        try:
            await service.client.create(SANDBOX_TEMPLATE, template, service.namespace)
            await service.client.create(SANDBOX_WARM_POOL, pool, service.namespace)
            yield made
        finally:
            await made.delete()
