"""``sandpool up`` with real sandboxes, killed while users work, and its resources on the machine.

The sandboxes are in a network namespace without a route out; the API and the router are on the loopback interface.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from sandpool.api.kinds import NETWORK_POLICY, PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM, SERVICE
from sandpool.api.resource import ResourceType
from sandpool.bench.server_process import ServerProcess
from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.node.cgroups.hierarchy import Cgroups
from sandpool.node.cgroups.mounts import discover
from sandpool.node.network.netns import NetworkNamespace
from tests.support.soak.command_log import Broken
from tests.support.soak.sandbox_requests import Router

T = TypeVar("T")

#: Kinds whose objects come and go with sandboxes.
KINDS: Final[tuple[ResourceType, ...]] = (
    SANDBOX_CLAIM,
    SANDBOX,
    POD,
    SERVICE,
    PERSISTENT_VOLUME_CLAIM,
    NETWORK_POLICY,
)
_STARTS: Final = 120.0
# Images are laid out once and kept, however many pods use them.
_IMAGES: Final = "images"
_LAUNCHER: Final = b"sandpool.node.launcher"


class SandpoolProcess:
    """``client``, ``connection`` and ``router`` are replaced after each kill."""

    client: Client
    connection: Connection
    router: Router

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        os.chmod(directory, 0o755)
        self.host, _ = NetworkNamespace.make(directory / "host", lambda: None)
        options = ("--host-netns", str(self.host.path), "--metrics-bind-address", "0", "--log-level", "warning")
        self.server = ServerProcess("up", options=options, data_dir=directory / "data")
        mark = hashlib.sha256(os.path.realpath(directory / "data").encode()).hexdigest()
        self.cgroups = Cgroups(discover(), f"sandpool-{mark[:6]}")
        self.kills = 0
        self._launchers: list[int] = []  # of processes that are gone
        # A process lives no longer than the thread that has started it.
        self._starter = ThreadPoolExecutor(1)

    async def start(self) -> None:
        await self._in_thread(lambda: self.server.start(_STARTS))
        self._reach()

    async def kill(self) -> None:
        """Kill the process and start it again. Its child processes must end with it."""
        self.kills += 1
        self._launchers += self._children(_LAUNCHER)
        await self._in_thread(lambda: self.server.restart(crash=True, within=_STARTS))
        former = self.client, self.router
        self._reach()
        for each in former:
            await each.close()

    async def kill_launcher(self) -> None:
        """Kill only the process that starts programs in sandboxes."""
        for pid in self._children(_LAUNCHER):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
                self.kills += 1

    async def stop(self) -> None:
        """Stop. Raises ``Broken`` if a resource is left."""
        try:
            await self.client.close()
            await self.router.close()
            await self._in_thread(self.server.stop)
            left = {what: number for what, number in self._machine().items() if number and not what.startswith("files")}
            self.cgroups.close()
        finally:
            self._starter.shutdown()
            self.host.remove()
        if left:
            raise Broken(f"left on the machine: {left}")

    async def steadily(self, ask: Callable[[Client], Awaitable[T]], within: float = _STARTS) -> T:
        """Repeat a request until the API responds, with any result."""
        async with asyncio.timeout(within):
            while True:
                try:
                    return await ask(self.client)
                except (ConnectionError, TimeoutError, ServiceUnavailable):
                    await asyncio.sleep(0.2)

    async def count(self) -> Counter[str]:
        """Count the objects in the API and the resources of the machine."""
        found = self._machine()
        for kind in KINDS:
            found[kind.plural] = len((await self.steadily(lambda client, kind=kind: client.list(kind)))["items"])  # type: ignore[misc]
        return found

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def _machine(self) -> Counter[str]:
        node = self.directory / "data" / "node"
        pods = self.cgroups.group()
        found = Counter(
            {
                "cgroups": len(pods.children()) if pods.exists else 0,
                "mounts": Path("/proc/self/mountinfo").read_text().count(str(node / "pods")),
                "launchers of the dead": sum(1 for pid in self._launchers if _runs(pid, _LAUNCHER)),
            }
        )
        for directory in node.iterdir():
            if directory.name != _IMAGES:
                found[f"files in {directory.name}"] = sum(1 for _ in directory.rglob("*"))
        router = NetworkNamespace(node / "network" / "router")
        if self.server.process.running:
            found["interfaces"] = len(router.call(socket.if_nameindex))
            found["rules"] = len(router.call(_ruleset).split())
        return found

    def _children(self, mark: bytes) -> list[int]:
        parent = self.server.process.pid
        found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [int(pid) for pid in found if _runs(int(pid), mark)]

    def _reach(self) -> None:
        self.connection = load(self.server.kubeconfig)
        self.client = Client(HttpTransport(self.connection))
        said = (line.split() for line in self.server.process.tail(1000).splitlines())
        self.router = Router([words[1] for words in said if words[:1] == ["router"]][-1])

    async def _in_thread(self, work: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._starter, work)


def _runs(pid: int, mark: bytes) -> bool:
    with suppress(OSError):
        return mark in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _ruleset() -> str:
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True, env=path)
    return done.stdout
