"""A node as a separate process that tests can kill: ``python -m tests.support.node_process SETTINGS``.

With ``serve`` the embedded API is in the same process, as in ``sandpool up``; otherwise the node uses the API of
``kubeconfig``. It prints a line when it is ready, and runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import msgspec

from sandpool.engine.clock import SystemClock
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.node.assembly import Node, NodeOptions
from sandpool.node.registration import RegistrationOptions
from sandpool.server.serving import daemon

NAME = "crashing"
# A loaded machine is slow; a node that does not come never will.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Settings that a node and its successors share. ``host`` is the network namespace that acts as the machine's."""

    directory: str
    host: str
    instance: str
    first_user: int
    serve: bool = False

    @property
    def kubeconfig(self) -> Path:
        return Path(self.directory) / "api" / "kubeconfig"

    def server(self) -> daemon.ServerOptions:
        return daemon.ServerOptions(Path(self.directory) / "api", port=0)

    def node(self) -> NodeOptions:
        return NodeOptions(
            Path(self.directory) / "node",
            RegistrationOptions(NAME),
            instance=self.instance,
            first_host_user=self.first_user,
            host=Path(self.host),
        )


class NodeProcess:
    """``start`` returns when the node is ready."""

    def __init__(self, place: PodPlacement) -> None:
        self.place = place
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        await self.launch()
        await self.working()

    async def launch(self) -> None:
        """Start the process without waiting."""
        text = msgspec.json.encode(asdict(self.place)).decode()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, text, stdout=asyncio.subprocess.PIPE
        )

    async def working(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async with asyncio.timeout(_TIMEOUT):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the node ended before it worked; its log is on standard error")

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def end(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
            # Reads what is left, so that the pipe is closed when it has ended.
            async with asyncio.timeout(_TIMEOUT):
                await process.communicate()


async def _run(place: PodPlacement) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    server = daemon.Daemon(place.server()) if place.serve else None
    if server is not None:
        await server.start()
        client = server.server.client(name="node")
    else:
        client = Client(HttpTransport(kubeconfigs.load(place.kubeconfig)))
    node = Node(client, SystemClock(), Random(), place.node())
    await node.start()
    os.write(1, b"working\n")
    await stopping.wait()
    await node.stop(grace=1.0)
    if server is not None:
        await server.stop()
    else:
        await client.close()


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=PodPlacement)))
