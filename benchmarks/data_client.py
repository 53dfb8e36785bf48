"""The client of ``make bench-data``: sends requests and creates claims as fast as a plain program can.

``python -m benchmarks.data_client JOB`` runs in the network namespace of ``sandpool up`` and prints its measurements as
JSON. It is a separate process, so that the CPU time of the client is not charged to the router.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import uvloop

from benchmarks.data_exec import executions
from sandpool.api.conditions import condition_of
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.bench.subjects import cpu_seconds, starved_seconds
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load

_ENDED = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one run. ``headers`` are sent with every request."""

    kind: str  # requests, download, claims or executions
    host: str
    port: int
    path: str = "/"
    headers: dict[str, str] = field(default_factory=dict)
    count: int = 1
    at_once: int = 1
    kubeconfig: str = ""
    pool: str = ""
    processes: list[int] = field(default_factory=list)  # of ``sandpool up``, measured while claims are created

    @property
    def request(self) -> bytes:
        lines = [f"GET {self.path} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def arguments(self) -> list[str]:
        return ["-m", __name__ if __name__ != "__main__" else "benchmarks.data_client", json.dumps(asdict(self))]


class _Asking(asyncio.Protocol):
    """One connection that repeats the same request."""

    def __init__(self, job: Job, latencies: list[float]) -> None:
        self.job = job
        self.latencies = latencies
        self.done = asyncio.get_running_loop().create_future()
        self._request = job.request
        self._answer = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(_ENDED)
        if not found or len(body) < _length(head):
            return
        assert head.startswith(b"HTTP/1.1 200"), head
        self.latencies.append(time.perf_counter() - self._began)
        self._answer = b""
        if len(self.latencies) + self.job.at_once > self.job.count:
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)


async def requests(job: Job) -> dict[str, Any]:
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [
        (await loop.create_connection(lambda: _Asking(job, latencies), job.host, job.port))[1]
        for _ in range(job.at_once)
    ]
    await asyncio.gather(*(each.done for each in made))
    return {"latencies": latencies, "seconds": time.perf_counter() - began}


def download(job: Job) -> dict[str, Any]:
    """Read one response completely and discard it."""
    buffer = bytearray(1 << 20)
    with socket.create_connection((job.host, job.port)) as sock:
        began = time.perf_counter()
        sock.sendall(job.request)
        head = b""
        while _ENDED not in head:
            head += sock.recv(1 << 16)
        head, _, rest = head.partition(_ENDED)
        assert head.startswith(b"HTTP/1.1 200"), head
        size = left = _length(head)
        left -= len(rest)
        while left:
            left -= sock.recv_into(buffer, min(left, len(buffer)))
        return {"bytes": size, "seconds": time.perf_counter() - began}


def _used(job: Job) -> float:
    return sum(map(cpu_seconds, job.processes))


def _starved(job: Job) -> float:
    return sum(map(starved_seconds, job.processes))


async def claims(job: Job) -> dict[str, Any]:
    """Create claims concurrently. Measures the time of each until the result of its first command, and the CPU time of
    client and server until all have finished."""
    client = Client(HttpTransport(load(Path(job.kubeconfig))))
    began: dict[str, float] = {}
    took: list[float] = []
    version = (await client.list(SANDBOX_CLAIM, "default"))["metadata"]["resourceVersion"]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://{job.host}:{job.port}", connector=connector) as session:

        async def use(name: str, sandbox: str) -> None:
            headers = {"X-Sandbox-ID": sandbox}
            async with session.post("/execute", json={"command": "echo hello"}, headers=headers) as answer:
                assert (await answer.json())["stdout"] == "hello\n"
            took.append(time.perf_counter() - began[name])

        async def make(name: str) -> None:
            began[name] = time.perf_counter()
            body = {
                "apiVersion": SANDBOX_CLAIM.api_version,
                "kind": SANDBOX_CLAIM.kind,
                "metadata": {"name": name},
                "spec": {"warmPoolRef": {"name": job.pool}},
            }
            await client.create(SANDBOX_CLAIM, body, "default")

        own, used, starved = time.process_time(), _used(job), _starved(job)
        names = {f"lean-{number}" for number in range(job.count)}
        using: list[asyncio.Task[None]] = []
        making = [asyncio.create_task(make(name)) for name in names]
        async for event in client.watch(SANDBOX_CLAIM, "default", resource_version=version):
            name = event.object["metadata"].get("name")
            ready = condition_of(event.object, "Ready")
            if name in names and ready is not None and ready["status"] == "True":
                names.discard(name)
                using.append(asyncio.create_task(use(name, event.object["status"]["sandbox"]["name"])))
            if not names:
                break
        await asyncio.gather(*making, *using)
        own = time.process_time() - own
        used, starved = _used(job) - used, _starved(job) - starved
    await asyncio.gather(*(client.delete(SANDBOX_CLAIM, name, "default") for name in began))
    await client.close()
    return {"latencies": took, "own": own, "used": used, "starved": starved}


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise AssertionError(f"an answer without a length: {head!r}")


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        match job.kind:
            case "requests":
                found = runner.run(requests(job))
            case "claims":
                found = runner.run(claims(job))
            case "executions":
                found = {"latencies": runner.run(executions(Path(job.kubeconfig), job.path, job.count))}
            case _:
                found = download(job)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
