"""The controller process: leader election, metrics, health and shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from random import Random

import aiohttp
import orjson
import pytest

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import LEASE, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.controllers.leader import ControllerProcess
from sandpool.controllers.middleware import log_reconciles
from sandpool.controllers.options import ProcessOptions
from sandpool.engine.clock import SystemClock
from sandpool.engine.jsonl import JsonlWriter
from sandpool.engine.leaderelection import LeaderElector, LeaseLost
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request
from sandpool.node.simulated import SimulatedNode
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import Fault, FaultyTransport, no_fault
from sandpool.testing.objects import new, pod_template
from sandpool.testing.quiescence import settle
from sandpool.testing.waiting import until
from tests.support.manual_time import pass_time


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


class Replica:
    """A process of several that contend, on a clock of the test's."""

    def __init__(self, name: str, server: ApiServer, clock: ManualClock) -> None:
        self.clock = clock
        self.wire = FaultyTransport(server.client(name=name).transport)
        self.voting = FaultyTransport(server.client(name=name).transport)
        election = LeaderElector(Client(self.voting), "lease", "default", name, clock, Random(1))
        self.process = ControllerProcess(self.wire, clock, Random(1), election=election)

    def works(self) -> bool:
        return self.process.working.is_set()

    def written(self) -> list[Request]:
        return [each for each in self.wire.requests if each.method != "GET" and "accessreviews" not in each.path]


async def create_template_pool_and_claim(server: ApiServer) -> None:
    client = server.client(name="users")
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await client.create(SANDBOX_TEMPLATE, template, "default")
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 2, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "default")
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")


async def another_wants_one(server: ApiServer) -> None:
    claim = new(SANDBOX_CLAIM, "another", spec={"warmPoolRef": {"name": "pool"}})
    await server.client().create(SANDBOX_CLAIM, claim, "default")


async def served(server: ApiServer, claim: str) -> bool:
    return is_ready(await server.client().get(SANDBOX_CLAIM, claim, "default"))


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settled(probe: Callable[[], bool], clock: ManualClock, wires: Iterable[FaultyTransport]) -> bool:
    """Poll the probe when all tasks wait: watch events arrive from outside the event loop."""
    await settle(clock, *wires)
    return probe()


async def holder(server: ApiServer) -> str:
    name: str = (await server.client().get(LEASE, "lease", "default"))["spec"]["holderIdentity"]
    return name


async def test_released_lease_is_acquired_within_two_seconds(server: ApiServer) -> None:
    clock = ManualClock()
    first, second = (Replica(name, server, clock) for name in ("first", "second"))
    wires = (first.wire, first.voting, second.wire, second.voting)
    node = asyncio.create_task(SimulatedNode(server.client(), clock).run())
    await first.process.start()
    await until(lambda: settled(first.works, clock, wires))
    await second.process.start()
    await pass_time(clock, 30, *wires)
    assert first.works()
    assert not second.works()
    assert second.written() == []
    lists = len(second.wire.requests)

    await create_template_pool_and_claim(server)
    stopping = asyncio.create_task(first.process.stop())
    await settle(clock, *wires)
    while not stopping.done():
        await pass_time(clock, 0.1, *wires)
    assert await holder(server) == ""
    assert not second.works()
    await pass_time(clock, 2.0, *wires)
    assert second.works()
    assert await holder(server) == "second"
    reads = [each for each in second.wire.requests[lists:] if each.method == "GET"]
    assert [each.path for each in reads if "limit" in each.query] == [], "it had seen everything while it waited"

    await another_wants_one(server)
    await until(lambda: served(server, "another"))
    assert {each.path.split("/")[-2] for each in second.written()} >= {"sandboxes", "another"}
    await second.process.stop()
    assert await holder(server) == ""
    await ended(node)


