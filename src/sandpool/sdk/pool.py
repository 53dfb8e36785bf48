"""Pools and templates, as programs make and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sandpool.sdk.errors import service_errors
from sandpool.service.errors import NameTaken, UnknownName

if TYPE_CHECKING:
    from sandpool.sdk.client import AsyncClient, SandboxRequest
    from sandpool.service.pools import Pool
    from sandpool.service.templates import NewTemplate

#: Seconds to wait for a pool: its sandboxes may have to pull an image.
POOL_TIMEOUT = 300.0


class PoolStatus(NamedTuple):
    """``ready`` of ``desired`` sandboxes wait for claims. ``problem`` says why there are no more, if that is known."""

    desired: int
    ready: int
    template: str
    problem: str

    @classmethod
    def of(cls, pool: Pool) -> Self:
        """Take the status from a pool of the service layer."""
        return cls(pool.desired, pool.ready, pool.template, pool.problem)


class AsyncTemplate:
    """A template: what the sandboxes of its pools are made of. Make one with ``AsyncClient.template``."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def delete(self) -> None:
        """Delete it. Raises ``TemplateInUse`` if pools use it."""
        with service_errors():
            await self._client.service.templates.delete(self.name)


class AsyncPool:
    """A pool of warm sandboxes. Make one with ``AsyncClient.pool``."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def status(self) -> PoolStatus:
        """How many sandboxes are ready."""
        with service_errors():
            return PoolStatus.of(await self._client.service.pools.get(self.name))

    async def scale(self, size: int) -> None:
        """Set the number of warm sandboxes."""
        with service_errors():
            await self._client.service.pools.scale(self.name, size)

    async def wait_ready(self, count: int | None = None, timeout: float = POOL_TIMEOUT) -> PoolStatus:
        """Wait until ``count`` sandboxes are ready, by default all. Raises ``PoolStuck`` if that does not happen by
        waiting, and ``NotReadyInTime``."""
        with service_errors():
            pools = self._client.service.pools
            wanted = (await pools.get(self.name)).desired if count is None else count
            return PoolStatus.of(await pools.wait_ready(self.name, wanted, timeout))

    async def delete(self) -> None:
        """Delete the pool with its idle sandboxes. Claimed ones stay."""
        with service_errors():
            await self._client.service.pools.delete(self.name)

    def sandbox(self, **options: Any) -> SandboxRequest:
        """Claim a sandbox of this pool; see ``AsyncClient.sandbox``."""
        return self._client.sandbox(self.name, **options)


async def ensure_template(client: AsyncClient, name: str, new: NewTemplate | None) -> AsyncTemplate:
    """Create a template, unless there is one that is the same."""
    with service_errors():
        templates = client.service.templates
        if new is None:
            await templates.get(name)
            return AsyncTemplate(client, name)
        document = new.document(name)
        try:
            await templates.create(document)
        except NameTaken:
            present = await templates.get(name)
            annotations = present.object["metadata"].get("annotations") or {}
            if not covers(present.object["spec"], document["spec"]) or not covers(
                annotations, document["metadata"].get("annotations", {})
            ):
                message = f'template "{name}" exists and is different'
                raise NameTaken(message, "Choose another name, or delete it.") from None
    return AsyncTemplate(client, name)


async def ensure_pool(client: AsyncClient, name: str, template: str | None, size: int | None) -> AsyncPool:
    """Create a pool, or change the size of one of the same template."""
    with service_errors():
        pools = client.service.pools
        try:
            present: Pool | None = await pools.get(name)
        except UnknownName:
            if template is None:
                raise
            present = None
        if present is None:
            assert template is not None
            try:
                await pools.create(name, template, 1 if size is None else size)
                return AsyncPool(client, name)
            except NameTaken:  # made meanwhile
                present = await pools.get(name)
        if template is not None and present.template != template:
            message = f'pool "{name}" exists with template "{present.template}"'
            raise NameTaken(message, "Choose another name, or delete it.")
        if size is not None and present.desired != size:
            await pools.scale(name, size)
    return AsyncPool(client, name)


def covers(present: Any, wanted: Any) -> bool:
    """Whether an object has all that is wanted of it; what is not wanted may be anything, such as a default."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(
            name in present and covers(present[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(present, list)
            and len(present) == len(wanted)
            and all(covers(one, other) for one, other in zip(present, wanted, strict=True))
        )
    return bool(present == wanted)
