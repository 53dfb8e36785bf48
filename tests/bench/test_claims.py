"""Scenarios run from beginning to end on a small embedded API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from sandpool.api.kinds import NAMESPACE, POD, SANDBOX
from sandpool.api.resource import Object
from sandpool.bench import claims
from sandpool.bench.claims import NEW, Report, measure, stale
from sandpool.bench.clusters import NO_REQUESTS, NO_USAGE, on_cluster
from sandpool.bench.environments import Place, in_process
from sandpool.bench.load import Claim
from sandpool.bench.members import MARK, Members
from sandpool.bench.namespace_setup import Ground
from sandpool.bench.report import tables
from sandpool.bench.scenarios import Bursts, Scenario, Stream
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import AlreadyExists
from sandpool.testing.clock import ManualClock


@pytest_asyncio.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(claims, "_SILENCE", 0.2)  # the log of this process is never behind
    async with in_process(tmp_path, SystemClock(), Random(1)) as found:
        yield found


async def run(place: Place, scenario: Scenario, **options: str) -> Report:
    return await measure(place, scenario, SystemClock(), Random(1), lambda text: None, **options)


async def test_burst_is_served_from_the_pool_and_accounted_for(place: Place) -> None:
    report = await run(place, Scenario("burst", Bursts(3, 2), 4))
    assert len(report.outcome.latencies) == 6
    assert (report.warm + report.cold, report.left_out) == (6, ())
    assert report.request_counts.requests["client", "create sandboxclaims"] == 6
    assert report.used.reconciles["sandboxclaim"] >= 6
    assert report.used.memory["everything"] > 0
    assert report.used.startups[0] == 6 and report.used.mean_startup is not None
    assert report.used.mean_startup > 0
    assert report.levels[0][1] == report.levels[-1][1] == 4
    assert min(level for _, level in report.levels) < 4
    for claim in report.outcome.claims:
        assert claim.seen is not None and claim.assigned is not None and claim.ready is not None
        assert claim.due <= claim.sent <= claim.seen <= claim.assigned <= claim.ready


async def test_server_calls_of_a_claim_lie_within_the_client_times(place: Place) -> None:
    report = await run(place, Scenario("burst", Bursts(1), 1))
    (claim,) = report.outcome.claims
    calls = report.calls[claim.name]
    assert [call.what for call in calls[:3]] == ["claim created", "sandbox adopted", "claim status written"]
    assert {call.writer for call in calls} <= {"client", "controllers"}
    assert claim.answered is not None and claim.ready is not None
    assert claim.sent - 0.001 <= calls[0].begin <= calls[0].end <= claim.answered + 0.001
    assert calls[1].end <= calls[2].begin + 0.001 and calls[2].begin <= claim.ready


async def test_burst_uses_warm_connections_that_are_not_counted(place: Place) -> None:
    report = await run(place, Scenario("burst", Bursts(3), 3))
    assert place.audit is not None
    assert sum(str(asked) == "get namespaces" for asked in place.audit.requests()) == 3
    assert ("client", "get namespaces") not in report.request_counts.requests


async def test_deleted_claims_and_their_sandboxes_are_counted(place: Place) -> None:
    report = await run(place, Scenario("burst", Bursts(3), 2, depart=True))
    assert report.departure is not None
    assert report.departure.request_counts.requests["client", "delete sandboxclaims"] == 3
    assert ("client", "delete sandboxclaims") not in report.request_counts.requests
    left = await place.client.list(SANDBOX, "bench-burst")
    assert len(left["items"]) == 2


async def test_fill_is_measured_per_sandbox(place: Place) -> None:
    report = await run(place, Scenario("fill", Bursts(0), 5))
    assert len(report.outcome.latencies) == 5
    assert max(report.outcome.latencies) <= report.filled
    assert (report.warm, report.cold) == (0, 0)
    assert [level for _, level in report.levels] == [0, 1, 2, 3, 4, 5]


async def test_rollout_ends_when_all_members_have_the_new_template(place: Place) -> None:
    report = await run(place, Scenario("rollout", Stream(20, 0.6), 3, rollout_after=0.2))
    assert report.rollout is not None
    first = min(claim.due for claim in report.outcome.claims)
    assert first < report.rollout.changed < report.rollout.finished
    assert len(report.outcome.latencies) == report.count > 0
    assert "the pool was full of the new template" in tables([report])


def test_claims_that_get_a_stale_sandbox_after_the_change_are_counted() -> None:
    def sandbox(*env: Object) -> Object:
        return {"spec": {"podTemplate": {"spec": {"containers": [{"env": list(env)}]}}}}

    sandboxes = {"old": sandbox(), "new": sandbox({"name": MARK, "value": NEW})}
    claims = [Claim("a", 1.0, sandbox="old"), Claim("b", 3.0, sandbox="new"), Claim("c", 3.0, sandbox="old")]
    claims += [Claim("d", 3.0, sandbox="gone"), Claim("e", 3.0)]
    assert stale(claims, sandboxes, 2.0) == 1


async def test_drained_pool_recovers_before_the_next_wave(place: Place) -> None:
    report = await run(place, Scenario("drain", Bursts(5, 2), 2, refill=True))
    assert len(report.outcome.latencies) == 10
    second = report.outcome.claims[5].due
    assert [level for at, level in report.levels if at <= second][-1] == 2
    assert min(level for _, level in report.levels) < 2


async def test_run_on_a_shared_cluster_cleans_up_and_reports_unknown_figures(place: Place) -> None:
    async with on_cluster(place.client) as cluster:
        report = await run(cluster, Scenario("burst", Bursts(2), 2), namespace="mine", image="pause")
    assert len(report.outcome.latencies) == 2
    assert report.left_out == (NO_REQUESTS, NO_USAGE)
    assert not report.request_counts.requests
    assert NO_REQUESTS in tables([report])
    assert "mine" not in await namespaces(place)


async def test_failed_run_cleans_up(place: Place) -> None:
    shared = replace(place, shared=True)

    def fails(text: str) -> None:
        if "making claims" in text:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        await measure(shared, Scenario("burst", Bursts(2), 1), SystemClock(), Random(1), fails, namespace="mine")
    assert "mine" not in await namespaces(place)


async def test_existing_namespace_is_kept(place: Place) -> None:
    await place.client.create(NAMESPACE, {"metadata": {"name": "theirs"}})
    with pytest.raises(AlreadyExists):
        await run(replace(place, shared=True), Scenario("burst", Bursts(1), 1), namespace="theirs")
    assert "theirs" in await namespaces(place)


async def namespaces(place: Place) -> set[str]:
    return {item["metadata"]["name"] for item in (await place.client.list(NAMESPACE))["items"]}


SPEC = {"containers": [{"name": "main", "image": "none"}], "nodeName": "elsewhere"}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}


async def test_image_that_no_node_can_pull_is_reported_at_once(place: Place, tmp_path: Path) -> None:
    """A pool with such an image would never be full."""
    await place.client.create(
        POD, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": SPEC}, "default"
    )
    container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    status = {"status": {"containerStatuses": [{**container, "state": waiting}]}}
    await place.client.patch(POD, "one", MergePatch(status), "default", subresource="status")
    clock = SystemClock()

    async def check(place: Place) -> str:
        ground = Ground(place.client, clock, "default", "none", print, remove=False)
        members = Members(place.client, clock, "default", "pool")
        run = claims._Run(place, Scenario("burst", Bursts(1), 1), clock, Random(1), print, ground, members)
        return await run._check_image()

    assert await check(replace(place, shared=True)) == (
        'the sandboxes cannot start (container "main": ImagePullBackOff: not found): '
        "name an image that the nodes can pull with --image"
    )
    assert await check(place) == "", "simulated nodes need no image"


def a_pod(**status: object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": SPEC, "status": status}


class PodList:
    """A client of a cluster whose pods stay as they are. It counts how often they are read."""

    def __init__(self, *pods: Object) -> None:
        self.pods = pods
        self.reads = 0

    async def list(self, *arguments: object) -> Object:
        self.reads += 1
        return {"items": list(self.pods)}


def checking(client: PodList, clock: ManualClock, said: list[str]) -> claims._Run:
    place = Place("cluster", client, None, str, NO_USAGE, shared=True)  # type: ignore[arg-type]  # is read only
    ground = Ground(place.client, clock, "default", "none", said.append, remove=False)
    members = Members(place.client, clock, "default", "pool")
    return claims._Run(place, Scenario("burst", Bursts(1), 1), clock, Random(1), said.append, ground, members)


async def test_image_that_cannot_be_pulled_is_reported_with_the_first_read() -> None:
    clock = ManualClock()
    waiting = {"reason": "ErrImagePull", "message": "no such host"}
    client = PodList(a_pod(containerStatuses=[{"name": "main", "state": {"waiting": waiting}}]))
    assert "the sandboxes cannot start" in await checking(client, clock, [])._check_image()
    assert (client.reads, clock.monotonic()) == (1, 0.0)


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ((), "no pod exists"),
        ((a_pod(),), "1 pod exists and does not say why"),
        ((a_pod(conditions=[UNSCHEDULABLE]),), "0/3 nodes are available: 3 Insufficient cpu."),
    ],
)
async def test_silence_of_the_nodes_is_told_within_10_seconds(pods: tuple[Object, ...], state: str) -> None:
    clock, said = ManualClock(), list[str]()
    task = asyncio.create_task(checking(PodList(*pods), clock, said)._check_image())
    await clock.advance(8.0)
    assert said == []
    await clock.advance(2.0)
    advice = "if the nodes cannot pull none, name another image with --image"
    assert said == [f"no sandbox is ready after 9 s ({state}); {advice}"]
    await clock.advance(60.0)
    assert await task == ""
    assert len(said) == 1
