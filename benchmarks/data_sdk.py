"""Scripts that ``make bench-data`` runs with the SDK. Each function runs in the interpreter of the SDK, without this
package."""

from __future__ import annotations

from typing import Any


def serial(sdk: Any, pool: str, count: int, keep: bool) -> Any:
    """Create claims one after the other. Returns the seconds until the result of the first command, the seconds until
    the claim was ready, and the CPU time of the client. Each claim is deleted before the next one, unless it is to be
    kept until ``end``."""
    import time

    took, sdk.kept = [], []
    for _ in range(count):
        began, cpu = time.perf_counter(), time.process_time()
        box = sdk.client.create_sandbox(pool)
        claimed = time.perf_counter() - began
        assert box.commands.run("echo hello").stdout == "hello\n"
        took.append((time.perf_counter() - began, claimed, time.process_time() - cpu))
        sdk.kept.append(box)
        if not keep:
            sdk.kept.pop().terminate()
    return took


def end(sdk: Any) -> None:
    for box in sdk.kept:
        box.terminate()


def burst(sdk: Any, pool: str, count: int) -> Any:
    """Create claims concurrently, each in a thread. Returns the seconds until the result of the first command, and the
    CPU time."""
    import time
    from concurrent.futures import ThreadPoolExecutor

    sdk.kept = []
    cpu = time.process_time()

    def one(began: float) -> float:
        box = sdk.client.create_sandbox(pool)
        assert box.commands.run("echo hello").stdout == "hello\n"
        took = time.perf_counter() - began
        sdk.kept.append(box)
        return took

    with ThreadPoolExecutor(count) as threads:
        took = list(threads.map(one, [time.perf_counter()] * count))
    return [took, time.process_time() - cpu]


def commands(sdk: Any, pool: str, count: int) -> Any:
    """Measure round trips of a command in one sandbox."""
    import time

    box = sdk.client.create_sandbox(pool)
    box.commands.run("true")
    took = []
    for _ in range(count):
        began = time.perf_counter()
        box.commands.run("true")
        took.append(time.perf_counter() - began)
    box.terminate()
    return took
