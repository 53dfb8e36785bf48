"""Simulated users: they create, change and delete objects at random, and interfere with each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from random import Random
from typing import Any

from sandpool.api.claim import DELETE, DELETE_FOREGROUND, RETAIN
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType
from sandpool.api.template import ALLOWED
from sandpool.api.warmpool import ROLLING_UPDATE
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError
from sandpool.node.simulated import Fate
from sandpool.testing.objects import new
from sandpool.testing.simulation.api import ObjectStore
from sandpool.testing.simulation.network_faults import NetworkFaults
from sandpool.testing.simulation.nodes import Nodes
from sandpool.testing.simulation.profile import RELIABLE_NETWORK, Profile
from sandpool.testing.simulation.simulation import Scenario, Simulation
from sandpool.testing.simulation.trace import Trace
from sandpool.testing.simulation.world import NAMESPACE
from tests.support.simulation.profiles import draw_profile

_UNTIL_FILLED = 15.0
_FATES = (
    (Fate.READY,),
    (Fate.READY,) * 9 + (Fate.FAILED,),
    (Fate.READY,) * 6 + (Fate.HANGING, Fate.UNSCHEDULABLE, Fate.FAILED, Fate.SUCCEEDED),
    (Fate.READY, Fate.HANGING, Fate.UNSCHEDULABLE),
)
Action = Callable[[], Coroutine[Any, Any, None]]


class UserSimulation(Simulation):
    """A simulation with simulated users, faults and crashes, unless the scenario has a story."""

    def __init__(self, seed: int, scenario: Scenario | None = None, *, actions: int | None = None) -> None:
        self.actions = actions
        super().__init__(seed, scenario)

    def draw_profile(self) -> Profile:
        drawn = draw_profile(self.rng)
        return self.scenario.profile or (drawn if self.scenario.story is None else RELIABLE_NETWORK)

    def draw_fates(self) -> tuple[Fate, ...]:
        return super().draw_fates() if self.scenario.story is not None else self.rng.choice(_FATES)

    def prepare(self, client: Client) -> None:
        super().prepare(client)
        self.users = SimulatedUsers(
            client, self.store, self.nodes, self.faults, self.profile, self.clock, self.rng, self.trace
        )

    async def play(self) -> None:
        if self.scenario.story is not None:
            return await super().play()
        if self.scenario.aggregated:  # the process of the controllers is the API of these objects
            self.start_controllers()
        await self.users.create_initial_objects()
        if not self.scenario.aggregated:
            self.start_controllers()
        if self.rng.choice(self.profile.starts_full):
            await asyncio.sleep(_UNTIL_FILLED)
        return await self.users.run(self.rng.randint(2, 10) if self.actions is None else self.actions)


class SimulatedUsers:
    """Users that pick objects from the ``store`` directly and send their requests through the API."""

    def __init__(
        self,
        client: Client,
        store: ObjectStore,
        nodes: Nodes,
        faults: NetworkFaults,
        profile: Profile,
        clock: Clock,
        rng: Random,
        trace: Trace,
    ) -> None:
        self.client = client
        self.store = store
        self.nodes = nodes
        self.faults = faults
        self.clock = clock
        self.rng = rng
        self.trace = trace
        self.profile = profile
        self.max_pause = rng.choice(profile.max_pause)
        self._claims = 0
        self._images = 0
        self.actions: tuple[tuple[int, Action], ...] = (
            (12, self.claim),
            (3, self.burst),
            (4, self.delete_claim),
            (2, self.replace_claim),
            (4, self.scale),
            (4, self.change_template),
            (1, self.change_strategy),
            (1, self.delete_pool),
            (2, self.delete_pod),
            (2, self.delete_sandbox),
            (2, self.suspend),
            (3, self.edit_metadata),
            (3, self.disturb),
            (1, self.delete_template),
            (1, self.quota),
        )

    async def create_initial_objects(self) -> None:
        """Create a template and one or two pools."""
        await self._create(SANDBOX_TEMPLATE, "t0", self._template())
        for number in range(self.rng.choice((1, 1, 2))):
            await self._create(SANDBOX_WARM_POOL, f"p{number}", self._pool())

    async def run(self, count: int) -> None:
        choices = [action for _, action in self.actions]
        weights = [weight * self.profile.weights.get(action.__name__, 1) for weight, action in self.actions]
        for _ in range(count):
            await self.clock.sleep(self.rng.random() * self.max_pause)
            (action,) = self.rng.choices(choices, weights)
            await action()

    # --- actions ------------------------------------------------------------------------------------------------------

    async def claim(self) -> None:
        self._claims += 1
        await self._create(SANDBOX_CLAIM, f"c{self._claims}", self._claim())

    async def burst(self) -> None:
        await asyncio.gather(*(self.claim() for _ in range(self.rng.randint(2, 4))))

    async def delete_claim(self) -> None:
        if name := self._any(SANDBOX_CLAIM):
            await self._delete(SANDBOX_CLAIM, name, self.rng.choice((None, "Background", "Foreground")))

    async def replace_claim(self) -> None:
        """Delete a claim and create another with the same name at once."""
        if name := self._any(SANDBOX_CLAIM):
            await self._delete(SANDBOX_CLAIM, name)
            await self._create(SANDBOX_CLAIM, name, self._claim())

    async def scale(self) -> None:
        if name := self._any(SANDBOX_WARM_POOL):
            await self._patch(SANDBOX_WARM_POOL, name, {"spec": {"replicas": self.rng.randint(0, 4)}})

    async def change_template(self) -> None:
        await self._patch(SANDBOX_TEMPLATE, "t0", {"spec": self._template()})

    async def change_strategy(self) -> None:
        if name := self._any(SANDBOX_WARM_POOL):
            await self._patch(SANDBOX_WARM_POOL, name, {"spec": {"updateStrategy": self._strategy()}})

    async def delete_pool(self) -> None:
        """Delete a pool, sometimes orphaning its members, and mostly create another with the same name."""
        if name := self._any(SANDBOX_WARM_POOL):
            await self._delete(SANDBOX_WARM_POOL, name, self.rng.choice((None, "Orphan", "Foreground")))
            await self.clock.sleep(self.rng.choice((0.0, 1.0, 10.0)))
            if self.rng.random() < 0.9:
                await self._create(SANDBOX_WARM_POOL, name, self._pool())

    async def delete_template(self) -> None:
        await self._delete(SANDBOX_TEMPLATE, "t0")
        await self.clock.sleep(self.rng.choice((0.0, 2.0)))
        await self._create(SANDBOX_TEMPLATE, "t0", self._template())

    async def delete_pod(self) -> None:
        if name := self._any(POD):
            await self._delete(POD, name)

    async def delete_sandbox(self) -> None:
        if name := self._any(SANDBOX):
            await self._delete(SANDBOX, name, self.rng.choice((None, "Foreground")))

    async def suspend(self) -> None:
        """Suspend or resume a sandbox."""
        if name := self._any(SANDBOX):
            mode = self.rng.choice(("Suspended", "Running", "Running"))
            await self._patch(SANDBOX, name, {"spec": {"operatingMode": mode}})

    async def edit_metadata(self) -> None:
        """Write an unrelated label or annotation, which changes the resourceVersion."""
        type = self.rng.choice((SANDBOX, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, POD))
        if name := self._any(type):
            note = {"example.com/note": str(self.rng.randrange(1000))}
            key = self.rng.choice(("labels", "annotations"))
            await self._patch(type, name, {"metadata": {key: note}})

    async def disturb(self) -> None:
        if what := self.nodes.disturb():
            self.trace.note("nodes", what)

    async def quota(self) -> None:
        """Forbid the creation of sandboxes for a while."""
        self.faults.quota_until = self.clock.monotonic() + self.rng.choice((1.0, 10.0, 40.0))

    # --- specs --------------------------------------------------------------------------------------------------------

    def _template(self) -> Object:
        self._images += 1
        container: Object = {"name": "main", "image": f"example.com/image:{self._images}"}
        pod: Object = {"spec": {"containers": [container]}}
        if self.rng.random() < 0.3:
            pod["metadata"] = {"labels": {"example.com/team": self.rng.choice("ab")}}
        spec: Object = {
            "podTemplate": pod,
            "envVarsInjectionPolicy": ALLOWED,
            "volumeClaimTemplatesPolicy": ALLOWED,
            "service": self.rng.choice((True, None)),
        }
        if self.rng.random() < 0.2:
            spec["volumeClaimTemplates"] = [_volume("home")]
        return spec

    def _pool(self) -> Object:
        return {
            "replicas": self.rng.choice((0, 1, 2, 3, 3, 4)),
            "sandboxTemplateRef": {"name": "t0"},
            "updateStrategy": self._strategy(),
        }

    def _strategy(self) -> Object:
        strategy: Object = {"type": self.rng.choice(self.profile.strategies)}
        if strategy["type"] == ROLLING_UPDATE:
            strategy["rollingUpdate"] = {
                "maxSurge": self.rng.choice((0, 1, "25%")),
                "maxUnavailable": self.rng.choice((0, 1, "50%")),
            }
        return strategy

    def _claim(self) -> Object:
        rng = self.rng
        pool = self._any(SANDBOX_WARM_POOL) if rng.random() < 0.95 else "nowhere"
        spec: Object = {"warmPoolRef": {"name": pool or "p0"}}
        if rng.random() < 0.1:
            spec["env"] = [{"name": "A", "value": "1"}]
        if rng.random() < 0.08:
            spec["volumeClaimTemplates"] = [_volume("data")]
        if rng.random() < 0.15:
            spec["additionalPodMetadata"] = {"labels": {"sandbox.users.io/who": rng.choice("ab")}}
        if rng.random() < 0.25:
            lifecycle: Object = {"shutdownPolicy": rng.choice((DELETE, DELETE_FOREGROUND, RETAIN))}
            if rng.random() < 0.6:
                moment = self.clock.now() + timedelta(seconds=rng.choice((0, 1, 5, 30)))
                lifecycle["shutdownTime"] = timestamp(moment)
            else:
                lifecycle["ttlSecondsAfterFinished"] = rng.choice((0, 2, 20))
            spec["lifecycle"] = lifecycle
        return spec

    # --- requests -----------------------------------------------------------------------------------------------------

    def _any(self, type: ResourceType) -> str:
        """The name of a random object of a type; empty if there is none."""
        names = [entry.key[1] for entry in self.store.scan(type.group_resource, NAMESPACE)]
        return self.rng.choice(names) if names else ""

    async def _create(self, type: ResourceType, name: str, spec: Object) -> None:
        await self._try(lambda: self.client.create(type, new(type, name, spec=spec), NAMESPACE))

    async def _patch(self, type: ResourceType, name: str, body: Object) -> None:
        await self._try(lambda: self.client.patch(type, name, MergePatch(body), NAMESPACE))

    async def _delete(self, type: ResourceType, name: str, policy: str | None = None) -> None:
        await self._try(lambda: self.client.delete(type, name, NAMESPACE, propagation_policy=policy))

    async def _try(self, request: Callable[[], Awaitable[Any]]) -> None:
        try:
            await request()
        except ApiError as error:
            # Another writer was faster. Any other error is a bug of the simulation.
            if error.code not in (404, 409):
                raise


def _volume(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}
