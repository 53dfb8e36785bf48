"""``make bench-sandboxes``: measures sandboxes of each runtime alone, without API, agent or network.

    make bench-sandboxes        # as root

For each runtime of this machine: the start of a program, the first and further commands, pause and resume, deletion,
the memory of an idle sandbox before and after commands, the CPU time of a start and of commands, and starts per second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable
from itertools import count

from sandpool.bench.figures import Figure, percentile, table
from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.runtime import Command, Container, ContainerSpec, PodSandbox, Stdio
from tests.support.isolation import RUNTIMES, NotHere, Rig, rig

_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
_LIMITS = Limits(memory=128 << 20, pids=64)
_AT_ONCE = 8
_COMMANDS = 10  # after the first
_PYTHON = ("python3", "-c", "import time; time.sleep(1000)")
_names = count(1)


async def one_by_one(boxes: Rig, rounds: int) -> list[Figure]:
    """Measure the lifecycle of one sandbox, repeatedly."""
    times: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}

    async def timed(what: str, work: Awaitable[object]) -> None:
        begin = time.monotonic()
        await work
        times.setdefault(what, []).append((time.monotonic() - begin) * 1000)

    def note(what: str, value: float) -> None:
        used.setdefault(what, []).append(value)

    async def commands(what: str, container: Container, number: int) -> None:
        inside, own = (await container.usage()).cpu_nanoseconds, time.process_time_ns()
        for _ in range(number):
            await timed(what, ended(container, Stdio(nothing, nothing, nothing)))
        note(f"CPU time of {what} here", (time.process_time_ns() - own) / 1e6 / number)
        note(f"CPU time of {what} inside", ((await container.usage()).cpu_nanoseconds - inside) / 1e6 / number)

    pod = await boxes.pod()
    nothing = os.open("/dev/null", os.O_RDWR)
    for _ in range(rounds):
        container = await created(boxes, pod, "sleep", "1000")
        await timed("start", container.start())
        note("CPU time of a start", (await container.usage()).cpu_nanoseconds / 1e6)
        note("memory of an idle one", (await container.usage()).memory_bytes / 1e6)
        await commands("a first command", container, 1)
        await commands("another command", container, _COMMANDS)
        note("memory of an idle one after commands", (await container.usage()).memory_bytes / 1e6)
        await timed("pause", container.pause())
        await timed("resume", container.resume())
        await timed("delete", container.delete())
    os.close(nothing)
    name = boxes.runtime.name
    return [
        *(
            Figure(f"{name}: {what}", percentile(taken, 50), "ms", details={"worst": f"{max(taken):.1f}"})
            for what, taken in times.items()
        ),
        *(
            Figure(f"{name}: {what}", percentile(values, 50), "MB" if what.startswith("memory") else "ms")
            for what, values in used.items()
        ),
    ]


async def many(boxes: Rig, number: int) -> list[Figure]:
    """Start ``number`` sandboxes, eight at a time, each in its own pod."""
    places = asyncio.Semaphore(_AT_ONCE)
    pods = [await boxes.pod() for _ in range(number)]

    async def start(pod: PodSandbox) -> Container:
        async with places:
            container = await created(boxes, pod, *_PYTHON)
            await container.start()
            return container

    begin = time.monotonic()
    containers = await asyncio.gather(*(start(pod) for pod in pods))
    rate = number / (time.monotonic() - begin)
    await asyncio.gather(*(container.delete() for container in containers))
    return [Figure(f"{boxes.runtime.name}: {number} sandboxes with Python, {_AT_ONCE} at a time", rate, "per second")]


async def created(boxes: Rig, pod: PodSandbox, *argv: str) -> Container:
    return await boxes.runtime.create(pod, ContainerSpec(f"c{next(_names)}", argv, env=_ENV, limits=_LIMITS))


async def ended(container: Container, stdio: Stdio) -> int:
    process = await container.execute(Command(("true",)), stdio)
    return await process.wait()


async def run(rounds: int, number: int) -> list[Figure]:
    figures: list[Figure] = []
    for kind in RUNTIMES.values():
        try:
            async with rig(kind) as boxes:
                figures += await one_by_one(boxes, rounds)
                figures += await many(boxes, number)
        except NotHere as missing:
            sys.stderr.write(f"{missing}\n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-sandboxes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="repetitions of each measurement")
    parser.add_argument("--number", type=int, default=100, help="number of concurrent sandboxes")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("sandboxes with limits and users of their own are made by root only")
    sys.stdout.write(table(asyncio.run(run(options.rounds, options.number))) + "\n")


if __name__ == "__main__":
    main()
