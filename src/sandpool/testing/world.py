"""A small world for controllers: controllers, a simulated node and a user in one namespace of an API.

With the system clock a test polls for states (``until``). With a ``ManualClock`` time is exact: ``settle`` reaches
quiescence (see ``quiescence``), ``wait`` advances the time. Work that the API does by itself, such as garbage
collection, is polled for in both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.controllers.manager import ControllerManager
from sandpool.controllers.options import ControllerOptions
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock, SystemClock
from sandpool.explain.audit import AuditedRequest
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.node.simulated import SimulatedNode
from sandpool.testing.backend import Backend
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod_template
from sandpool.testing.quiescence import Quiescence
from sandpool.testing.simulated_binder import SimulatedBinder
from sandpool.testing.waiting import WITHIN, until

NAMESPACE = "default"
WRITES = ("POST", "PATCH", "DELETE", "PUT")

T = TypeVar("T")


class World:
    """Controllers, a simulated node and a user's client in one namespace of a backend.

    ``client`` is the user's and goes through ``users_transport``. The controllers use ``wire``, the node uses
    ``node_transport``. ``settle`` and ``wait`` need a ``ManualClock``. ``start`` returns when controllers and node
    have synced; ``stop`` returns when all their tasks have ended.
    """

    def __init__(
        self,
        backend: Backend,
        namespace: str = NAMESPACE,
        *,
        clock: Clock | None = None,
        settings: ControllerOptions | None = None,
    ) -> None:
        self.backend = backend
        self.namespace = namespace
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.rng = Random(4711)
        self.settings = replace(settings or ControllerOptions(), namespace=namespace)
        user = backend.client_for("users")
        self.users_transport = FaultyTransport(user.transport)
        self.client = Client(self.users_transport, field_manager=user.field_manager)
        self.wire = FaultyTransport(backend.client_for("controllers").transport)
        self.node_transport = FaultyTransport(backend.client_for("node").transport)
        self.node = SimulatedNode(Client(self.node_transport), self.clock, namespace=namespace)
        self.binder = SimulatedBinder(self.clock)
        self.controllers = self.new_controllers()
        if isinstance(self.clock, ManualClock):
            wires = (self.users_transport, self.wire, self.node_transport)
            self._quiescence = Quiescence(self.clock, user, namespace, wires, self._caches)
        self._node_task: asyncio.Task[None] | None = None

    def new_controllers(self) -> ControllerManager:
        """Return controllers for this world that are not started yet."""
        controllers = ControllerManager(Client(self.wire), self.clock, self.rng, self.settings, binder=self.binder)
        if isinstance(self.clock, ManualClock):
            # The API sends bookmarks and ends watches in real time. On a manual clock a silent hour would look like a
            # dead connection, and the back-off after a watch has ended would never pass.
            informers = controllers.informers
            for reflector in (*informers.reflectors, informers.namespaces, self.node.reflector):
                reflector.clock = SystemClock()
        return controllers

    def _caches(self) -> list[tuple[ResourceType, Cache[Any]]]:
        return [*self.controllers.caches, (POD, self.node.pods)]

    async def start(self) -> None:
        """Start the node and the controllers; return when their caches have synced."""
        self._since = len(self.backend.audit)  # length of the audit log at the start of this world
        self._reported = 0  # requests that ``written`` has reported
        self._node_task = asyncio.create_task(self.node.run())
        async with asyncio.timeout(WITHIN):
            await self.node.synced()
            await self.controllers.start()

    async def stop(self) -> None:
        """Stop the controllers and the node."""
        self.wire.heal()
        self.node_transport.heal()
        await self._stop_controllers()
        assert self._node_task is not None, "start first"
        self._node_task.cancel()
        await asyncio.gather(self._node_task, return_exceptions=True)

    async def restart(self, grace: float = 10.0, settings: ControllerOptions | None = None) -> None:
        """Stop the controllers, by force after ``grace`` seconds, and start others in their place."""
        await self._stop_controllers(grace)
        if settings is not None:
            self.settings = replace(settings, namespace=self.namespace)
        self.controllers = self.new_controllers()
        await self.controllers.start()

    async def _stop_controllers(self, grace: float = 10.0) -> None:
        """Stop the controllers. A manual clock is advanced meanwhile, or their timeouts would never end."""
        stopping = asyncio.create_task(self.controllers.stop(grace))
        if isinstance(self.clock, ManualClock):
            while not stopping.done():
                await asyncio.wait([stopping], timeout=0.2)
                if (alarm := self.clock.next_alarm) is not None and alarm <= grace and not self.wire.busy:
                    await self.clock.jump()
        await stopping

    # --- time --------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until the world is quiescent at the present time."""
        await self._quiescence.reached()

    async def wait(self, seconds: float) -> None:
        """Advance the time from one timer to the next, and settle after each."""
        await self._quiescence.passed(seconds)

    async def until(self, probe: Callable[[], Awaitable[T]]) -> T:
        """Poll until the result is true, and return it."""
        if not isinstance(self.clock, ManualClock):
            return await until(probe)

        async def settled() -> T:
            await self.settle()
            return await probe()

        return await until(settled)

    async def eventually(self, probe: Callable[[], object]) -> None:
        """Wait until ``probe`` returns a true value."""

        async def ask() -> bool:
            return bool(probe())

        await self.until(ask)

    # --- requests of the user ----------------------------------------------------------------------------------------

    async def create(self, type: ResourceType, name: str, **fields: Any) -> SharedObject:
        """Create an object in the namespace of the world, and settle."""
        created = await self.client.create(type, new(type, name, **fields), self.namespace)
        return await self._settled(created)

    async def patch(self, type: ResourceType, name: str, body: Object, subresource: str | None = None) -> SharedObject:
        """Apply a merge patch, and settle."""
        patched = await self.client.patch(type, name, MergePatch(body), self.namespace, subresource=subresource)
        return await self._settled(patched)

    async def delete(self, type: ResourceType, name: str, **options: Any) -> None:
        """Delete an object, and settle."""
        await self._settled(await self.client.delete(type, name, self.namespace, **options))

    async def _settled(self, answer: SharedObject) -> SharedObject:
        """With a manual clock, settle after every request of the user."""
        if isinstance(self.clock, ManualClock):
            await self.settle()
        return answer

    async def sandbox(self, name: str = "box", *, metadata: Object | None = None, **spec: Any) -> SharedObject:
        """Create a Sandbox; further arguments become part of its spec."""
        return await self.create(SANDBOX, name, metadata=metadata or {}, spec={"podTemplate": pod_template(), **spec})

    async def template(self, image: str = "example.com/image:1", name: str = "python", **spec: Any) -> SharedObject:
        """Create a SandboxTemplate; further arguments become part of its spec."""
        containers = [{"name": "main", "image": image}]
        return await self.create(
            SANDBOX_TEMPLATE, name, spec={"podTemplate": {"spec": {"containers": containers}}, **spec}
        )

    async def change_template(self, image: str, name: str = "python") -> None:
        """Change the image of a template."""
        body = {"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
        changed = await self.patch(SANDBOX_TEMPLATE, name, body)
        generation = changed["metadata"]["generation"]
        templates = self.controllers.caches.templates
        await self.eventually(lambda: any(each.generation == generation for each in templates))

    async def pool(
        self, replicas: int, *, strategy: str = "", name: str = "pool", filled: bool = True, **spec: Any
    ) -> None:
        """Create a SandboxWarmPool and, unless ``filled`` is false, wait until it is full."""
        spec = {"replicas": replicas, "sandboxTemplateRef": {"name": "python"}, **spec}
        if strategy:
            spec["updateStrategy"] = {"type": strategy}
        await self.create(SANDBOX_WARM_POOL, name, spec=spec)
        if filled:
            await self.filled(replicas)

    async def claim(self, name: str, *, metadata: Object | None = None, **spec: object) -> SharedObject:
        """Create a SandboxClaim of the pool ``pool``."""
        return await self.create(
            SANDBOX_CLAIM, name, metadata=metadata or {}, spec={"warmPoolRef": {"name": "pool"}, **spec}
        )

    # --- state -------------------------------------------------------------------------------------------------------

    async def get(self, type: ResourceType = SANDBOX, name: str = "box") -> SharedObject:
        """Return an object of the namespace."""
        return await self.client.get(type, name, self.namespace)

    async def exists(self, type: ResourceType, name: str = "box") -> bool:
        """Return whether an object exists."""
        try:
            await self.get(type, name)
        except NotFound:
            return False
        return True

    async def gone(self, type: ResourceType, name: str = "box") -> None:
        """Wait until the object does not exist."""

        async def missing() -> bool:
            return not await self.exists(type, name)

        await self.until(missing)

    async def all(self, type: ResourceType) -> list[Object]:
        """Return all objects of a kind in the namespace."""
        items: list[Object] = (await self.client.list(type, self.namespace))["items"]
        return items

    async def conditions(self, type: ResourceType = SANDBOX, name: str = "box") -> dict[str, tuple[str, str, str]]:
        """Status, reason and message of every condition of an object, by type."""
        conditions = (await self.get(type, name)).get("status", {}).get("conditions") or []
        return {each["type"]: (each["status"], each["reason"], each["message"]) for each in conditions}

    async def events(self, regarding: str | None = None) -> list[Object]:
        """The Events about objects of this name, or about all."""
        found = [each for each in await self.all(EVENT) if regarding in (None, each["regarding"]["name"])]
        return sorted(found, key=lambda event: event["metadata"]["name"])

    async def members(self) -> list[Object]:
        """The sandboxes of pools."""
        return [box for box in await self.all(SANDBOX) if owner_of(box)[0] == "SandboxWarmPool"]

    async def filled(self, count: int) -> list[Object]:
        """Wait until there are ``count`` pool members, all ready."""

        async def members() -> list[Object] | None:
            found = await self.members()
            return found if len(found) == count and all(map(is_ready, found)) else None

        found = await self.until(members) if count else []
        assert found is not None
        return found

    async def served(self, count: int) -> dict[str, Object]:
        """Wait until there are ``count`` claims, all ready. Returns their sandboxes by claim."""

        async def ready() -> list[Object] | None:
            claims = await self.all(SANDBOX_CLAIM)
            return claims if len(claims) == count and all(map(is_ready, claims)) else None

        claims = await self.until(ready)
        assert claims is not None
        boxes = {box["metadata"]["name"]: box for box in await self.all(SANDBOX)}
        return {claim["metadata"]["name"]: boxes[claim["status"]["sandbox"]["name"]] for claim in claims}

    # --- requests of the controllers ---------------------------------------------------------------------------------

    def writes(self, since: int = 0) -> list[Request]:
        """The write requests of the controllers, without Events."""
        return [
            request
            for request in self.wire.requests[since:]
            if request.method in WRITES and not request.path.endswith("/events")
        ]

    def written(self) -> list[str]:
        """The controllers' writes since the last call by the audit log, without Events: ``patch sandboxes/status``."""
        requests = self.audited_requests()
        new, self._reported = requests[self._reported :], len(requests)
        return [str(each) for each in new if each.writes and each.resource != "events"]

    def audited_requests(self, user: str | None = "controllers") -> list[AuditedRequest]:
        """The requests of one of the backend's users in this namespace, from the audit log."""
        return self.backend.audit.requests(since=self._since, namespace=self.namespace, user=user)


def owner_of(object: SharedObject) -> tuple[str, str]:
    """The kind and name of an object's controlling owner."""
    references = object["metadata"].get("ownerReferences") or []
    return next(((each["kind"], each["name"]) for each in references if each.get("controller")), ("", ""))


async def owners(world: World) -> Counter[tuple[str, str]]:
    """Count the Sandboxes of a world by owner."""
    return Counter(owner_of(box) for box in await world.all(SANDBOX))
