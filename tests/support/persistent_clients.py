"""Clients that create claims of one pool on a cluster with outages: they retry, and they check the result.

The API may be unreachable at any time. A client repeats a request until the API accepts it; a claim that exists already
is one whose response was lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import NAMESPACE, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from sandpool.testing.world import owner_of

T = TypeVar("T")
POOL: Final = "pool"
# Errors of an unreachable API. Rejections are final.
_AWAY: Final = frozenset({429, 500, 502, 503, 504})


class PersistentClients:
    """Clients in one namespace, with a pool of ``size`` members."""

    def __init__(self, client: Client, namespace: str, size: int, *, patience: float = 120.0) -> None:
        self.client = client
        self.namespace = namespace
        self.size = size
        self.patience = patience

    async def settle_down(self) -> None:
        """Create the namespace, the template and the pool."""
        await self._insist(lambda: self.client.create(NAMESPACE, new(NAMESPACE, self.namespace)))
        template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
        pool = new(SANDBOX_WARM_POOL, POOL, spec={"replicas": self.size, "sandboxTemplateRef": {"name": "python"}})
        await self._insist(lambda: self.client.create(SANDBOX_TEMPLATE, template, self.namespace))
        await self._insist(lambda: self.client.create(SANDBOX_WARM_POOL, pool, self.namespace))

    async def claim(self, names: Iterable[str]) -> None:
        """Create claims concurrently. Returns when all are accepted."""

        async def make(name: str) -> None:
            claim = new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": POOL}})
            await self._insist(lambda: self.client.create(SANDBOX_CLAIM, claim, self.namespace))

        await asyncio.gather(*(make(name) for name in names))

    async def served(self, count: int, *, at_least: bool = False) -> None:
        """Wait until there are ``number`` claims and all are ready, or until at least that many are ready."""

        async def ready() -> bool:
            claims = await self.all_of(SANDBOX_CLAIM)
            happy = sum(map(is_ready, claims))
            return happy >= count if at_least else happy == len(claims) == count

        await self.eventually(ready)

    async def filled(self) -> None:
        """Wait until the pool has its size and every member is ready."""

        async def full() -> bool:
            members = [box for box in await self.all_of(SANDBOX) if owner_of(box) == (SANDBOX_WARM_POOL.kind, POOL)]
            return len(members) == self.size and all(map(is_ready, members))

        await self.eventually(full)

    async def check(self) -> None:
        """Fail unless every claim has its own sandbox and names it, and every sandbox has an owner and one pod."""
        claims, boxes = await self.all_of(SANDBOX_CLAIM), await self.all_of(SANDBOX)
        wanted = Counter((SANDBOX_CLAIM.kind, claim["metadata"]["name"]) for claim in claims)
        wanted[SANDBOX_WARM_POOL.kind, POOL] = self.size
        assert Counter(map(owner_of, boxes)) == wanted
        owners = {box["metadata"]["name"]: owner_of(box)[1] for box in boxes}
        known = {claim["metadata"]["name"]: owners[claim["status"]["sandbox"]["name"]] for claim in claims}
        assert known == {name: name for name in known}
        pods = Counter(owner_of(pod) for pod in await self.all_of(POD))
        assert pods == Counter((SANDBOX.kind, box["metadata"]["name"]) for box in boxes)

    async def leave(self) -> None:
        """Delete claims and pool, and wait until none of their objects is left."""
        for claim in await self.all_of(SANDBOX_CLAIM):
            await self._delete(SANDBOX_CLAIM, claim["metadata"]["name"])
        await self._delete(SANDBOX_WARM_POOL, POOL)

        async def empty() -> bool:
            types = (SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX, POD)
            return not any([await self.all_of(type) for type in types])

        await self.eventually(empty)

    async def all_of(self, type: ResourceType) -> list[Object]:
        items: list[Object] = (await self.client.list(type, self.namespace))["items"]
        return items

    async def eventually(self, probe: Callable[[], Awaitable[T]]) -> T | None:
        """Poll until the result is true; an unreachable API counts as false. The ``TimeoutError`` describes the current
        state."""

        async def asked() -> T | None:
            try:
                return await probe()
            except (OSError, TimeoutError):
                return None
            except ApiError as error:
                if error.code not in _AWAY:
                    raise
                return None

        try:
            return await until(asked, within=self.patience)
        except TimeoutError:
            raise TimeoutError(await self._state()) from None

    async def _state(self) -> str:
        """Describe the deviations from the expected state."""
        types = (SANDBOX_WARM_POOL, SANDBOX_CLAIM, SANDBOX, POD)
        waiting = [(type, each) for type in types for each in await self.all_of(type) if not is_ready(each)]
        lines = (
            f"{type.singular} {each['metadata']['name']} of {'/'.join(owner_of(each))}: {each.get('status')} "
            f"deleted {each['metadata'].get('deletionTimestamp')}"
            for type, each in waiting
        )
        return "\n".join(lines)

    async def _insist(self, create: Callable[[], Awaitable[SharedObject]]) -> None:
        async def made() -> bool:
            with suppress(AlreadyExists):
                await create()
            return True

        await self.eventually(made)

    async def _delete(self, type: ResourceType, name: str) -> None:
        with suppress(NotFound):
            await self.client.delete(type, name, self.namespace, propagation_policy="Background")
