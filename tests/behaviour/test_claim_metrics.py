"""Metrics, annotations and events of a claim, each once. Edge cases 41 and 49 to 53 of docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX_CLAIM
from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_CREATIONS,
    CLAIM_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
    Metric,
)
from sandpool.api.views import parse_time
from sandpool.controllers.options import FIRST_READY_DELAY, ClaimOptions
from sandpool.kube.errors import Conflict, Forbidden
from sandpool.kube.transport import Request
from sandpool.node.simulated import StartupStage
from sandpool.testing.backend import Backend
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.world import World
from tests.support.backends import reaches_kinds_in_memory

HISTOGRAMS = (
    CLAIM_STARTUP_LATENCY,
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
)


def observed(world: World, metric: Metric) -> dict[tuple[str, ...], tuple[int, float]]:
    """How often something was observed and what it sums up to, by labels."""
    series = world.controllers.metrics.histogram(metric).copy().series
    return {values: (sum(counts), total) for values, counts, total in series}


def counted(world: World) -> Mapping[tuple[str, ...], float]:
    return dict(world.controllers.metrics.counter(CLAIM_CREATIONS).copy().samples)


def nano(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def test_warm_claim_is_recorded_in_every_metric_once(world: World) -> None:
    await world.template()
    await world.wait(60)  # lest the API's clock be ahead of ours, and what was ready before it was made is not measured
    await world.pool(1)
    now = world.clock.now()
    annotations = {
        labels.WEBHOOK_FIRST_OBSERVED_AT: nano(now - timedelta(seconds=2)),
        labels.CLIENT_FIRST_REQUESTED_AT: nano(now - timedelta(seconds=3)),
    }
    marked = {labels.CREATED_BY: "python-client"}
    await world.claim("mine", metadata={"annotations": annotations, "labels": marked})
    await world.served(1)

    kind = ("warm", "python")
    assert observed(world, CLAIM_STARTUP_LATENCY) == {kind: (1, 2000.0)}
    assert observed(world, CLIENT_CLAIM_STARTUP_LATENCY) == {kind: (1, 3000.0)}
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {kind: (1, 0.0)}, "no time has passed here"
    assert counted(world) == {(world.namespace, "python", "warm", "pool", "ready", "python-client"): 1}


@pytest.mark.parametrize(("launch", "replicas"), [("warm", 1), ("cold", 0)])
async def test_creation_latency_is_between_two_times_in_whole_seconds(world: World, launch: str, replicas: int) -> None:
    """Of the sandbox in the API: its creation, and the transition of its Ready condition."""
    world.node.delays = {StartupStage.READY: 3.7}
    await world.template()
    await world.wait(60)  # lest the API's clock be ahead of ours, and what was ready before it was made is not measured
    await world.pool(replicas, filled=False)
    await world.wait(10)
    await world.claim("mine")
    await world.wait(10)
    box = (await world.served(1))["mine"]

    created = parse_time(box["metadata"]["creationTimestamp"])
    (ready,) = (each for each in box["status"]["conditions"] if each["type"] == "Ready")
    since = parse_time(ready["lastTransitionTime"])
    assert created is not None and since is not None and since > created
    milliseconds = (since - created).total_seconds() * 1000
    assert milliseconds % 1000 == 0
    assert observed(world, CREATION_LATENCY) == {(world.namespace, launch, "python"): (1, milliseconds)}


async def test_cold_claim_is_recorded_as_cold(world: World) -> None:
    world.node.delays = {StartupStage.READY: 4.0}
    await world.template()
    await world.pool(0, filled=False)
    await world.claim("mine")
    await world.wait(4)
    await world.served(1)

    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("cold", "python"): (1, 4000.0)}
    assert counted(world) == {(world.namespace, "python", "cold", "pool", "not_ready", "unknown"): 1}
    assert observed(world, CLAIM_STARTUP_LATENCY) == observed(world, CLIENT_CLAIM_STARTUP_LATENCY) == {}


async def test_ready_claim_has_its_annotations(world: World, backend: Backend) -> None:
    """On the embedded API with the status, otherwise with the adoption; then the time of Ready follows later."""
    await world.template()
    await world.pool(1)
    since = len(world.wire.requests)
    await world.claim("mine")
    box, ready_at = (await world.served(1))["mine"], world.clock.now()
    noted = await annotations_of_claim(world)
    assert noted[labels.SANDBOX_NAME] == box["metadata"]["name"]
    assert parse_time(noted[labels.CONTROLLER_FIRST_OBSERVED_AT]) == ready_at
    assert (labels.CLAIM_FIRST_READY_AT in noted) is reaches_kinds_in_memory(backend)

    await world.wait(FIRST_READY_DELAY)
    assert parse_time((await annotations_of_claim(world))[labels.CLAIM_FIRST_READY_AT]) == ready_at
    written = [each.path.rsplit("/", 1)[-1] for each in world.writes(since) if "/sandboxclaims/" in each.path]
    assert written == (["status"] if reaches_kinds_in_memory(backend) else ["mine", "status", "mine"])


async def test_e41_claim_ready_before_its_annotations_is_not_recorded(world: World) -> None:
    """Its notes are taken away, as if a predecessor had never written any."""
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    await world.wait(FIRST_READY_DELAY)
    await world.patch(SANDBOX_CLAIM, "mine", {"metadata": {"annotations": {labels.CLAIM_FIRST_READY_AT: None}}})
    await world.restart()
    await world.settle()

    noted = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]
    assert noted[labels.CLAIM_FIRST_READY_AT] == labels.FIRST_READY_UNKNOWN
    assert all(observed(world, metric) == {} for metric in HISTOGRAMS)


async def test_e41_failed_annotations_are_written_later_and_nothing_is_recorded_again(world: World) -> None:
    world.wire.stores_metadata_with_status = False
    await world.restart()
    await world.template()
    await world.pool(1)
    failed: list[Request] = []

    def fail(request: Request) -> Fault | None:
        if request.method == "PATCH" and request.path.endswith("/sandboxclaims/mine") and len(failed) < 5:
            failed.append(request)
            return Fault.CUT
        return None

    world.wire.fault = fail
    await world.claim("mine")
    await world.wait(30)

    assert len(failed) == 5
    assert labels.CLAIM_FIRST_READY_AT in (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("warm", "python"): (1, 0.0)}


@pytest.mark.parametrize("fault", [Fault.HOLD, Fault.STALL], ids=["not stored", "stored"])
async def test_claim_is_ready_though_its_early_annotations_are_not_answered(world: World, fault: Fault) -> None:
    """The API answers the adoption and not the annotations, which it may have stored."""
    world.wire.stores_metadata_with_status = False
    await world.restart()
    await world.template()
    await world.pool(1)
    faulty: list[Request] = []

    def once(request: Request) -> Fault | None:
        if request.method == "PATCH" and request.path.endswith("/sandboxclaims/mine") and not faulty:
            faulty.append(request)
            return fault
        return None

    world.wire.fault = once
    await world.claim("mine")
    await world.wait(2)
    assert len(faulty) == 1
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))

    await world.wait(60)
    annotations = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]
    expected = {labels.CLAIM_FIRST_READY_AT, labels.CONTROLLER_FIRST_OBSERVED_AT, labels.SANDBOX_NAME}
    assert expected <= annotations.keys()


async def test_time_of_the_first_ready_is_stored_before_a_claim_loses_readiness(world: World) -> None:
    """So that a successor knows, whatever happens in between, that the claim was recorded."""
    await serve_one(world)
    ready_at = world.clock.now()
    await world.wait(1)
    since = len(world.wire.requests)
    await report(world, "False")

    assert parse_time((await annotations_of_claim(world))[labels.CLAIM_FIRST_READY_AT]) == ready_at
    written = [each.path.rsplit("/", 1)[-1] for each in world.writes(since) if "/sandboxclaims/" in each.path]
    assert written == ["mine", "status"]
    await world.wait(3600)
    written = [each.path.rsplit("/", 1)[-1] for each in world.writes(since) if "/sandboxclaims/" in each.path]
    assert written == ["mine", "status"], "it is not written again"


async def test_stopping_controllers_write_the_time_of_the_first_ready(world: World) -> None:
    await serve_one(world)
    ready_at = world.clock.now()
    await world.restart()
    assert parse_time((await annotations_of_claim(world))[labels.CLAIM_FIRST_READY_AT]) == ready_at


async def test_after_a_crash_the_time_of_the_first_ready_is_unknown(world: World) -> None:
    await serve_one(world)
    await world.restart(grace=0.0)
    await world.settle()
    assert (await annotations_of_claim(world))[labels.CLAIM_FIRST_READY_AT] == labels.FIRST_READY_UNKNOWN
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {}


@pytest.mark.parametrize("writes", range(6))
async def test_flapping_claim_is_recorded_once_whichever_write_is_the_last_of_a_process(
    world: World, writes: int
) -> None:
    """The process dies after ``writes`` writes of the claim: none of the later ones reaches the API."""
    await separately(world)
    done: list[Request] = []

    def die(request: Request) -> Fault | None:
        if request.method != "PATCH" or "/sandboxclaims/mine" not in request.path:
            return None
        done.append(request)
        return Fault.CUT if len(done) > writes else None

    world.wire.fault = die
    await world.claim("mine")
    await world.wait(1)
    if writes >= 2:  # it is Ready
        await report(world, "False")
        await report(world, "True")
    before = recorded(world)
    await world.restart(grace=0.0)
    world.wire.heal()
    await world.wait(60)
    await report(world, "False")
    await report(world, "True")
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    assert before + recorded(world) == 1


async def test_claim_whose_annotations_are_refused_is_recorded_once_and_keeps_its_status(world: World) -> None:
    await separately(world)
    world.wire.fault = lambda request: (
        Forbidden("a policy of the cluster") if request.path.endswith("/sandboxclaims/mine") else None
    )
    await world.claim("mine")
    await world.wait(1)
    for _ in range(2):
        await report(world, "False")
        assert not is_ready(await world.get(SANDBOX_CLAIM, "mine"))
        await report(world, "True")
        assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    assert recorded(world) == 1


async def test_conflict_does_not_count_as_a_refusal_of_the_annotation(world: World) -> None:
    """Another writer was faster: the annotation is stored with the next try, still before the status."""
    await serve_one(world)
    await world.wait(1)
    refused: list[Request] = []

    def overtake(request: Request) -> Conflict | None:
        if request.method == "PATCH" and request.path.endswith("/sandboxclaims/mine") and not refused:
            refused.append(request)
            return Conflict("the object has been modified")
        return None

    world.wire.fault = overtake
    since = len(world.wire.requests)
    await report(world, "False")
    written = [each.path.rsplit("/", 1)[-1] for each in world.writes(since) if "/sandboxclaims/" in each.path]
    assert written == ["mine", "mine", "status"]
    assert labels.CLAIM_FIRST_READY_AT in await annotations_of_claim(world)


async def separately(world: World) -> None:
    """Metadata and status are separate writes, on every backend."""
    world.wire.stores_metadata_with_status = False
    await world.restart()
    await world.template()
    await world.pool(1)


async def serve_one(world: World) -> None:
    await separately(world)
    await world.claim("mine")
    await world.served(1)


async def annotations_of_claim(world: World) -> dict[str, str]:
    found: dict[str, str] = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]
    return found


async def report(world: World, status: str) -> None:
    """Report the readiness of the claim's pod as a kubelet would."""
    name = (await world.get(SANDBOX_CLAIM, "mine"))["status"]["sandbox"]["name"]
    conditions = (await world.get(POD, name))["status"]["conditions"]
    told = [{**each, "status": status} if each["type"] == "Ready" else each for each in conditions]
    await world.patch(POD, name, {"status": {"conditions": told}}, "status")
    await world.settle()


