"""``make bench-node``: measures a node with real sandboxes: time to ready, cost of warm pods, time to the first answer.

    make bench-node        # as root

API, controllers, node and measurement share one process. Sandboxes are real, of the built-in Python image, in a network
namespace without a route out. The controllers fill the pool as in ``sandpool up``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import uvloop

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import FREEZE_WHILE_WARM
from sandpool.api.resource import SharedObject
from sandpool.bench.figures import Figure, percentile, table
from sandpool.bench.subjects import starved_seconds
from sandpool.controllers.manager import ControllerManager
from sandpool.engine.clock import SystemClock
from sandpool.explain.audit import Audit, request_of_sandpool
from sandpool.node.cgroups.limits import Usage
from sandpool.node.pods.worker import PodWorker
from sandpool.server.serving.audit import AuditLog
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.real_node import IMAGE, RealNode, real_node

_TIMEOUT: Final = 240.0
_PORT: Final = 8888
_CONTAINER: Final = "runtime"
_PROBE: Final = {"readinessProbe": {"httpGet": {"path": "/", "port": _PORT}}}


async def cold(rig: RealNode, audit: Audit, rounds: int) -> list[Figure]:
    """Create pods one after the other. Measures from the create call until a watch shows the pod ready."""
    plain: list[float] = []
    probed: list[float] = []
    asked, starved, me = len(audit), starved_seconds(os.getpid()), os.getpid()
    for container, times in (({}, plain), (_PROBE, probed)):
        for _ in range(rounds):
            start = time.monotonic()
            name = await rig.create(container=container)
            await _watched(rig, name)
            times.append((time.monotonic() - start) * 1000)
            await rig.delete(name, grace_period_seconds=0)
            await rig.gone(name)
    reports = [
        each for each in audit.requests(since=asked) if each.agent == "node" and str(each) == "patch pods/status"
    ]
    writes, waited = len(reports) / (2 * rounds), (starved_seconds(me) - starved) / (2 * rounds)
    return [
        _latency("cold pod with network, create to Ready", plain, "p50 <= 150 ms", 150),
        _latency("the same, its server answering a readiness probe", probed),
        Figure("this process ready to run and without a processor, per cold pod", waited * 1000, "ms"),
        Figure("status writes per pod, its deletion included", writes, "", "<= 2 per start", 0 < writes <= 2),
    ]


async def warm(rig: RealNode, number: int, idle: float, *, frozen: bool) -> list[Figure]:
    """Fill a pool of ``number`` members with the controllers, then measure it idle for ``idle`` seconds."""
    async with _controllers(rig):
        start, busy, starved = time.monotonic(), time.process_time(), starved_seconds(os.getpid())
        await _make_pool(rig, number, frozen)
        seconds, busy = time.monotonic() - start, time.process_time() - busy
        starved = starved_seconds(os.getpid()) - starved
        workers = list(rig.node.agent.workers.values())
        if frozen:
            await until(lambda: _all_frozen(workers), within=_TIMEOUT)
        before, own, began = await _usage(workers), time.process_time(), time.monotonic()
        await asyncio.sleep(idle)
        after, own, watched = await _usage(workers), time.process_time() - own, time.monotonic() - began
        kind = "frozen" if frozen else "not frozen"
        memory = [each.memory_bytes / 1e6 for each in after]
        cpu = sum(b.cpu_nanoseconds - a.cpu_nanoseconds for a, b in zip(before, after, strict=True)) / 1e9 / watched
        middle = percentile(memory, 50)
        node = {"API, controllers and node": f"{own / watched:.1%} of a core"}
        figures = [
            Figure(
                f"memory of a warm sandbox, {kind}",
                middle,
                "MB",
                "<= 8 MB",
                middle <= 8,
                {"most": f"{max(memory):.1f}"},
            ),
            Figure(
                f"CPU of {number} warm sandboxes, {kind}",
                cpu * 100,
                "% of a core",
                "none that can be measured" if frozen else "",
                cpu < 1e-4 if frozen else None,
                node,
            ),
        ]
        if frozen:
            rate = number / seconds
            spent = sum(each.cpu_nanoseconds for each in before) / number / 1e6
            costs = {
                "CPU of each": f"{spent:.0f} ms",
                "of API, controllers and node for each": f"{busy / number * 1000:.0f} ms",
                "without a processor": f"{starved:.1f} of {seconds:.1f} s",
            }
            refill = Figure(f"refill: a pool of {number}", rate, "per second", ">= 20 per second", rate >= 20, costs)
            figures = [refill, *figures, *await _thawed(rig, workers)]
        await _remove_pool(rig)
        return figures


async def _thawed(rig: RealNode, workers: list[PodWorker]) -> list[Figure]:
    thaws, answers = [], []
    for worker in workers:
        start = time.monotonic()
        await worker.ensure_thawed()
        thaws.append((time.monotonic() - start) * 1000)
        connection = await rig.node.network.dial(worker.state.pod.uid, _PORT)
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(b"GET / HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        answers.append((time.monotonic() - start) * 1000)
        writer.close()
        await writer.wait_closed()
    return [
        _latency("thaw", thaws, "p50 < 2 ms", 2),
        _latency("thaw to the first answer over the pod's network", answers),
    ]


@asynccontextmanager
async def _controllers(rig: RealNode) -> AsyncIterator[None]:
    controllers = ControllerManager(rig.server.client(name="controllers"), SystemClock(), Random())
    await controllers.start()
    try:
        yield
    finally:
        await controllers.stop()


async def _make_pool(rig: RealNode, number: int, frozen: bool) -> None:
    container = {"name": _CONTAINER, "image": IMAGE, "ports": [{"containerPort": _PORT}]}
    limits = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
    metadata = {"annotations": {FREEZE_WHILE_WARM: "true"}} if frozen else {}
    # With a readiness probe, so that the server already runs in a frozen pod.
    template = {"metadata": metadata, "spec": {"containers": [{**container, **_PROBE, "resources": limits}]}}
    await rig.client.create(SANDBOX_TEMPLATE, new(SANDBOX_TEMPLATE, "t", spec={"podTemplate": template}), "default")
    spec = {"replicas": number, "sandboxTemplateRef": {"name": "t"}}
    await rig.client.create(SANDBOX_WARM_POOL, new(SANDBOX_WARM_POOL, "p", spec=spec), "default")

    async def full() -> bool:
        pool = await rig.client.get(SANDBOX_WARM_POOL, "p", "default")
        return bool((pool.get("status") or {}).get("readyReplicas") == number)

    await until(full, within=_TIMEOUT)


async def _remove_pool(rig: RealNode) -> None:
    await rig.client.delete(SANDBOX_WARM_POOL, "p", "default")
    await rig.client.delete(SANDBOX_TEMPLATE, "t", "default")

    async def none_left() -> bool:
        return not rig.node.agent.workers

    await until(none_left, within=_TIMEOUT)


async def _watched(rig: RealNode, name: str) -> SharedObject:
    async for event in rig.client.watch(POD, "default", field_selector=f"metadata.name={name}"):
        if is_ready(event.object):
            return event.object
    raise AssertionError("the watch ended")


async def _all_frozen(workers: list[PodWorker]) -> bool:
    return all(worker.state.frozen for worker in workers)


async def _usage(workers: list[PodWorker]) -> list[Usage]:
    containers = [worker.resources.running(_CONTAINER) for worker in workers]
    return [await each.usage() for each in containers if each is not None]


def _latency(name: str, taken: list[float], target: str = "", limit: float | None = None) -> Figure:
    middle = percentile(taken, 50)
    details = {"p99": f"{percentile(taken, 99):.1f} ms", "n": len(taken)}
    return Figure(name, middle, "ms", target, None if limit is None else middle <= limit, details)


async def run(rounds: int, number: int, idle: float = 10.0) -> list[Figure]:
    with TemporaryDirectory() as name:
        log = AuditLog(Path(name) / "audit.log")
        try:
            async with real_node(Path(name), audit=log) as rig:
                audit = Audit(log.path, request_of_sandpool, log.flush)
                figures = await cold(rig, audit, rounds)
                figures += await warm(rig, number, idle, frozen=True)
                figures += await warm(rig, number, idle, frozen=False)
                return figures
        finally:
            log.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-node", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="how many pods are started one by one")
    parser.add_argument("--number", type=int, default=40, help="how many sandboxes the pool has")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("sandboxes with limits and users of their own are made by root only")
    before = os.getloadavg()[0]
    figures = uvloop.run(run(options.rounds, options.number))
    sys.stdout.write(f"{table(figures)}\nload average {before:.1f} before, {os.getloadavg()[0]:.1f} after\n")


if __name__ == "__main__":
    main()
