"""Uses the Python client of this package, for ``make bench-data``, and prints what it measured as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from sandpool import AsyncClient, Client


def serial(kubeconfig: Path, pool: str, count: int) -> Any:
    """Claim sandboxes one after the other; seconds to the first result of each."""
    took = []
    with Client(kubeconfig=kubeconfig) as client:
        for _ in range(count):
            began = time.perf_counter()
            with client.sandbox(pool) as sandbox:
                assert sandbox.run(["echo", "hello"]).stdout == "hello\n"
                took.append(time.perf_counter() - began)
    return took


def fresh(kubeconfig: Path, pool: str, count: int) -> Any:
    """The same with a client of its own for each sandbox, which connects anew."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        with Client(kubeconfig=kubeconfig) as client, client.sandbox(pool) as sandbox:
            assert sandbox.run(["echo", "hello"]).stdout == "hello\n"
            took.append(time.perf_counter() - began)
    return took


def burst(kubeconfig: Path, pool: str, count: int) -> Any:
    """Claim sandboxes at once; seconds to the first result of each, from the common beginning."""

    async def main() -> list[float]:
        async with AsyncClient(kubeconfig=kubeconfig) as client:
            async with client.sandbox(pool) as sandbox:  # connected, as a program that runs for a while
                await sandbox.run("true")
            began = time.perf_counter()

            async def one() -> tuple[float, Any]:
                sandbox = await client.sandbox(pool)
                assert (await sandbox.run(["echo", "hello"])).stdout == "hello\n"
                return time.perf_counter() - began, sandbox

            done = await asyncio.gather(*(one() for _ in range(count)))
            return [seconds for seconds, _ in done]

    return asyncio.run(main())


def tasks(kubeconfig: Path, pool: str, count: int) -> Any:
    """Map a short task over 100 sandboxes, as processes."""
    return _map(kubeconfig, pool, count, sessions=False)


def sessions(kubeconfig: Path, pool: str, count: int) -> Any:
    """Map a short task over 100 sandboxes, in Python sessions."""
    return _map(kubeconfig, pool, count, sessions=True)


def _map(kubeconfig: Path, pool: str, count: int, *, sessions: bool) -> float:
    with Client(kubeconfig=kubeconfig) as client:
        began = time.perf_counter()
        found = client.map("input + 1", range(count), pool=pool, parallelism=100, sessions=sessions)
        took = time.perf_counter() - began
    assert found == list(range(1, count + 1))
    return took


JOBS = {job.__name__: job for job in (serial, fresh, burst, tasks, sessions)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    cpu = time.process_time()
    found = JOBS[given.job](given.kubeconfig, given.pool, given.count)
    json.dump({"found": found, "cpu": time.process_time() - cpu}, sys.stdout)


if __name__ == "__main__":
    main()
