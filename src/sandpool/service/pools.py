"""Warm pools: create, scale, follow a rollout, wait until one is filled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final, NamedTuple, Self, cast

from sandpool.api import conditions as api
from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, Expired, NotFound
from sandpool.service.errors import NameTaken, NotReadyInTime, ServiceError, unknown_name
from sandpool.service.pool_restart import replace_idle

#: How a pool follows its template: ``spec.updateStrategy.type``.
STRATEGIES: Final = ("OnReplenish", "Recreate", "RollingUpdate")
_KINDS: Final = {SANDBOX_TEMPLATE.kind: SANDBOX_TEMPLATE, SANDBOX_WARM_POOL.kind: SANDBOX_WARM_POOL}


class PoolStuck(ServiceError):
    """The pool makes no progress, and waiting does not help."""


class Pool(NamedTuple):
    """A pool as users see it. ``message`` is that of Progressing, and ``problem`` the same while that is False.
    ``failure`` is why a member does not start, known long before the pool has a problem; empty if all just start."""

    name: str
    namespace: str
    template: str
    strategy: str
    desired: int
    members: int
    ready: int
    updated: int
    updated_ready: int
    observed: bool  # the numbers belong to the current spec
    message: str
    problem: str
    progress: str  # the reason of the condition Progressing
    failure: str  # the message of the condition ReplicaFailure
    created: str
    object: SharedObject

    @classmethod
    def from_object(cls, pool: SharedObject) -> Self:
        metadata, spec, status = pool["metadata"], pool.get("spec") or {}, pool.get("status") or {}
        progressing = api.find_condition(status.get("conditions") or [], api.PROGRESSING) or {}
        failure = api.find_condition(status.get("conditions") or [], api.REPLICA_FAILURE) or {}
        desired = spec.get("replicas")
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", ""),
            template=(spec.get("sandboxTemplateRef") or {}).get("name", ""),
            strategy=(spec.get("updateStrategy") or {}).get("type") or STRATEGIES[0],
            desired=1 if desired is None else desired,
            members=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            updated=status.get("updatedReplicas", 0),
            updated_ready=status.get("updatedReadyReplicas", 0),
            observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
            message=progressing.get("message", ""),
            problem=progressing.get("message", "") if progressing.get("status") == api.FALSE else "",
            progress=progressing.get("reason", ""),
            failure=failure.get("message", "") if failure.get("status") == api.TRUE else "",
            created=metadata.get("creationTimestamp", ""),
            object=pool,
        )

    @property
    def filled(self) -> bool:
        return self.observed and self.ready >= self.desired

    @property
    def rolled_out(self) -> bool:
        """Whether all members have the current revision of the template, and as many as desired are ready."""
        return self.observed and self.updated_ready >= self.desired and self.members == self.updated


class Pools:
    """The pools of a namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def list(self, *, all_namespaces: bool = False) -> tuple[Pool, ...]:
        listed = await self.client.list(SANDBOX_WARM_POOL, None if all_namespaces else self.namespace)
        return tuple(Pool.from_object(each) for each in listed["items"])

    async def get(self, name: str) -> Pool:
        """Raises ``UnknownName`` with close matches."""
        try:
            return Pool.from_object(await self.client.get(SANDBOX_WARM_POOL, name, self.namespace))
        except NotFound:
            raise await self._unknown(name) from None

    async def create(self, name: str, template: str, replicas: int, strategy: str | None = None) -> Pool:
        """Create a pool of sandboxes of a template. Raises ``UnknownName`` for the template and ``NameTaken``."""
        try:
            await self.client.get(SANDBOX_TEMPLATE, template, self.namespace)
        except NotFound:
            listed = await self.client.list(SANDBOX_TEMPLATE, self.namespace)
            known = [each["metadata"]["name"] for each in listed["items"]]
            advice = f"Create it with: sandpool template create {template} --image IMAGE"
            raise unknown_name("template", template, self.namespace, known, advice) from None
        spec: dict[str, Any] = {"replicas": replicas, "sandboxTemplateRef": {"name": template}}
        if strategy is not None:
            spec["updateStrategy"] = {"type": strategy}
        pool = {
            "apiVersion": SANDBOX_WARM_POOL.api_version,
            "kind": SANDBOX_WARM_POOL.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        try:
            return Pool.from_object(await self.client.create(SANDBOX_WARM_POOL, pool, self.namespace))
        except AlreadyExists:
            advice = f"Change its size with: sandpool pool scale {name} {replicas}"
            raise NameTaken(f'pool "{name}" already exists', advice) from None

    async def ensure(self, documents: Iterable[Object]) -> None:
        """Create templates and pools that do not exist; existing ones stay as they are."""
        for document in documents:
            try:
                await self.client.create(_KINDS[document["kind"]], document, self.namespace)
            except AlreadyExists:
                continue

    async def scale(self, name: str, replicas: int) -> Pool:
        """Set the number of warm sandboxes."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        try:
            return Pool.from_object(await self.client.patch(SANDBOX_WARM_POOL, name, patch, self.namespace))
        except NotFound:
            raise await self._unknown(name) from None

    async def set_strategy(self, name: str, strategy: str) -> Pool:
        """Set how the pool follows its template, one of ``STRATEGIES``."""
        patch = MergePatch({"spec": {"updateStrategy": {"type": strategy}}})
        try:
            return Pool.from_object(await self.client.patch(SANDBOX_WARM_POOL, name, patch, self.namespace))
        except NotFound:
            raise await self._unknown(name) from None

    async def restart(self, name: str, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Replace the idle sandboxes of a pool a few at a time, also if its template has not changed; returns how many.
        ``progress`` receives how many of how many have been replaced. Has no time limit of its own."""
        pool = await self.get(name)
        return await replace_idle(self.client, self.namespace, name, pool.desired, progress)

    async def delete(self, name: str) -> None:
        """Delete a pool and its idle sandboxes. Claimed sandboxes belong to their claims and stay."""
        try:
            await self.client.delete(SANDBOX_WARM_POOL, name, self.namespace)
        except NotFound:
            raise await self._unknown(name) from None

    async def states(self, name: str) -> AsyncIterator[Pool]:
        """Yield the state of a pool, now and after every change, until it is deleted."""
        version: str | None = None
        while True:
            events = self.client.watch(
                SANDBOX_WARM_POOL, self.namespace, field_selector=f"metadata.name={name}", resource_version=version
            )
            try:
                async with aclosing(cast("Any", events)) as stream:
                    async for event in stream:
                        if event.type == "DELETED":
                            return
                        if event.type != "BOOKMARK":
                            version = event.object["metadata"]["resourceVersion"]
                            yield Pool.from_object(event.object)
            except Expired:
                version = None

    async def wait_ready(
        self,
        name: str,
        count: int,
        timeout: float,
        progress: Callable[[int], None] = lambda ready: None,
        failing: Callable[[str], None] = lambda message: None,
    ) -> Pool:
        """Wait until ``count`` sandboxes of a pool are ready. ``progress`` receives how many are, after each change;
        ``failing`` why one does not start, as soon as that is known: it may still start, as after a pull that failed.
        Raises ``PoolStuck`` and ``NotReadyInTime``."""
        last: Pool | None = None
        shown = ""
        try:
            async with asyncio.timeout(timeout), aclosing(cast("Any", self.states(name))) as states:
                async for last in states:
                    progress(last.ready)
                    if last.ready >= count:
                        return last
                    if last.failure not in ("", shown):
                        shown = last.failure
                        failing(shown)
                    if last.problem:
                        raise PoolStuck(f'pool "{name}" makes no progress: {last.problem}', _why(name))
        except TimeoutError:
            ready = 0 if last is None else last.ready
            message = f'pool "{name}" had {ready} of {count} sandboxes ready after {timeout:g} s'
            if last is not None and (reason := last.failure or last.message):
                message = f"{message} ({reason})"
            raise NotReadyInTime(message, _why(name)) from None
        raise PoolStuck(f'pool "{name}" was deleted while it was waited for')

    async def _unknown(self, name: str) -> ServiceError:
        known = [pool.name for pool in await self.list()]
        advice = "List them with: sandpool pool ls" if known else f"Create it with: sandpool pool create {name}"
        return unknown_name("pool", name, self.namespace, known, advice)


def _why(name: str) -> str:
    return f"Find out more with: sandpool why pool {name}"
