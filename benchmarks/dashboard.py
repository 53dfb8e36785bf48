"""Measure how soon the dashboard shows 1,000 sandboxes, in Debian's Chromium: ``python -m benchmarks.dashboard``.

The home has simulated nodes. The first visit includes the start of the dashboard's process; the other ones are reloads
of the overview and of the list of sandboxes, with the time to the first contentful paint and to the first row."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.bench.server_process import ServerProcess
from sandpool.kube import kubeconfig
from sandpool.service.service import Service
from sandpool.testing.objects import new, pod_template
from tests.support.browser import Page, chromium, connected, find_chromium

PAINTED = """new Promise((resolve) => new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (each.name === "first-contentful-paint") resolve(each.startTime);
}).observe({type: "paint", buffered: true}))"""


async def fill(config: Path, count: int) -> None:
    async with Service.connect(kubeconfig.load(config)) as service:
        template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
        spec = {"replicas": count, "sandboxTemplateRef": {"name": "python"}}
        await service.pools.ensure([template, new(SANDBOX_WARM_POOL, "python", spec=spec)])
        await service.pools.wait_ready("python", count, 600.0)


async def visit(page: Page, url: str) -> tuple[float, float]:
    """Milliseconds to the first paint, and to the first row."""
    await page.goto(url)
    row = await page.wait("document.querySelector('table.rows tbody tr') && performance.now()")
    return float(await page.evaluate(PAINTED)), float(row)


async def measure(login: str, visits: int) -> None:
    base = login.partition("/login")[0]
    with tempfile.TemporaryDirectory() as directory, chromium(Path(directory)) as address:
        async with connected(address) as browser:
            page = await browser.page()
            begun = time.perf_counter()
            await page.goto(login)
            await page.wait("document.querySelector('table.rows tbody tr')")
            print(f"first visit, with the start of the process: {time.perf_counter() - begun:.2f} s")
            for path in ("/", "/sandboxes"):
                times = [await visit(page, base + path) for _ in range(visits)]
                paint, row = (statistics.median(each) for each in zip(*times, strict=True))
                print(f"{path:<12} median of {visits}: first paint {paint:.0f} ms, first row {row:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=1000)
    parser.add_argument("--visits", type=int, default=9)
    arguments = parser.parse_args()
    if find_chromium() is None:
        raise SystemExit("there is no chromium: as root run apt-get install chromium")
    with ServerProcess("up", options=("--simulated-nodes", "10", "--no-node")) as server:
        asyncio.run(fill(server.kubeconfig, arguments.sandboxes))
        asyncio.run(measure(server.dashboard, arguments.visits))


if __name__ == "__main__":
    main()
