"""People who want sandboxes, change their minds, and get into each other's way."""

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
from sandpool.server.store.store import Store
from sandpool.testing.objects import new
from sandpool.testing.simulation.network_faults import Weather
from sandpool.testing.simulation.nodes import Nodes
from sandpool.testing.simulation.profile import Theme
from sandpool.testing.simulation.trace import Trace

NAMESPACE = "default"
Deed = Callable[[], Coroutine[Any, Any, None]]


class People:
    """They know the ``store`` and so always know what there is; what they want they ask of the API, like anybody."""

    def __init__(
        self,
        client: Client,
        store: Store,
        nodes: Nodes,
        weather: Weather,
        theme: Theme,
        clock: Clock,
        random: Random,
        trace: Trace,
    ) -> None:
        self.client = client
        self.store = store
        self.nodes = nodes
        self.weather = weather
        self.clock = clock
        self.random = random
        self.trace = trace
        self.theme = theme
        self.hurry = random.choice(theme.hurry)
        self._claims = 0
        self._images = 0
        self.deeds: tuple[tuple[int, Deed], ...] = (
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
            (3, self.meddle),
            (3, self.disturb),
            (1, self.delete_template),
            (1, self.quota),
        )

    async def begin(self) -> None:
        """What there is before anything happens: a template and a pool or two."""
        await self._create(SANDBOX_TEMPLATE, "t0", self._template())
        for number in range(self.random.choice((1, 1, 2))):
            await self._create(SANDBOX_WARM_POOL, f"p{number}", self._pool())

    async def act(self, deeds: int) -> None:
        choices = [deed for _, deed in self.deeds]
        weights = [weight * self.theme.often.get(deed.__name__, 1) for weight, deed in self.deeds]
        for _ in range(deeds):
            await self.clock.sleep(self.random.random() * self.hurry)
            (deed,) = self.random.choices(choices, weights)
            await deed()

    # --- what they do -------------------------------------------------------------------------------------------------

    async def claim(self) -> None:
        self._claims += 1
        await self._create(SANDBOX_CLAIM, f"c{self._claims}", self._claim())

    async def burst(self) -> None:
        await asyncio.gather(*(self.claim() for _ in range(self.random.randint(2, 4))))

    async def delete_claim(self) -> None:
        if name := self._any(SANDBOX_CLAIM):
            await self._delete(SANDBOX_CLAIM, name, self.random.choice((None, "Background", "Foreground")))

    async def replace_claim(self) -> None:
        """Under the same name, as fast as can be."""
        if name := self._any(SANDBOX_CLAIM):
            await self._delete(SANDBOX_CLAIM, name)
            await self._create(SANDBOX_CLAIM, name, self._claim())

    async def scale(self) -> None:
        if name := self._any(SANDBOX_WARM_POOL):
            await self._patch(SANDBOX_WARM_POOL, name, {"spec": {"replicas": self.random.randint(0, 4)}})

    async def change_template(self) -> None:
        await self._patch(SANDBOX_TEMPLATE, "t0", {"spec": self._template()})

    async def change_strategy(self) -> None:
        if name := self._any(SANDBOX_WARM_POOL):
            await self._patch(SANDBOX_WARM_POOL, name, {"spec": {"updateStrategy": self._strategy()}})

    async def delete_pool(self) -> None:
        """Sometimes leaving its members behind, and mostly making another of the same name."""
        if name := self._any(SANDBOX_WARM_POOL):
            await self._delete(SANDBOX_WARM_POOL, name, self.random.choice((None, "Orphan", "Foreground")))
            await self.clock.sleep(self.random.choice((0.0, 1.0, 10.0)))
            if self.random.random() < 0.9:
                await self._create(SANDBOX_WARM_POOL, name, self._pool())

    async def delete_template(self) -> None:
        await self._delete(SANDBOX_TEMPLATE, "t0")
        await self.clock.sleep(self.random.choice((0.0, 2.0)))
        await self._create(SANDBOX_TEMPLATE, "t0", self._template())

    async def delete_pod(self) -> None:
        if name := self._any(POD):
            await self._delete(POD, name)

    async def delete_sandbox(self) -> None:
        if name := self._any(SANDBOX):
            await self._delete(SANDBOX, name, self.random.choice((None, "Foreground")))

    async def suspend(self) -> None:
        """Or resume."""
        if name := self._any(SANDBOX):
            mode = self.random.choice(("Suspended", "Running", "Running"))
            await self._patch(SANDBOX, name, {"spec": {"operatingMode": mode}})

    async def meddle(self) -> None:
        """Write something that means nothing, at a bad moment."""
        type = self.random.choice((SANDBOX, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, POD))
        if name := self._any(type):
            note = {"example.com/note": str(self.random.randrange(1000))}
            key = self.random.choice(("labels", "annotations"))
            await self._patch(type, name, {"metadata": {key: note}})

    async def disturb(self) -> None:
        if what := self.nodes.disturb():
            self.trace.note("nodes", what)

    async def quota(self) -> None:
        """Somebody does not want any more sandboxes for a while."""
        self.weather.quota_until = self.clock.monotonic() + self.random.choice((1.0, 10.0, 40.0))

    # --- what they ask for --------------------------------------------------------------------------------------------

    def _template(self) -> Object:
        self._images += 1
        container: Object = {"name": "main", "image": f"example.com/image:{self._images}"}
        pod: Object = {"spec": {"containers": [container]}}
        if self.random.random() < 0.3:
            pod["metadata"] = {"labels": {"example.com/team": self.random.choice("ab")}}
        spec: Object = {
            "podTemplate": pod,
            "envVarsInjectionPolicy": ALLOWED,
            "volumeClaimTemplatesPolicy": ALLOWED,
            "service": self.random.choice((True, None)),
        }
        if self.random.random() < 0.2:
            spec["volumeClaimTemplates"] = [_volume("home")]
        return spec

    def _pool(self) -> Object:
        return {
            "replicas": self.random.choice((0, 1, 2, 3, 3, 4)),
            "sandboxTemplateRef": {"name": "t0"},
            "updateStrategy": self._strategy(),
        }

    def _strategy(self) -> Object:
        strategy: Object = {"type": self.random.choice(self.theme.strategies)}
        if strategy["type"] == ROLLING_UPDATE:
            strategy["rollingUpdate"] = {
                "maxSurge": self.random.choice((0, 1, "25%")),
                "maxUnavailable": self.random.choice((0, 1, "50%")),
            }
        return strategy

    def _claim(self) -> Object:
        random = self.random
        pool = self._any(SANDBOX_WARM_POOL) if random.random() < 0.95 else "nowhere"
        spec: Object = {"warmPoolRef": {"name": pool or "p0"}}
        if random.random() < 0.1:
            spec["env"] = [{"name": "A", "value": "1"}]
        if random.random() < 0.08:
            spec["volumeClaimTemplates"] = [_volume("data")]
        if random.random() < 0.15:
            spec["additionalPodMetadata"] = {"labels": {"sandbox.users.io/who": random.choice("ab")}}
        if random.random() < 0.25:
            lifecycle: Object = {"shutdownPolicy": random.choice((DELETE, DELETE_FOREGROUND, RETAIN))}
            if random.random() < 0.6:
                moment = self.clock.now() + timedelta(seconds=random.choice((0, 1, 5, 30)))
                lifecycle["shutdownTime"] = timestamp(moment)
            else:
                lifecycle["ttlSecondsAfterFinished"] = random.choice((0, 2, 20))
            spec["lifecycle"] = lifecycle
        return spec

    # --- how they ask -------------------------------------------------------------------------------------------------

    def _any(self, type: ResourceType) -> str:
        """The name of one of those there are, empty if there is none."""
        names = [entry.key[1] for entry in self.store.scan(type.group_resource, NAMESPACE)]
        return self.random.choice(names) if names else ""

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
            # Somebody was faster. Anything else is a mistake of ours.
            if error.code not in (404, 409):
                raise


def _volume(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}
