"""The part of ``sandpool demo`` that uses the unmodified agent-sandbox SDK.

It runs Python code in every claimed sandbox and measures the time to a first result. The functions at the top run in
the SDK's own interpreter, which cannot import this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandpool.bench.figures import grid, percentile
from sandpool.bench.sdk_process import SdkProcess, Speaker

#: Number of sandboxes that are created one after the other.
SERIAL: Final = 10

NOTE: Final = (
    "Published figures are those of third parties, on other machines and with a network in between, for services\n"
    "that start or resume a sandbox when it is asked for, and for 100 at once; they change from day to day\n"
    "(computesdk.com/benchmarks). Here sandboxes come from a warm pool, and client and service share the machine."
)


@dataclass(frozen=True, slots=True)
class Published:
    """Milliseconds from the call that creates a sandbox to the result of the first command in it, p50."""

    service: str
    serial: float
    at_once: float


PUBLISHED: Final = (Published("Daytona", 186, 367), Published("E2B", 491, 822), Published("Modal", 1723, 2261))


def in_each(sdk: Any, claims: list[str]) -> Any:
    """Run Python code in the sandbox of each claim and return its output."""
    from concurrent.futures import ThreadPoolExecutor

    code = "import os, socket; print(sum(range(1001)), socket.gethostname(), os.getpid())"

    def one(claim: str) -> str:
        done = sdk.client.get_sandbox(claim).commands.run(f"python3 -c '{code}'")
        assert done.exit_code == 0, done
        output: str = done.stdout.strip()
        return output

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(one, claims))


def first_results(sdk: Any, pool: str, count: int, at_once: bool) -> Any:
    """Create sandboxes, serially or at once, and return the seconds until the first command's result.

    Then run Python code in each and release it.
    """
    import time
    from concurrent.futures import ThreadPoolExecutor

    made = []

    def one(began: float | None) -> float:
        began = time.perf_counter() if began is None else began
        box = sdk.client.create_sandbox(pool)
        made.append(box)
        assert box.commands.run("echo hello").stdout == "hello\n"
        return time.perf_counter() - began

    with ThreadPoolExecutor(count if at_once else 1) as threads:
        took = list(threads.map(one, [time.perf_counter() if at_once else None] * count))
    for box in made:
        assert box.commands.run("python3 -c 'print(6 * 7)'").stdout == "42\n"
        box.terminate()
    return took


class Program:
    """A program that uses the SDK in direct mode. Raises ``MissingSdk`` if the SDK is not installed."""

    def __init__(self, kubeconfig: Path, home: Path, router: str) -> None:
        self._process = SdkProcess(kubeconfig, home)
        self._speak = Speaker(self._process, {"class": "SandboxDirectConnectionConfig", "api_url": router})

    def in_each(self, claims: Sequence[str]) -> list[str]:
        output: list[str] = self._speak(in_each, list(claims))
        return output

    def first_results(self, pool: str, count: int, *, at_once: bool) -> list[float]:
        took: list[float] = self._speak(first_results, pool, count, at_once)
        return took

    def stop(self) -> None:
        self._process.stop()


def comparison(serial: Sequence[float], at_once: Sequence[float]) -> str:
    """Return a table of our figures beside published ones."""
    rows = [
        ["created to first result, p50", f"{len(serial)} one after the other", f"{len(at_once)} at once"],
        ["here", *(f"{percentile(took, 50) * 1e3:.0f} ms" for took in (serial, at_once))],
        *([f"published: {each.service}", f"{each.serial:.0f} ms", f"{each.at_once:.0f} ms"] for each in PUBLISHED),
    ]
    return grid(rows) + "\n" + NOTE
