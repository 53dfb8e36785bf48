"""``sandpool bench claims``: how long people wait for a claim, and what it costs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast

from sandpool.api.kinds import NAMESPACE, SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM, WARM_POOL
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.bench.accounting import Ledger
from sandpool.bench.figures import percentile
from sandpool.bench.load import Load, Outcome, Tell, is_ready
from sandpool.bench.places import Place
from sandpool.bench.scenarios import Scenario
from sandpool.bench.subjects import sandbox
from sandpool.engine.clock import Clock
from sandpool.engine.deadline import within
from sandpool.kube.client import Client
from sandpool.kube.transport import WatchEvent

POOL: Final = "pool"
_TEMPLATE: Final = "python"
# Seconds: for a pool to be full to begin with and again, and of silence after which a run has come to rest. The audit
# log may be a second behind.
_PATIENCE: Final = 600.0
_SILENCE: Final = 2.5

PERCENTILES: Final = (50, 90, 99, 100)


@dataclass(frozen=True, slots=True)
class Report:
    """One scenario in one place, from the first claim until everything has come to rest. ``reconciles`` are by
    controller; ``cpu`` and ``starved`` are seconds by process, see ``Place``, the latter until the last Ready;
    ``refilled`` is seconds from then until the pool was full again."""

    scenario: Scenario
    place: str
    outcome: Outcome
    warm: int
    cold: int
    ledger: Ledger
    reconciles: dict[str, int]
    cpu: dict[str, float]
    starved: dict[str, float]
    refilled: float

    @property
    def count(self) -> int:
        return len(self.outcome.claims)

    def latency(self, percent: float) -> float:
        """Milliseconds; infinite if nobody was served."""
        return percentile(self.outcome.latencies, percent) * 1e3 if self.outcome.latencies else float("inf")

    def per_claim(self, count: float) -> float:
        return count / max(self.count, 1)


async def measure(place: Place, scenario: Scenario, clock: Clock, random: Random, tell: Tell) -> Report:
    """Fill a pool in a namespace of its own, put the load on it and wait until everything has come to rest."""
    client, namespace = place.client, f"bench-{scenario.name}"
    await client.create(NAMESPACE, {"metadata": {"name": namespace}})
    tell(f"filling a pool of {scenario.pool}")
    await _prepare(client, namespace, scenario.pool)
    await _full(client, clock, namespace, scenario.pool)
    await _rest(place, clock)
    tell("making claims")
    since, reconciles = len(place.audit), await place.reconciles()
    cpu, starved = place.cpu(), place.starved()
    most_waiting = scenario.load.most_waiting
    async with Load(client, clock, namespace, POOL, most_waiting=most_waiting, tell=tell) as load:
        outcome = await load.run(scenario.load.waves(random))
    last = clock.monotonic()
    starved = _difference(starved, place.starved())
    tell("waiting until the pool is full again")
    await _full(client, clock, namespace, scenario.pool)
    refilled = clock.monotonic() - last
    await _rest(place, clock)
    warm, cold = await _launches(client, namespace, {claim.sandbox for claim in outcome.claims})
    return Report(
        scenario,
        place.name,
        outcome,
        warm,
        cold,
        Ledger.of([each for each in place.audit.asked(since=since) if each.resource], place.writer),
        _difference(reconciles, await place.reconciles()),
        _difference(cpu, place.cpu()),
        starved,
        refilled,
    )


async def _prepare(client: Client, namespace: str, replicas: int) -> None:
    template = sandbox("", containers=1)["spec"]["podTemplate"]
    await client.create(SANDBOX_TEMPLATE, _new(SANDBOX_TEMPLATE, _TEMPLATE, {"podTemplate": template}), namespace)
    spec = {"replicas": replicas, "sandboxTemplateRef": {"name": _TEMPLATE}}
    await client.create(SANDBOX_WARM_POOL, _new(SANDBOX_WARM_POOL, POOL, spec), namespace)


def _new(type: Any, name: str, spec: Object) -> Object:
    return {"apiVersion": type.api_version, "kind": type.kind, "metadata": {"name": name}, "spec": spec}


async def _full(client: Client, clock: Clock, namespace: str, replicas: int) -> None:
    """Wait until so many of the pool's members are ready. Its status tells that, too, and is half a second behind."""
    members = f"{WARM_POOL}={name_hash(POOL)}"

    async def watch() -> None:
        listed = await client.list(SANDBOX, namespace, label_selector=members)
        ready = {item["metadata"]["name"] for item in listed["items"] if is_ready(item)}
        if len(ready) == replicas:
            return
        version = listed["metadata"]["resourceVersion"]
        stream = client.watch(SANDBOX, namespace, label_selector=members, resource_version=version)
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], stream)) as events:
            async for event in events:
                name = event.object["metadata"].get("name", "")
                if event.type == "DELETED":
                    ready.discard(name)
                elif event.type != "BOOKMARK" and is_ready(event.object):
                    ready.add(name)
                if len(ready) == replicas:
                    return
        raise ConnectionError("the watch of the pool's members ended")

    await within(clock, _PATIENCE, watch())


async def _rest(place: Place, clock: Clock) -> None:
    """Wait until nobody has asked for anything for a while: notes and events are written after the fact."""
    before = -1
    while (asked := len(place.audit)) != before:
        before = asked
        await clock.sleep(_SILENCE)


async def _launches(client: Client, namespace: str, names: set[str]) -> tuple[int, int]:
    """How many of these sandboxes came from a pool, and how many were made for a claim."""
    warm = cold = 0
    token: str | None = None
    while True:
        page = await client.list(SANDBOX, namespace, limit=500, continue_token=token)
        for item in page["items"]:
            if item["metadata"]["name"] in names:
                is_warm = item["metadata"]["labels"].get(LAUNCH_TYPE) == LAUNCH_WARM
                warm, cold = warm + is_warm, cold + (not is_warm)
        token = page["metadata"].get("continue")
        if not token:
            return warm, cold


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {key: value - before.get(key, 0) for key, value in after.items()}
