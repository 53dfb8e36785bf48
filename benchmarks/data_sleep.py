"""Measures late binding and sleep with the Python client, for ``make bench-data``, and prints seconds as JSON."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandpool import AsyncClient
from sandpool.api.conditions import POD_FROZEN, TRUE, condition_of
from sandpool.api.kinds import POD, SANDBOX
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.engine.clock import timestamp
from sandpool.kube.client import MergePatch
from sandpool.sdk.sandbox import AsyncSandbox

_IMAGE = "sandpool.local/python"
_PORT = 8888  # of sandboxd
_ENV = {"TASK": "42", "TOKEN": "canary"}
_PAUSE_SECONDS = 0.5


class Rig:
    """``took`` has the measured seconds by name."""

    def __init__(self, client: AsyncClient, router: str, count: int) -> None:
        self.client = client
        self.router = urlsplit(router)
        self.count = count
        self.took: dict[str, list[float]] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took.setdefault(name, []).append(time.perf_counter() - began)

    @asynccontextmanager
    async def pool(self, name: str, size: int, **template: Any) -> AsyncIterator[str]:
        await self.client.template(name, image=_IMAGE, port=_PORT, **template)
        pool = await self.client.pool(name, template=name, size=size)
        try:
            await pool.wait_ready(size, timeout=300)
            yield name
        finally:
            await pool.delete()
            await (await self.client.template(name)).delete()

    async def run(self, sandbox: AsyncSandbox) -> None:
        assert (await sandbox.run(["echo", "hello"])).stdout == "hello\n"

    async def request(self, sandbox: AsyncSandbox) -> None:
        """Ask the server in a sandbox through the router, over a connection of its own."""
        await asyncio.to_thread(self._get, sandbox._sandbox.name)

    def _get(self, name: str) -> None:
        connection = http.client.HTTPConnection(self.router.hostname or "", self.router.port, timeout=60)
        try:
            connection.request("GET", "/", headers={"X-Sandbox-ID": name})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        finally:
            connection.close()

    async def asleep(self, sandbox: AsyncSandbox) -> None:
        """Let a sandbox fall asleep as the node does, and wait until its pod is gone."""
        service, name = self.client.service, sandbox._sandbox.name
        marked = {
            "metadata": {"annotations": {ASLEEP_SINCE: timestamp(datetime.now(UTC))}},
            "spec": {"operatingMode": "Suspended"},
        }
        await service.client.patch(SANDBOX, name, MergePatch(marked), service.namespace)
        await service.sandboxes.wait(name, suspended=True, timeout=60)

    async def frozen(self, sandbox: AsyncSandbox) -> None:
        """Wait until the node reports that a sandbox is frozen."""
        service = self.client.service
        while True:
            pod = await service.client.get(POD, sandbox._sandbox.pod, service.namespace)
            condition = condition_of(pod, POD_FROZEN)
            if condition is not None and condition["status"] == TRUE:
                return
            await asyncio.sleep(_PAUSE_SECONDS)


async def bound(rig: Rig) -> None:
    """Claim warm sandboxes one after the other, alternately with and without variables."""
    async with rig.pool("bench-bound", 8, late_binding=True) as pool:
        for _ in range(rig.count):
            for name, env in (("without variables", None), ("with variables", _ENV)):
                await (await rig.client.pool(pool)).wait_ready(4, timeout=60)
                with rig.timed(name):
                    sandbox = await rig.client.sandbox(pool, env=env)
                assert sandbox.launch == "warm"
                await sandbox.release()


async def resumed(rig: Rig) -> None:
    """Use a sandbox that sleeps, by a command and by a request through the router."""
    ways = {"command": rig.run, "request": rig.request}
    async with rig.pool("bench-resumed", 1) as pool, rig.client.sandbox(pool) as sandbox:
        for _ in range(rig.count):
            for name, use in ways.items():
                await rig.asleep(sandbox)
                with rig.timed(name):
                    await use(sandbox)


async def thawed(rig: Rig) -> None:
    """Use frozen sandboxes, by a command and by a request through the router, and use them again at once."""
    ways: dict[str, Callable[[AsyncSandbox], Awaitable[None]]] = {"command": rig.run, "request": rig.request}
    async with rig.pool("bench-thawed", rig.count, freeze_after="1s") as pool:
        sandboxes = [await rig.client.sandbox(pool) for _ in range(rig.count)]
        for name, use in ways.items():
            for sandbox in sandboxes:
                await rig.frozen(sandbox)
            for sandbox in sandboxes:
                with rig.timed(name):
                    await use(sandbox)
                with rig.timed(f"{name}, awake"):
                    await use(sandbox)
        for sandbox in sandboxes:
            await sandbox.release()


JOBS = {job.__name__: job for job in (bound, resumed, thawed)}


async def measure(job: str, kubeconfig: Path, router: str, count: int) -> dict[str, list[float]]:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        rig = Rig(client, router, count)
        await JOBS[job](rig)
        return rig.took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--router", required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    found = asyncio.run(measure(given.job, given.kubeconfig, given.router, given.count))
    json.dump({"found": found, "load": os.getloadavg()[0]}, sys.stdout)


if __name__ == "__main__":
    main()
