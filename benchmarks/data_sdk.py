"""What ``make bench-data`` has the SDK do. Each function runs in the SDK's own Python, which has nothing of ours."""

from __future__ import annotations

from typing import Any


def serial(sdk: Any, pool: str, count: int, keep: bool) -> Any:
    """Claims one after the other: seconds until the result of the first command, until the claim was served, and of the
    client's own processor time. Each is given up before the next unless it is to be kept until ``end``."""
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
    """Claims all at once, each in a thread: seconds until the result of the first command, and of processor time."""
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
    """Round trips of a command in one sandbox."""
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
