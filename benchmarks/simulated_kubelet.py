"""A simulated node as a separate process, so that its costs are measured apart from those of the controllers.

``python -m benchmarks.simulated_kubelet KUBECONFIG`` runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from sandpool.bench.subjects import client_of
from sandpool.engine.clock import SystemClock
from sandpool.node.simulated import SimulatedNode


async def run(kubeconfig: Path) -> None:
    async with client_of(kubeconfig) as client:
        working = asyncio.create_task(SimulatedNode(client, SystemClock(), brief=True).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    uvloop.run(run(Path(sys.argv[1])))
