"""A real node on its own API server: pods run confined on this machine, in a network namespace without a route out.

The output of pods is kept in memory, so that a test can run a command in a pod and read what it printed. The fixture
fails if anything of the node is left at the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from glob import glob
from pathlib import Path
from random import Random
from typing import Any

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.node.assembly import VOLUME_SIZE, Node, NodeOptions
from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.registration import RegistrationOptions
from sandpool.node.runtimes.runtime import Container
from sandpool.node.volumes.root_disk import ROOT_SIZE
from sandpool.server.api_server import ApiServer
from sandpool.server.http.server import AuditSink
from sandpool.testing.objects import pod
from sandpool.testing.waiting import until

IMAGE = "sandpool.local/python"
# Every process that makes sandboxes has its own users: pytest-xdist runs several.
_FIRST_USER = 1_000_000
_USERS_EACH = 1_000


class CapturedLogs:
    """The output of containers, by UID of the pod and container name, over all runs."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, str], bytearray] = {}
        self._open: dict[Container, list[int]] = {}

    def follow(self, container: Container, directory: Path, restarts: int) -> None:
        if container in self._open:
            return
        kept = self.written.setdefault((container.pod_uid, container.spec.name), bytearray())
        descriptors = self._open[container] = []
        for name in ("stdout", "stderr"):
            descriptor = os.open(container.directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            descriptors.append(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor, kept)

    async def finish(self, container: Container) -> None:
        kept = self.written[container.pod_uid, container.spec.name]
        for descriptor in self._open.pop(container, []):
            asyncio.get_running_loop().remove_reader(descriptor)
            self._read(descriptor, kept)
            os.close(descriptor)

    async def tail(self, container: Container, limit: int) -> bytes:
        return bytes(self.written[container.pod_uid, container.spec.name][-limit:])

    def close(self) -> None:
        for descriptor in [each for descriptors in self._open.values() for each in descriptors]:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._open.clear()

    def _read(self, descriptor: int, kept: bytearray) -> None:
        with suppress(BlockingIOError):
            while data := os.read(descriptor, 1 << 16):
                kept.extend(data)
            asyncio.get_running_loop().remove_reader(descriptor)


class RealNode:
    """``client`` is that of users. Every pod of a test gets its own name."""

    def __init__(self, server: ApiServer, node: Node, logs: CapturedLogs) -> None:
        self.server = server
        self.client: Client = server.client(name="users")
        self.node = node
        self.logs = logs
        self._pods = 0

    def pod_cgroups(self) -> list[str]:
        """The cgroups of pods in every hierarchy. Other cgroups may disappear during the walk, which ``Path.rglob``
        does not tolerate."""
        return glob(f"/sys/fs/cgroup/**/sandpool{self.node.settings.instance}/*/", recursive=True)

    async def create(
        self,
        *command: str,
        container: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        **pod_fields: Any,
    ) -> str:
        """Create a pod with one container that runs a command. Returns its name."""
        self._pods += 1
        name = f"pod-{self._pods}"
        main = {"name": "main", "image": IMAGE, **({"command": list(command)} if command else {}), **(container or {})}
        body = {"containers": [main], "terminationGracePeriodSeconds": 2, **(spec or {})}
        await self.client.create(POD, pod(name, spec=body, **pod_fields), "default")
        return name

    async def look(self, script: str, **fields: Any) -> str:
        """Run a shell script as the only program of a pod and return its output."""
        spec = {"restartPolicy": "Never", **(fields.pop("spec", None) or {})}
        name = await self.create("sh", "-c", script, spec=spec, **fields)
        await self.phase(name, "Succeeded", "Failed")
        return await self.output(name)

    async def get(self, name: str) -> SharedObject:
        return await self.client.get(POD, name, "default")

    async def phase(self, name: str, *phases: str) -> SharedObject:
        """Wait until the pod is in one of these phases, and return it."""

        async def reached() -> SharedObject | None:
            found = await self.get(name)
            return found if found["status"].get("phase") in phases else None

        found = await until(reached)
        assert found is not None
        return found

    async def ready(self, name: str, status: str = "True") -> SharedObject:
        async def reached() -> SharedObject | None:
            found = await self.get(name)
            condition = condition_of(found, "Ready")
            return found if condition is not None and condition["status"] == status else None

        found = await until(reached)
        assert found is not None
        return found

    async def output(self, name: str, container: str = "main") -> str:
        uid = (await self.get(name))["metadata"]["uid"]
        return self.logs.written.get((uid, container), bytearray()).decode(errors="replace")

    async def says(self, name: str, text: str, container: str = "main") -> str:
        """Wait until the output of a container contains this text, and return all output."""

        async def said() -> str:
            found = await self.output(name, container)
            return found if text in found else ""

        return await until(said)

    async def delete(self, name: str, **options: Any) -> None:
        with suppress(NotFound):
            await self.client.delete(POD, name, "default", **options)

    async def gone(self, name: str) -> None:
        async def is_gone() -> bool:
            try:
                await self.get(name)
            except NotFound:
                return True
            return False

        await until(is_gone)

    async def close(self) -> None:
        """Delete every pod and wait until none is left."""
        for each in (await self.client.list(POD, "default"))["items"]:
            await self.delete(each["metadata"]["name"], grace_period_seconds=0)

        async def none_left() -> bool:
            return not self.node.agent.workers

        await until(none_left)


@asynccontextmanager
async def real_node(
    directory: Path, *, audit: AuditSink | None = None, volume_size: int = VOLUME_SIZE, root_size: int = ROOT_SIZE
) -> AsyncIterator[RealNode]:
    """Raises AssertionError at the end if a pod's process, cgroup or file is left."""
    os.chmod(directory, 0o755)
    first = _FIRST_USER + os.getpid() % 1_000 * _USERS_EACH
    host, _ = NetworkNamespace.make(directory / "host", lambda: None)
    server = ApiServer(directory / "api", audit=audit)
    await server.start()
    logs = CapturedLogs()
    settings = NodeOptions(
        directory / "node",
        RegistrationOptions("real"),
        instance=f"-{os.getpid()}",
        first_host_user=first,
        host=host.path,
        volume_size=volume_size,
        root_size=root_size,
    )
    node = Node(server.client(name="node"), SystemClock(), Random(), settings, logs=logs)
    try:
        await node.start()
        rig = RealNode(server, node, logs)
        yield rig
        await rig.close()
    finally:
        await node.stop()
        logs.close()
        await server.stop()
        host.remove()

    def left() -> list[str]:
        return [*_remains(directory / "node" / "pods"), *_processes(range(first, first + _USERS_EACH))]

    async def nothing_left() -> bool:
        return not left()

    with suppress(TimeoutError):  # a killed process may take a moment to end
        await until(nothing_left, within=10)
    assert not left(), f"left behind: {left()}"


def _remains(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def _processes(users: range) -> list[str]:
    """Return running processes. A zombie whose parent has not reaped it does not count."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
            if int(fields["Uid"].split()[0]) in users and not fields["State"].strip().startswith("Z"):
                found.append(f"{fields['Name'].strip()} ({fields['Pid'].strip()})")
    return found