async def test_lost_lease_stops_the_process_at_once(server: ApiServer) -> None:
    clock = ManualClock()
    replica = Replica("only", server, clock)
    wires = (replica.wire, replica.voting)
    await replica.process.start()
    await until(lambda: settled(replica.works, clock, wires))
    await create_template_pool_and_claim(server)
    await until(lambda: settled(lambda: len(replica.written()) >= 4, clock, wires))
    replica.voting.fault = lambda request: Fault.CUT
    before = clock.monotonic()
    while replica.works() and clock.monotonic() < before + 60:
        await pass_time(clock, 0.5, *wires)
    assert 8 <= clock.monotonic() - before <= 10.5
    written = len(replica.written())
    await another_wants_one(server)
    with pytest.raises(LeaseLost, match="could not be renewed"):
        await replica.process.wait()
    await pass_time(clock, 60, *wires)
    assert len(replica.written()) == written
    await replica.process.stop()
    assert await holder(server) == "only", "not released: it was not ours any more"


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_process_serves_metrics_and_health(server: ApiServer) -> None:
    clock = SystemClock()
    process_options = ProcessOptions("127.0.0.1:0", "127.0.0.1:0")
    process = ControllerProcess(server.client().transport, clock, Random(1), process_options=process_options)
    node = asyncio.create_task(SimulatedNode(server.client(), clock).run())
    await process.start()
    await process.working.wait()
    await create_template_pool_and_claim(server)

    await until(lambda: served(server, "mine"))
    health, port = process.health_endpoint.port, process.metrics_endpoint.port
    assert await get(health, "/healthz") == (200, "ok")
    assert await get(health, "/readyz?verbose") == (200, "[+]api ok\n[+]caches ok\nreadyz check passed\n")
    status, text = await get(port, "/metrics")
    assert status == 200
    for line in (
        'controller_runtime_reconcile_total{controller="sandboxclaim",result="error"} 0.0',
        'controller_runtime_max_concurrent_reconciles{controller="sandbox"} 100.0',
        'workqueue_depth{controller="sandboxclaim",name="sandboxclaim",priority="0"} 0.0',
        'sandpool_reflector_seconds_since_news{resource="pods"} ',
        "sandpool_events_written_total ",
        "agent_sandbox_build_info{",
    ):
        assert line in text, line
    await process.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(port, "/metrics")
    await ended(node)


async def test_process_waits_for_missing_kinds(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    wire = FaultyTransport(server.client().transport)
    wire.fault = lambda request: NotFound("nothing here") if "sandboxclaims" in request.path else None
    process = ControllerProcess(wire, clock, Random(1), process_options=ProcessOptions(health_address="127.0.0.1:0"))
    with caplog.at_level(logging.WARNING):
        await process.start()
        await pass_time(clock, 120, wire)
    assert [record.message for record in caplog.records if record.name.startswith("sandpool.controllers")] == [
        "waiting: the API does not serve sandboxclaims.extensions.agents.x-k8s.io: `sandpool install` brings what is "
        "missing, and so does kubectl apply --server-side -f deploy/lean"
    ]
    assert (await get(process.health_endpoint.port, "/healthz"))[0] == 200
    assert (await get(process.health_endpoint.port, "/readyz"))[0] == 500
    assert not process.working.is_set()
    wire.fault = no_fault
    await pass_time(clock, 20, wire)
    await until(lambda: settled(process.working.is_set, clock, (wire,)))
    assert (await get(process.health_endpoint.port, "/readyz"))[0] == 200
    await process.stop()


async def test_address_in_use_leaves_nothing_running(server: ApiServer) -> None:
    clock = SystemClock()
    first = ControllerProcess(
        server.client().transport, clock, Random(1), process_options=ProcessOptions(health_address="127.0.0.1:0")
    )
    await first.start()
    taken = f"127.0.0.1:{first.health_endpoint.port}"
    second = ControllerProcess(
        server.client().transport, clock, Random(1), process_options=ProcessOptions("127.0.0.1:0", health_address=taken)
    )
    with pytest.raises(OSError, match="in use"):
        await second.start()
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(second.metrics_endpoint.port, "/metrics")
    await second.stop()
    await first.stop()


async def test_failure_of_an_informer_ends_the_process(server: ApiServer) -> None:
    process = ControllerProcess(server.client().transport, SystemClock(), Random(1))

    async def broken() -> None:
        raise LookupError("a bug")

    process.informers.run = broken  # type: ignore[method-assign]
    await process.start()
    with pytest.raises(LookupError, match="a bug"):
        await process.wait()
    await process.stop()


async def test_reconciles_are_logged_if_requested(server: ApiServer, tmp_path: Path) -> None:
    log = JsonlWriter(tmp_path / "passes.log")
    clock = SystemClock()
    process = ControllerProcess(
        server.client(name="controllers").transport, clock, Random(1), middleware=[log_reconciles(log, clock)]
    )
    node = asyncio.create_task(SimulatedNode(server.client(), clock).run())
    await process.start()
    await create_template_pool_and_claim(server)
    await until(lambda: served(server, "mine"))
    await process.stop()
    await ended(node)
    log.close()
    noted = [orjson.loads(line) for line in log.path.read_bytes().splitlines()]
    assert ("sandboxclaim", "mine") in {(each["pass"], each["name"]) for each in noted}
    assert {"sandbox", "sandboxtemplate", "sandboxwarmpool"} <= {each["pass"] for each in noted}
