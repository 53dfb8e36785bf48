"""Conflicts, caches and work queues. R30 to R40 of docs/guarantees.md."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.metrics import (
    CLAIM_CONTROLLER_STARTUP_LATENCY,
    CLAIM_CREATIONS,
    CLAIM_STARTUP_LATENCY,
    CLIENT_CLAIM_STARTUP_LATENCY,
    CREATION_LATENCY,
    Metric,
)
from sandpool.controllers.manager import ControllerManager
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.connection import Connection
from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.kube.http import HttpTransport
from sandpool.kube.transport import Request
from sandpool.testing.backend import Backend
from sandpool.testing.faulty_transport import Fault
from sandpool.testing.waiting import Listener
from sandpool.testing.world import World
from tests.support.backends import reaches_kinds_in_memory
from tests.support.intercepting_transport import Interceptor, nothing
from tests.support.object_queries import is_adoption, is_creation, is_warm

WRITES = ("POST", "PATCH", "DELETE")


def failures(world: World) -> int:
    controllers = world.controllers
    return (
        controllers.claims.controller.failures
        + controllers.sandboxes.controller.failures
        + controllers.warm_pools.controller.failures
    )


def observations(controllers: ControllerManager, metric: Metric) -> int:
    """How many values a histogram has been told."""
    return sum(sum(counts) for _, counts, _ in controllers.metrics.histogram(metric).copy().series)


async def test_r30_concurrent_label_writes_cause_no_backoff(world: World) -> None:
    """Another client labels every sandbox and every claim just before each status is written."""
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    touched = 0

    async def label(request: Request) -> None:
        nonlocal touched
        if request.method == "PATCH" and request.path.endswith("/status") and "/sandboxwarmpools/" not in request.path:
            touched += 1
            type = SANDBOX if "/sandboxes/" in request.path else SANDBOX_CLAIM
            name = request.path.split("/")[-2]
            if type is SANDBOX or touched % 2:  # or else no claim's status would ever be written
                body = {"metadata": {"labels": {"example.com/touched": str(touched)}}}
                await world.client.patch(type, name, MergePatch(body), world.namespace)

    interceptor.before = label
    await world.pool(3)
    before = world.clock.monotonic()
    for number in range(3):
        await world.claim(f"claim-{number}")
    await world.served(3)
    await world.filled(3)

    assert touched >= 9
    assert failures(world) == 0
    assert world.clock.monotonic() == before, "no time passed"


async def test_r31_stale_cache_is_no_failure(world: World) -> None:
    """The answer to creating a cold sandbox is lost, so the next attempt meets what exists already."""
    await world.template()
    await world.pool(0, filled=False)
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if is_creation(request) and not lost:
            lost.append(request)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.claim("cold")
    await world.wait(1)
    served = await world.served(1)

    assert len(lost) == 1
    assert failures(world) == 1, "the lost answer itself, and nothing that followed from it"
    assert not is_warm(served["cold"])
    assert len(await world.all(SANDBOX)) == 1


async def test_r32_no_step_of_a_claim_waits_for_a_timer(world: World) -> None:
    """Warm, waiting for a member on its way, or cold: with all delays of the world gone, none is left."""
    await world.template()
    await world.pool(2)
    before = world.clock.monotonic()
    for number in range(5):
        await world.claim(f"warm-{number}")
    await world.pool(0, name="empty", filled=False)
    await world.claim("cold", warmPoolRef={"name": "empty"})
    served = await world.served(6)

    assert not is_warm(served["cold"])
    assert world.clock.monotonic() == before


async def test_r33_churn_of_a_pool_enqueues_no_claim(world: World) -> None:
    await world.template()
    await world.pool(4)
    for number in range(4):
        await world.claim(f"claim-{number}")
    await world.served(4)
    await world.filled(4)
    await world.wait(1)
    claims = world.controllers.claims.controller
    assert claims.reconciles <= 2 * 4
    before = claims.reconciles
    for number in range(10):
        await world.patch(SANDBOX_WARM_POOL, "pool", {"status": {"replicas": 100 + number}}, "status")
        await world.patch(SANDBOX_WARM_POOL, "pool", {"metadata": {"labels": {"example.com/n": str(number)}}})
    for member in await world.members():
        await world.delete(SANDBOX, member["metadata"]["name"])
    await world.filled(4)

    assert claims.reconciles == before


async def test_r34_reconcile_lists_nothing(world: World) -> None:
    """tests/budgets/test_scale.py measures the cost of a reconcile with 1,000 and 100,000 objects."""
    await world.template()
    await world.pool(3)
    since = len(world.wire.requests)
    for number in range(3):
        await world.claim(f"claim-{number}")
    await world.served(3)
    await world.filled(3)

    assert [each.path for each in world.wire.requests[since:] if each.method == "GET"] == []


async def test_r35_watch_is_not_starved_by_hanging_writes() -> None:
    """Every connection that requests may use is taken by a write the server does not answer."""
    written, over = asyncio.Semaphore(0), asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "PATCH":
            written.release()
            await over.wait()
            return web.json_response({})
        response = web.StreamResponse()
        await response.prepare(request)
        event = {"type": "ADDED", "object": {"metadata": {"name": "late"}}}
        await response.write(orjson.dumps(event) + b"\n")
        await over.wait()
        return response

    server = RawTestServer(serve)
    await server.start_server()
    transport = HttpTransport(Connection(f"http://{server.host}:{server.port}"), max_connections=4)
    client = Client(transport)
    writers = [asyncio.create_task(client.patch(POD, "a", MergePatch({}), "ns")) for _ in range(10)]
    for _ in range(4):
        await written.acquire()
    async with asyncio.timeout(5), Listener(client.watch(POD, "ns")) as watch:
        assert (await watch.next()).object["metadata"]["name"] == "late"
    assert not any(writer.done() for writer in writers)
    over.set()
    await asyncio.gather(*writers)
    await transport.close()
    await server.close()


async def test_r38_fifteen_minutes_without_writes_cause_no_request_storm(world: World) -> None:
    await world.template()
    await world.pool(3)
    world.wire.fault = lambda request: (
        ServiceUnavailable("etcdserver: mvcc: database space exceeded") if request.method in WRITES else None
    )
    since = len(world.wire.requests)
    for number in range(3):
        await world.claim(f"claim-{number}")
    await world.delete(POD, (await world.members())[0]["metadata"]["name"])
    await world.wait(900)
    during = [each for each in world.wire.requests[since:] if each.method in WRITES and "/events" not in each.path]
    assert not any(map(is_ready, await world.all(SANDBOX_CLAIM)))
    # Back-off doubles from milliseconds to minutes: some twenty attempts for each object that has something to write.
    assert len(during) <= 20 * 8
    world.wire.heal()
    healed = len(world.wire.requests)
    await world.wait(900)
    served = await world.served(3)
    await world.filled(3)

    assert len({box["metadata"]["uid"] for box in served.values()}) == 3
    assert len(world.writes(healed)) <= 60, "what was left to do, and no more"


async def test_r39_late_write_to_a_deleted_object_does_not_enqueue_again(world: World) -> None:
    """The claim, its sandbox, or the pod goes just before its status is written."""
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(2)
    gone: list[str] = []

    async def delete_first(request: Request) -> None:
        if request.path.endswith("/sandboxclaims/short/status"):
            gone.append(request.path)
            await world.client.delete(SANDBOX_CLAIM, "short", world.namespace)

    interceptor.before = delete_first
    await world.claim("short")
    await world.wait(60)
    interceptor.before = nothing

    assert len(gone) == 1
    assert failures(world) == 0
    assert world.controllers.claims.controller.reconciles <= 3

    async def only_members() -> bool:
        return len(await world.all(SANDBOX)) == 2

    await world.until(only_members)
    await world.filled(2)


@pytest.mark.parametrize("restarts", [False, True], ids=["one controller", "restarted each time"])
async def test_r40_flapping_claim_is_recorded_once(world: World, restarts: bool) -> None:
    await world.template()
    await world.wait(60)  # lest the API's clock be ahead of ours, and what was ready before it was made is not measured
    await world.pool(2)
    asked = {"agents.x-k8s.io/client-first-requested-at": "2026-11-01T12:00:00Z"}
    admitted = {"agents.x-k8s.io/webhook-first-observed-at": "2026-11-01T12:00:00Z"}
    all_controllers = [world.controllers]
    for number in range(2):
        await world.claim(f"claim-{number}", metadata={"annotations": {**asked, **admitted}})
    served = await world.served(2)
    for _ in range(4):
        for box in served.values():
            await set_ready(world, box["metadata"]["name"], "False")
        assert not any(map(is_ready, await world.all(SANDBOX_CLAIM)))
        if restarts:
            await world.restart()
            all_controllers.append(world.controllers)
        for box in served.values():
            await set_ready(world, box["metadata"]["name"], "True")
        await world.served(2)
        await world.wait(5)  # reconciles of a key that changes too often are limited

    for metric in (
        CLAIM_STARTUP_LATENCY,
        CLAIM_CONTROLLER_STARTUP_LATENCY,
        CLIENT_CLAIM_STARTUP_LATENCY,
        CREATION_LATENCY,
    ):
        assert sum(observations(each, metric) for each in all_controllers) == 2, metric.name
    counted = [sample for each in all_controllers for sample in each.metrics.counter(CLAIM_CREATIONS).copy().samples]
    assert sum(count for _, count in counted) == 2


async def set_ready(world: World, pod: str, status: str) -> None:
    """The kubelet says that a pod is ready, or is no longer."""
    conditions = (await world.get(POD, pod))["status"]["conditions"]
    changed = [{**each, "status": status} if each["type"] == "Ready" else each for each in conditions]
    await world.patch(POD, pod, {"status": {"conditions": changed}}, "status")


async def test_r40_lost_status_response_is_recorded_once(world: World, backend: Backend) -> None:
    """The responses to the status and to the annotations are lost: both are written again, and the metrics count
    once."""
    await world.template()
    await world.pool(1)
    lost: list[str] = []

    def lose(request: Request) -> Fault | None:
        if request.method == "PATCH" and "/sandboxclaims/" in request.path and len(lost) < 4:
            lost.append(request.path)
            return Fault.LOSE
        return None

    world.wire.fault = lose
    await world.claim("mine")
    await world.wait(10)
    await world.served(1)

    assert len(lost) == (1 if reaches_kinds_in_memory(backend) else 4)
    assert observations(world.controllers, CLAIM_CONTROLLER_STARTUP_LATENCY) <= 1
    assert sum(count for _, count in world.controllers.metrics.counter(CLAIM_CREATIONS).copy().samples) == 1
    assert len([each for each in world.wire.requests if is_adoption(each)]) == 1


async def test_r39_pod_deleted_before_its_metadata_are_written_is_created_again(world: World) -> None:
    interceptor = Interceptor.behind(world.wire)
    await world.template()
    await world.pool(1)
    gone: list[str] = []

    async def delete_first(request: Request) -> None:
        if request.method == "PATCH" and "/pods/" in request.path and not gone:
            gone.append(request.path.rsplit("/", 1)[-1])
            try:
                await world.client.delete(POD, gone[-1], world.namespace, grace_period_seconds=0)
            except NotFound:  # pragma: no cover - already deleted
                pytest.fail("the pod was there a moment ago")

    interceptor.before = delete_first
    await world.claim("mine")
    await world.wait(10)
    served = await world.served(1)

    assert gone == [served["mine"]["metadata"]["name"]]
    assert is_ready(served["mine"])
