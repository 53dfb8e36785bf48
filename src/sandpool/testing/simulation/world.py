"""The simulated world as a test of somebody's own code sees it: an API to talk to, and ways to make things happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client
from sandpool.kube.transport import Transport
from sandpool.testing.objects import new
from sandpool.testing.simulation.object_facts import is_ready
from sandpool.testing.simulation.users import NAMESPACE

if TYPE_CHECKING:
    from sandpool.testing.simulation.simulation import Simulation

_LOOK = 0.1  # seconds between two looks at something that is waited for; nobody waits in earnest


class World:
    """``client`` and ``transport`` talk to the API as anybody would, through a network of their own. ``clock`` is the
    world's: awaiting its ``sleep`` takes no time. ``namespace`` is where everything is."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self.simulation = simulation
        self.client = client
        self.clock = simulation.clock
        self.random = simulation.random
        self.namespace = NAMESPACE

    @property
    def transport(self) -> Transport:
        return self.client.transport

    # --- what there is ------------------------------------------------------------------------------------------------

    async def template(self, name: str = "python", *, image: str = "example.com/image:1", **spec: Any) -> Object:
        pod = {"spec": {"containers": [{"name": "main", "image": image}]}}
        return await self._create(SANDBOX_TEMPLATE, name, {"podTemplate": pod, **spec})

    async def pool(self, name: str = "pool", *, replicas: int = 2, template: str = "python", **spec: Any) -> Object:
        return await self._create(
            SANDBOX_WARM_POOL, name, {"replicas": replicas, "sandboxTemplateRef": {"name": template}, **spec}
        )

    async def claim(self, name: str, *, pool: str = "pool", **spec: Any) -> Object:
        return await self._create(SANDBOX_CLAIM, name, {"warmPoolRef": {"name": pool}, **spec})

    async def ready(self, type: ResourceType, name: str, *, within: float = 60.0) -> Object:
        """An object once it is ready. ``TimeoutError`` if it is not within so many seconds of the world's."""
        end = self.clock.monotonic() + within
        while not is_ready(found := await self.client.get(type, name, self.namespace)):
            if self.clock.monotonic() > end:
                raise TimeoutError(f"{type.kind} {name} is not ready after {within:g} s: {found.get('status')}")
            await self.clock.sleep(_LOOK)
        return found

    async def filled(self, name: str = "pool", *, within: float = 60.0) -> Object:
        """A pool once it is full."""
        end = self.clock.monotonic() + within
        while True:
            pool = await self.client.get(SANDBOX_WARM_POOL, name, self.namespace)
            ready = (pool.get("status") or {}).get("readyReplicas", 0)
            if ready == pool["spec"]["replicas"]:
                return pool
            if self.clock.monotonic() > end:
                raise TimeoutError(f"pool {name} has {ready} ready sandboxes after {within:g} s")
            await self.clock.sleep(_LOOK)

    @property
    def claims_in_hand(self) -> int:
        """How many claims the controllers are looking at, or are about to."""
        queue = self.simulation.incarnations[-1].controllers.claims.controller.queue
        return len(queue) + queue.processing

    # --- what happens -------------------------------------------------------------------------------------------------

    def kill_controllers(self) -> None:
        """End the controllers' process as SIGKILL would. Another one starts a moment later."""
        self.simulation.incarnations[-1].kill()

    def disturb_a_pod(self) -> str:
        """A pod that is ready is not for a while, or has ended; says what. Empty if there is none."""
        return self.simulation.nodes.disturb()

    async def _create(self, type: ResourceType, name: str, spec: Object) -> Object:
        return await self.client.create(type, new(type, name, spec=spec), self.namespace)
