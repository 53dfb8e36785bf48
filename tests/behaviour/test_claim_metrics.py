"""Metrics, annotations and events of a claim, each once. Edge cases 41 and 49 to 53 of docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_CREATIONS,
    CLAIM_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
    Metric,
)
from sandpool.api.views import parse_time
from sandpool.controllers.options import ClaimOptions
from sandpool.kube.transport import Request
from sandpool.node.simulated import Stage
from sandpool.testing.backend import Backend
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.world import World

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
    ((values, (count, _)),) = observed(world, CREATION_LATENCY).items()
    assert (values, count) == ((world.namespace, *kind), 1)
    assert counted(world) == {(world.namespace, "python", "warm", "pool", "ready", "python-client"): 1}


async def test_cold_claim_is_recorded_as_cold(world: World) -> None:
    world.node.delays = {Stage.READY: 4.0}
    await world.template()
    await world.pool(0, filled=False)
    await world.claim("mine")
    await world.wait(4)
    await world.served(1)

    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("cold", "python"): (1, 4000.0)}
    assert counted(world) == {(world.namespace, "python", "cold", "pool", "not_ready", "unknown"): 1}
    assert observed(world, CLAIM_STARTUP_LATENCY) == observed(world, CLIENT_CLAIM_STARTUP_LATENCY) == {}


async def test_ready_claim_has_its_annotations(world: World, backend: Backend) -> None:
    """On the embedded API with the status, otherwise with the adoption and after the status."""
    await world.template()
    await world.pool(1)
    since = len(world.wire.requests)
    await world.claim("mine")
    box = (await world.served(1))["mine"]
    noted = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]

    assert noted[labels.SANDBOX_NAME] == box["metadata"]["name"]
    assert parse_time(noted[labels.CONTROLLER_FIRST_OBSERVED_AT]) == world.clock.now()
    assert parse_time(noted[labels.CLAIM_FIRST_READY_AT]) == world.clock.now()
    written = [each.path.rsplit("/", 1)[-1] for each in world.writes(since) if "/sandboxclaims/" in each.path]
    assert written == (["status"] if backend.name == "inprocess" else ["mine", "status", "mine"])


async def test_e41_claim_ready_before_its_annotations_is_not_recorded(world: World) -> None:
    """Its notes are taken away, as if a predecessor had never written any."""
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
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


async def test_e49_claim_is_recorded_without_observability_annotations(world: World) -> None:
    settings = replace(world.settings, claim=ClaimOptions(annotate_observability=False))
    await world.restart(settings=settings)
    await world.template()
    await world.pool(1)
    await world.claim("mine")
    await world.served(1)
    noted = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["annotations"]

    assert labels.CONTROLLER_FIRST_OBSERVED_AT not in noted
    assert labels.CLAIM_FIRST_READY_AT in noted
    assert observed(world, CLAIM_CONTROLLER_STARTUP_LATENCY) == {("warm", "python"): (1, 0.0)}


async def test_e50_recreated_claim_is_recorded_separately(world: World) -> None:
    world.node.delays = {Stage.READY: 10.0}
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
