"""``make bench-api``: measures the embedded API server, and kube-apiserver with etcd where their binaries are built.

Each figure is measured in a separate process or server, one after the other. Figures that are compared come from one
run on one machine with one client, and are given as ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from benchmarks.steps import patch_steps
from benchmarks.stored_figures import save
from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, SANDBOX
from sandpool.bench.figures import Figure, percentile, table
from sandpool.bench.server_process import ServerProcess
from sandpool.bench.subjects import client_of, cpu_seconds, definitions, resident_bytes, sandbox, starved_seconds
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.connection import Connection
from sandpool.kube.errors import AlreadyExists, ApiError
from sandpool.kube.kubeconfig import load
from sandpool.server.api_server import ApiServer
from sandpool.server.serving import gc_tuning

NAMESPACE_NAME = "bench"
_NUMBERS = itertools.count()  # names are never used twice


def say(text: str) -> None:
    sys.stderr.write(f"bench-api: {text}\n")
    sys.stderr.flush()


async def prepare(client: Client, *, install: bool = False) -> None:
    """Create a namespace and, on a server that lacks them, the kinds."""
    if install:
        for definition in definitions():
            with contextlib.suppress(AlreadyExists):
                await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
    await client.create(NAMESPACE, {"metadata": {"name": NAMESPACE_NAME}})
    for _ in range(600):  # a CRD is served a moment after it was accepted
        try:
            await client.list(SANDBOX, NAMESPACE_NAME)
            return
        except ApiError:
            await asyncio.sleep(0.1)
    raise RuntimeError("sandboxes are not served")


async def fill(client: Client, count: int, prefix: str = "fill", workers: int = 128) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await client.create(SANDBOX, sandbox(f"{prefix}-{number}"), NAMESPACE_NAME)

    await asyncio.gather(*(work() for _ in range(workers)))


async def create_and_patch(client: Client, connections: int, seconds: float) -> tuple[float, list[float]]:
    """Create a Sandbox and patch one annotation of it, repeatedly. Returns writes per second and latencies."""
    latencies: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds

    async def work() -> None:
        while clock() < end:
            name = f"load-{next(_NUMBERS)}"
            started = clock()
            await client.create(SANDBOX, sandbox(name), NAMESPACE_NAME)
            between = clock()
            await client.patch(
                SANDBOX, name, MergePatch({"metadata": {"annotations": {"bench": "patched"}}}), NAMESPACE_NAME
            )
            latencies.append(between - started)
            latencies.append(clock() - between)

    started = clock()
    await asyncio.gather(*(work() for _ in range(connections)))
    return len(latencies) / (clock() - started), latencies


async def http_throughput(seconds: float) -> list[Figure]:
    say("create and patch over HTTP, 64 connections")
    with ServerProcess() as server:
        async with client_of(server.kubeconfig) as client:
            await prepare(client)
            await create_and_patch(client, 64, 2)
            busy = cpu_seconds(server.process.pid)
            ours, latencies = await create_and_patch(client, 64, seconds)
            busy = cpu_seconds(server.process.pid) - busy
    details = {
        "p50": f"{percentile(latencies, 50) * 1e3:.1f} ms",
        "p99": f"{percentile(latencies, 99) * 1e3:.1f} ms",
        "server CPU": f"{busy / len(latencies) * 1e6:.0f} µs/write",
    }
    figures = [Figure("create+patch over HTTPS, 64 connections, durable", ours, "writes/s", details=details)]
    theirs = await kube_throughput(seconds)
    if theirs is not None:
        ratio = ours / theirs.value
        figures.append(theirs)
        figures.append(Figure("the same, ours to theirs", ratio, "x", ">= 5 x", ratio >= 5))
    return figures


async def kube_throughput(seconds: float) -> Figure | None:
    from tests.support.assets import MissingAssets
    from tests.support.control_plane import ControlPlane

    try:
        plane = ControlPlane(controller_manager=False)
    except MissingAssets as missing:
        say(f"no comparison with kube-apiserver: {missing}")
        return None
    say("the same on kube-apiserver + etcd")
    async with plane:
        kubeconfig = plane.write_kubeconfig(plane.directory / "bench.kubeconfig")
        async with client_of(kubeconfig) as client:
            await prepare(client, install=True)
            await create_and_patch(client, 64, 3)
            rate, latencies = await create_and_patch(client, 64, seconds)
    details = {
        "p50": f"{percentile(latencies, 50) * 1e3:.0f} ms",
        "p99": f"{percentile(latencies, 99) * 1e3:.0f} ms",
    }
    return Figure("the same on kube-apiserver + etcd", rate, "writes/s", details=details)


@contextlib.asynccontextmanager
async def in_process(directory: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    server = ApiServer(directory)
    await server.start()
    gc_tuning.settle()
    try:
        client = server.client()
        await prepare(client)
        yield server, client
    finally:
        await server.stop()


async def patch_rate(client: Client, names: list[str], rounds: int) -> tuple[float, float]:
    """Patch all objects concurrently, each ``rounds`` times. Returns patches per second and CPU seconds per patch."""

    async def work(name: str) -> None:
        for number in range(rounds):
            patch = MergePatch({"metadata": {"annotations": {"bench": str(number)}}})
            await client.patch(SANDBOX, name, patch, NAMESPACE_NAME)

    started, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(name) for name in names))
    count = len(names) * rounds
    return count / (time.perf_counter() - started), (time.process_time() - busy) / count


async def in_process_patch(directory: Path) -> list[Figure]:
    say("patches in-process, 256 at once")
    async with in_process(directory / "in-process") as (server, client):
        await fill(client, 256)
        names = [f"fill-{number}" for number in range(256)]
        await patch_rate(client, names, 5)
        runs = [await patch_rate(client, names, 40) for _ in range(5)]
        steps = await patch_steps(server, client, NAMESPACE_NAME, names[0])
    rate, cpu = max(runs)
    details = {"CPU": f"{cpu * 1e6:.0f} µs/patch", "runs": "/".join(f"{run[0]:,.0f}" for run in runs)}
    figure = Figure("patch in-process, durable, 256 at once", rate, "patches/s", ">= 10,000/s", rate >= 10_000, details)
    return [figure, *steps]


async def follow(connection: Connection, path: str, arrived: asyncio.Queue[float]) -> None:
    """Read a watch as bytes, so that the figure is that of the server and not of decoding a hundred streams here."""
    url = urlsplit(connection.server)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=connection.tls)
    authorization = (await connection.credentials.auth()).authorization
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: {authorization}\r\n\r\n".encode())
    try:
        while data := await reader.read(1 << 16):
            for _ in range(data.count(b"}\n\r\n")):
                arrived.put_nowait(time.perf_counter())
    finally:
        writer.close()


async def fan_out(watches: int = 100, events: int = 300) -> list[Figure]:
    say(f"one event to {watches} watches")
    latencies: list[tuple[float, float]] = []  # including the time in which the server waited for a CPU
    with ServerProcess() as server:
        pid = server.process.pid
        async with client_of(server.kubeconfig) as client:
            await prepare(client)
            await fill(client, 1)
            version = (await client.list(SANDBOX, NAMESPACE_NAME))["metadata"]["resourceVersion"]
            arrived: asyncio.Queue[float] = asyncio.Queue()
            path = f"{SANDBOX.path(NAMESPACE_NAME)}?watch=true&resourceVersion={version}"
            connection = load(server.kubeconfig)
            followers = [asyncio.create_task(follow(connection, path, arrived)) for _ in range(watches)]
            for number in range(events + 20):
                starved, started = starved_seconds(pid), time.perf_counter()
                patch = MergePatch({"metadata": {"annotations": {"bench": str(number)}}})
                write = asyncio.create_task(client.patch(SANDBOX, "fill-0", patch, NAMESPACE_NAME))
                last = max([await arrived.get() for _ in range(watches)])
                await write
                if number >= 20:  # the first ones also open the watches
                    latencies.append((last - started, starved_seconds(pid) - starved))
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
    p99 = percentile([latency for latency, _ in latencies], 99) * 1e3
    slowest = sorted(latencies)[-max(events // 100, 1) :]
    took, starved = (sum(each) / len(slowest) * 1e3 for each in zip(*slowest, strict=True))
    details = {
        "p50": f"{percentile([latency for latency, _ in latencies], 50) * 1e3:.1f} ms",
        "slowest 1 %": f"{took:.0f} ms, in {starved:.0f} of which the server had no processor",
        "from": "sending the patch to the last watch",
    }
    return [Figure(f"fan-out of one event to {watches} watches, p99", p99, "ms", "<= 20 ms", p99 <= 20, details)]


async def at_scale(directory: Path, count: int) -> list[Figure]:
    """Measure the cost of a write with few and with many objects, the memory, and a restart with all of them."""
    say(f"{count:,} objects: cost of a write")
    data = directory / "scale"
    async with in_process(data) as (server, client):
        await fill(client, 1000)
        names = [f"fill-{number}" for number in range(256)]
        await patch_rate(client, names, 5)
        few = min([(await patch_rate(client, names, 20))[1] for _ in range(5)])
        await fill(client, count - 1000, prefix="more")
        gc.collect()
        many = min([(await patch_rate(client, names, 20))[1] for _ in range(5)])
        encoded = sum(len(entry.encoded) for entry in server.store.scan(SANDBOX.group_resource))
    ratio = many / few
    say(f"{count:,} objects: start and memory")
    with ServerProcess() as fresh:
        empty = resident_bytes(fresh.process.pid)
    with ServerProcess(data_dir=data) as filled:
        full, seconds = resident_bytes(filled.process.pid), filled.seconds
    each = (full - empty - encoded) / count / 1024
    return [
        Figure(
            f"memory per Sandbox at {count:,}, beyond its encoded size",
            each,
            "KiB",
            "<= 8 KiB",
            each <= 8,
            {"encoded size": f"{encoded / count / 1024:.1f} KiB", "whole server": f"{full / 2**20:,.0f} MiB"},
        ),
        Figure(
            f"cost of a write at {count:,} objects, to that at 1,000",
            ratio,
            "x",
            "<= 1.5 x",
            ratio <= 1.5,
            {"CPU": f"{few * 1e6:.0f} and {many * 1e6:.0f} µs"},
        ),
        Figure(f"start to serving, {count:,} objects", seconds, "s"),
    ]


async def start_up() -> list[Figure]:
    say("start to serving, empty data directory")
    times = []
    for _ in range(5):
        with ServerProcess() as server:
            times.append(server.seconds)
    best = min(times)
    details = {"runs": "/".join(f"{each:.2f}" for each in times)}
    return [Figure("start to serving, empty data directory", best, "s", "<= 1 s", best <= 1, details)]


async def run(directory: Path, seconds: float, objects: int) -> list[Figure]:
    figures = await start_up()
    figures += await in_process_patch(directory)
    figures += await fan_out()
    figures += await http_throughput(seconds)
    figures += await at_scale(directory, objects)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-api", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="length of each throughput measurement")
    parser.add_argument("--objects", type=int, default=100_000, help="number of objects of the large store")
    parser.add_argument("--json", type=Path, default=Path("build/bench-api.json"), help="where to store the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as directory:
        figures = uvloop.run(run(Path(directory), options.seconds, options.objects))
    save(figures, options.json, command="make bench-api", seconds=options.seconds, objects=options.objects)
    sys.stdout.write(table(figures) + "\n")
    say(f"stored as {options.json}")
    if any(figure.reached is False for figure in figures):
        say("some targets were missed")


if __name__ == "__main__":
    main()
