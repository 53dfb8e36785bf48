"""Environments for a load: the embedded API with controllers and a simulated node.

In this process (``in_process``) there is no network and no encoding between load and API, and the load's own CPU time
counts too. Over HTTPS (``over_http``) the load talks to ``sandpool up`` in another process, as users do; on few cores
both compete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import aiohttp

from sandpool.api.metrics import CLAIM_CONTROLLER_STARTUP_LATENCY
from sandpool.bench.accounting import CLIENT, CONTROLLERS, NODES
from sandpool.bench.child_process import ReservedPort
from sandpool.bench.server_process import ServerProcess
from sandpool.bench.subjects import cpu_seconds, resident_bytes, starved_seconds
from sandpool.bench.usage import Usage, usage_in
from sandpool.controllers.manager import ControllerManager
from sandpool.engine.clock import Clock
from sandpool.explain.audit import Audit, AuditedRequest, request_of_sandpool
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import Fixed
from sandpool.kube.http import HttpTransport
from sandpool.kube.retry import Retry
from sandpool.node.simulated import SimulatedNode
from sandpool.server.api_server import ApiServer
from sandpool.server.serving import gc_tuning
from sandpool.server.serving.audit import AuditLog

NAMES: Final = ("inprocess", "http")
# More than any scenario creates: a minute of sustained load has 90,000 claims.
_MAX_PODS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """An API under load. ``writer`` names the writer of an audited request, ``usage`` returns the resources used so
    far.

    ``left_out`` lists what is unknown here, and why. A run in a ``shared`` environment is cleaned up afterwards."""

    name: str
    client: Client
    audit: Audit | None
    writer: Callable[[AuditedRequest], str]
    usage: Callable[[], Awaitable[Usage]]
    left_out: tuple[str, ...] = ()
    shared: bool = False
    nodes: str = "simulated"  # what runs the pods


@contextlib.asynccontextmanager
async def place(name: str, directory: Path, clock: Clock, rng: Random) -> AsyncIterator[Place]:
    """Open the environment called ``name``, with its data in an empty directory."""
    opened = in_process(directory, clock, rng) if name == "inprocess" else over_http(directory)
    async with opened as found:
        yield found


@contextlib.asynccontextmanager
async def in_process(directory: Path, clock: Clock, rng: Random) -> AsyncIterator[Place]:
    log = AuditLog(directory / "audit.log")
    server = ApiServer(directory / "data", audit=log, clock=clock)
    await server.start()
    node = SimulatedNode(server.client(name=NODES), clock, brief=True)
    running = asyncio.create_task(node.run(), name="simulated node")
    controllers = ControllerManager(server.client(name=CONTROLLERS), clock, rng)
    await controllers.start()
    gc_tuning.settle()

    async def usage() -> Usage:
        working = (controllers.claims, controllers.sandboxes, controllers.warm_pools)
        me, name = os.getpid(), "everything"
        startups = controllers.metrics.histogram(CLAIM_CONTROLLER_STARTUP_LATENCY).copy().series
        return Usage(
            {each.controller.name: each.controller.reconciles for each in working},
            {name: time.process_time()},
            {name: starved_seconds(me)},
            {name: resident_bytes(me)},
            (float(sum(sum(counts) for _, counts, _ in startups)), sum(total for _, _, total in startups)),
        )

    try:
        yield Place(
            "inprocess",
            server.client(name=CLIENT),
            Audit(log.path, request_of_sandpool, log.flush),
            lambda asked: asked.agent,
            usage,
        )
    finally:
        await controllers.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
        log.close()


@contextlib.asynccontextmanager
async def over_http(directory: Path) -> AsyncIterator[Place]:
    log, port = directory / "audit.log", free_port()
    node = ("--simulated-nodes", "1", "--max-pods", str(_MAX_PODS))
    options = (*node, "--audit-log", str(log), "--metrics-bind-address", f"127.0.0.1:{port}")
    process = ServerProcess("up", users={CLIENT: ("system:masters",)}, options=options, data_dir=directory / "data")
    async with process, aiohttp.ClientSession() as session:
        tls = ssl.create_default_context(cadata=process.ca)
        connection = Connection(process.url, tls, Fixed.token(process.tokens[CLIENT]))
        # The load measures the first answer, also where a client would retry.
        client = Client(HttpTransport(connection, retry=Retry(attempts=1)))

        async def usage() -> Usage:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                used = usage_in(await answer.text(), "sandpool up")
            up, me = process.process.pid, os.getpid()
            return Usage(
                used.reconciles,
                {"sandpool up": cpu_seconds(up), "the load": time.process_time()},
                {"sandpool up": starved_seconds(up), "the load": starved_seconds(me)},
                {"sandpool up": resident_bytes(up), "the load": resident_bytes(me)},
                used.startups,
            )

        try:
            audit = Audit(log, request_of_sandpool)
            yield Place("http", client, audit, _writer, usage)
        finally:
            await client.close()


def free_port() -> int:
    reserved = ReservedPort()
    reserved.close()
    return reserved.number


def _writer(asked: AuditedRequest) -> str:
    if asked.user == CLIENT:
        return CLIENT
    return NODES if asked.agent.startswith("simulated") else CONTROLLERS