def recorded(world: World) -> int:
    return sum(count for count, _ in observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY).values())


async def test_e49_claim_is_recorded_without_observability_annotations(world: World) -> None:
    settings = replace(world.settings, claim=ClaimOptions(annotate_observability=False))
    await world.restart(settings=settings)
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    await world.wait(FIRST_READY_DELAY)
    noted = await annotations_of_claim(world)

    assert labels.CONTROLLER_FIRST_OBSERVED_AT not in noted
    assert labels.CLAIM_FIRST_READY_AT in noted
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("warm", "python"): (1, 0.0)}


async def test_e50_recreated_claim_is_recorded_separately(world: World) -> None:
    world.node.delays = {StartupStage.READY: 10.0}
    await world.template()
    await world.pool(0, filled=False)
    await world.claim("mine")
    await world.wait(5)
    await world.delete(SANDBOX_CLAIM, "mine")
    await world.gone(SANDBOX_CLAIM, "mine")

    async def is_alone() -> bool:
        return not world.controllers.caches.sandboxes and not world.controllers.caches.pods

    await world.until(is_alone)
    await world.claim("mine")
    await world.wait(10)
    await world.served(1)

    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("cold", "python"): (1, 10_000.0)}


async def test_e53_start_in_the_future_skips_only_its_own_histogram(world: World) -> None:
    await world.template()
    await world.pool(1)
    now = world.clock.now()
    annotations = {
        labels.WEBHOOK_FIRST_OBSERVED_AT: nano(now + timedelta(hours=1)),
        labels.CLIENT_FIRST_REQUESTED_AT: "yesterday",
    }
    await world.claim("mine", metadata={"annotations": annotations})
    await world.served(1)

    assert observed(world, CLAIM_STARTUP_LATENCY) == observed(world, CLIENT_CLAIM_STARTUP_LATENCY) == {}
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("warm", "python"): (1, 0.0)}
