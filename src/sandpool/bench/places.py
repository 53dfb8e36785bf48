"""Where a load is put: the embedded API with controllers and a node that runs nothing, in this process or another.

In this process (``in_process``) there is no network and no encoding between the load and the API, and the load's own
work counts as everybody else's. In another one (``over_http``) the load speaks HTTPS to ``sandpool up``, as users do;
on a machine with few cores the two compete for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sandpool.bench.accounting import CLIENT, CONTROLLERS, NODES
from sandpool.bench.subjects import cpu_seconds, starved_seconds
from sandpool.controllers.run import Controllers
from sandpool.engine.clock import Clock
from sandpool.engine.metrics_controller import RECONCILES
from sandpool.kube.client import Client
from sandpool.server import memory
from sandpool.server.app import ApiServer
from sandpool.server.audit import AuditLog
from sandpool.testing.audit import Asked, Audit, asked_of_sandpool
from sandpool.testing.component import ReservedPort
from sandpool.testing.endpoint import HttpDoor
from sandpool.testing.node import SimulatedNode
from sandpool.testing.server_process import ServerProcess

NAMES: Final = ("inprocess", "http")


@dataclass(frozen=True, slots=True)
class Place:
    """``client`` is the load's, ``reconciles`` counts by controller, ``cpu`` and ``starved`` are
    seconds on a processor, and without one although ready to run, by process."""

    name: str
    client: Client
    audit: Audit
    writer: Callable[[Asked], str]
    reconciles: Callable[[], Awaitable[dict[str, int]]]
    cpu: Callable[[], dict[str, float]]
    starved: Callable[[], dict[str, float]]


@contextlib.asynccontextmanager
async def place(name: str, directory: Path, clock: Clock, random: Random) -> AsyncIterator[Place]:
    """One of ``NAMES``, with its data in an empty directory."""
    opened = in_process(directory, clock, random) if name == "inprocess" else over_http(directory)
    async with opened as found:
        yield found


@contextlib.asynccontextmanager
async def in_process(directory: Path, clock: Clock, random: Random) -> AsyncIterator[Place]:
    log = AuditLog(directory / "audit.log")
    server = ApiServer(directory / "data", audit=log, clock=clock)
    await server.start()
    node = SimulatedNode(server.client(name=NODES), clock, brief=True)
    running = asyncio.create_task(node.run(), name="simulated node")
    controllers = Controllers(server.client(name=CONTROLLERS), clock, random)
    await controllers.start()
    memory.settle()

    async def reconciles() -> dict[str, int]:
        working = (controllers.claims, controllers.sandboxes, controllers.warm_pools)
        return {each.controller.name: each.controller.reconciles for each in working}

    try:
        yield Place(
            "inprocess",
            server.client(name=CLIENT),
            Audit(log.path, asked_of_sandpool, log.flush),
            lambda asked: asked.agent,
            reconciles,
            lambda: {"everything": time.process_time()},
            lambda: {"everything": starved_seconds(os.getpid())},
        )
    finally:
        await controllers.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
        log.close()


@contextlib.asynccontextmanager
async def over_http(directory: Path) -> AsyncIterator[Place]:
    log, port = directory / "audit.log", _free_port()
    options = ("--simulated-nodes", "1", "--audit-log", str(log), "--metrics-bind-address", f"127.0.0.1:{port}")
    process = ServerProcess("up", users={CLIENT: ("system:masters",)}, options=options, data_dir=directory / "data")
    async with process, aiohttp.ClientSession() as session:
        door = HttpDoor(process.url, process.ca, process.tokens)

        async def reconciles() -> dict[str, int]:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                return _reconciles(await answer.text())

        def cpu() -> dict[str, float]:
            return {"sandpool up": cpu_seconds(process.process.pid), "the load": time.process_time()}

        def starved() -> dict[str, float]:
            return {"sandpool up": starved_seconds(process.process.pid), "the load": starved_seconds(os.getpid())}

        try:
            audit = Audit(log, asked_of_sandpool)
            yield Place("http", door.client_for(CLIENT), audit, _writer, reconciles, cpu, starved)
        finally:
            await door.close()


def _free_port() -> int:
    reserved = ReservedPort()
    reserved.close()
    return reserved.number


def _writer(asked: Asked) -> str:
    if asked.user == CLIENT:
        return CLIENT
    return NODES if asked.agent.startswith("simulated") else CONTROLLERS


def _reconciles(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == RECONCILES.name:
                controller = sample.labels["controller"]
                counts[controller] = counts.get(controller, 0) + round(sample.value)
    return counts
