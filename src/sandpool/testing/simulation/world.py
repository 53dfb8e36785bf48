"""The simulated world as the tests of client code see it: an API, and ways to inject failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandpool.api.kinds import SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.transport import Transport
from sandpool.testing.objects import new
from sandpool.testing.simulation.object_facts import is_ready

if TYPE_CHECKING:
    from sandpool.testing.simulation.simulation import Simulation

NAMESPACE = "default"
_INTERVAL = 0.1  # seconds of virtual time between two polls


class World:
    """A simulated API server with controllers and nodes.

    ``client`` and ``transport`` use the API through a simulated network. ``clock`` is virtual: awaiting its ``sleep``
    takes no real time. All objects are in ``namespace``.
    """

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self.simulation = simulation
        self.client = client
        self.clock = simulation.clock
        self.rng = simulation.rng
        self.namespace = NAMESPACE

    @property
    def transport(self) -> Transport:
        """The transport of ``client``."""
        return self.client.transport

    # --- objects ------------------------------------------------------------------------------------------------------

    async def template(self, name: str = "python", *, image: str = "example.com/image:1", **spec: Any) -> SharedObject:
        """Create a SandboxTemplate; further arguments become part of its spec."""
        pod = {"spec": {"containers": [{"name": "main", "image": image}]}}
        return await self._create(SANDBOX_TEMPLATE, name, {"podTemplate": pod, **spec})

    async def pool(
        self, name: str = "pool", *, replicas: int = 2, template: str = "python", **spec: Any
    ) -> SharedObject:
        """Create a SandboxWarmPool; further arguments become part of its spec."""
        return await self._create(
            SANDBOX_WARM_POOL, name, {"replicas": replicas, "sandboxTemplateRef": {"name": template}, **spec}
        )

    async def claim(self, name: str, *, pool: str = "pool", **spec: Any) -> SharedObject:
        """Create a SandboxClaim; further arguments become part of its spec."""
        return await self._create(SANDBOX_CLAIM, name, {"warmPoolRef": {"name": pool}, **spec})

    async def ready(self, type: ResourceType, name: str, *, within: float = 60.0) -> SharedObject:
        """Wait until an object is ready and return it; ``TimeoutError`` after ``within`` seconds of virtual time."""
        end = self.clock.monotonic() + within
        while not is_ready(found := await self.client.get(type, name, self.namespace)):
            if self.clock.monotonic() > end:
                raise TimeoutError(f"{type.kind} {name} is not ready after {within:g} s: {found.get('status')}")
            await self.clock.sleep(_INTERVAL)
        return found

    async def filled(self, name: str = "pool", *, within: float = 60.0) -> SharedObject:
        """Wait until a pool has all its replicas ready and return it."""
        end = self.clock.monotonic() + within
        while True:
            pool = await self.client.get(SANDBOX_WARM_POOL, name, self.namespace)
            ready = (pool.get("status") or {}).get("readyReplicas", 0)
            if ready == pool["spec"]["replicas"]:
                return pool
            if self.clock.monotonic() > end:
                raise TimeoutError(f"pool {name} has {ready} ready sandboxes after {within:g} s")
            await self.clock.sleep(_INTERVAL)

    # --- failures -----------------------------------------------------------------------------------------------------

    def kill_controllers(self) -> None:
        """Kill the controllers' process as SIGKILL would. Another one starts after a moment."""
        self.simulation.processes[-1].kill()

    def disturb_a_pod(self) -> str:
        """Make a ready pod flap or end. Returns a description, empty if no pod is ready."""
        return self.simulation.nodes.disturb()

    async def _create(self, type: ResourceType, name: str, spec: Object) -> SharedObject:
        return await self.client.create(type, new(type, name, spec=spec), self.namespace)
