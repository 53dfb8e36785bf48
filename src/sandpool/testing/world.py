"""A small world for controllers: a real API in this process, a node that runs nothing, and people who want things."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from sandpool.api.conditions import READY, TRUE, find_condition
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.controllers.run import Controllers, Settings
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.transport import Request
from sandpool.server.app import ApiServer
from sandpool.testing.node import SimulatedNode
from sandpool.testing.objects import new
from sandpool.testing.watching import until
from sandpool.testing.wire import Wire

NAMESPACE = "default"
WRITES = ("POST", "PATCH", "DELETE", "PUT")


class World:
    """``client`` is for people, ``wire`` is what the controllers talk through."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = server.client(name="people")
        self.wire = Wire(server.client().transport)
        self.clock = SystemClock()
        self.random = Random(4711)
        self.node = SimulatedNode(server.client(name="node"), self.clock)
        self.controllers = self.new_controllers()
        self._node_task = asyncio.create_task(self.node.run())

    def new_controllers(self, settings: Settings | None = None) -> Controllers:
        return Controllers(Client(self.wire), self.clock, self.random, settings)

    async def restart(self, grace: float = 10.0) -> None:
        """Stop the controllers, by force after ``grace`` seconds, and start others in their place."""
        await self.controllers.stop(grace)
        self.controllers = self.new_controllers()
        await self.controllers.start()

    async def stop(self) -> None:
        await self.controllers.stop()
        self._node_task.cancel()
        await asyncio.gather(self._node_task, return_exceptions=True)

    # --- what people ask for -----------------------------------------------------------------------------------------

    async def template(self, image: str = "example.com/image:1", name: str = "python") -> None:
        spec = {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}
        await self.client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, name, spec=spec), NAMESPACE)

    async def change_template(self, image: str, name: str = "python") -> None:
        body = {"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
        changed = await self.client.patch(SANDBOX_TEMPLATE, name, MergePatch(body), NAMESPACE)
        generation = changed["metadata"]["generation"]
        templates = self.controllers.caches.templates
        await self.eventually(lambda: any(each.generation == generation for each in templates))

    async def pool(self, replicas: int, *, strategy: str = "", name: str = "pool", filled: bool = True) -> None:
        spec: Object = {"replicas": replicas, "sandboxTemplateRef": {"name": "python"}}
        if strategy:
            spec["updateStrategy"] = {"type": strategy}
        await self.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, name, spec=spec), NAMESPACE)
        if filled:
            await self.filled(replicas)

    async def claim(self, name: str, **spec: object) -> Object:
        body = new(SANDBOX_CLAIM, name, spec={"warmPoolRef": {"name": "pool"}, **spec})
        return await self.client.create(SANDBOX_CLAIM, body, NAMESPACE)

    # --- what there is -----------------------------------------------------------------------------------------------

    async def all(self, type: ResourceType) -> list[Object]:
        items: list[Object] = (await self.client.list(type, NAMESPACE))["items"]
        return items

    async def members(self) -> list[Object]:
        """The sandboxes of pools."""
        return [box for box in await self.all(SANDBOX) if owner_of(box)[0] == "SandboxWarmPool"]

    async def filled(self, count: int) -> list[Object]:
        """Wait until a pool's members are that many, all ready."""

        async def members() -> list[Object] | None:
            found = await self.members()
            return found if len(found) == count and all(map(is_ready, found)) else None

        found = await until(members)
        assert found is not None
        return found

    async def served(self, count: int) -> dict[str, Object]:
        """Wait until there are that many claims and all of them are ready; the sandbox of each, by claim."""

        async def ready() -> list[Object] | None:
            claims = await self.all(SANDBOX_CLAIM)
            return claims if len(claims) == count and all(map(is_ready, claims)) else None

        claims = await until(ready)
        assert claims is not None
        boxes = {box["metadata"]["name"]: box for box in await self.all(SANDBOX)}
        return {claim["metadata"]["name"]: boxes[claim["status"]["sandbox"]["name"]] for claim in claims}

    async def eventually(self, probe: Callable[[], object]) -> None:
        async def ask() -> bool:
            return bool(probe())

        await until(ask)

    def writes(self, since: int = 0) -> list[Request]:
        """What the controllers have written, Events aside."""
        return [
            request
            for request in self.wire.requests[since:]
            if request.method in WRITES and not request.path.endswith("/events")
        ]


def is_ready(object: Object) -> bool:
    condition = find_condition((object.get("status") or {}).get("conditions") or [], READY)
    return condition is not None and condition["status"] == TRUE


def owner_of(object: Object) -> tuple[str, str]:
    """The kind and name of what controls an object."""
    references = object["metadata"].get("ownerReferences") or []
    return next(((each["kind"], each["name"]) for each in references if each.get("controller")), ("", ""))


async def owners(world: World) -> Counter[tuple[str, str]]:
    return Counter(owner_of(box) for box in await world.all(SANDBOX))
