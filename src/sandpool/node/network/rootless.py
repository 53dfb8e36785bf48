"""Pod network of a node without root: an isolated network namespace per pod, held by a process.

Without privileges a namespace cannot be bound to a file. A process that does nothing else holds it, and a file records
that process for the next agent. To connect to a pod, the launcher enters the namespace.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from sandpool.api.resource import SharedObject
from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.descriptors import readable
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.messages import receive
from sandpool.node.launcher.unprivileged import DialRequest, HoldNamespacesRequest
from sandpool.node.network.unrouted import ISOLATED, LOOPBACK, UnroutedNetwork, refused
from sandpool.node.pods.interfaces import Attachment
from sandpool.node.runtimes.runtime import RuntimeFailure


class _HeldNamespaces(NamedTuple):
    """A pod's address and the process that holds its namespaces.

    The holder may have been killed and its PID reused by a process in another network, so the start time identifies it,
    too."""

    address: IPv4Address
    holder: int
    since: int | None

    @property
    def is_held(self) -> bool:
        return self.since is not None and start_time(self.holder) == self.since

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self.holder}/ns/net")


class RootlessNetwork(UnroutedNetwork[_HeldNamespaces]):
    """``directory`` has a file per pod that records the holder of its namespaces."""

    def __init__(self, directory: Path, launcher: LauncherClient) -> None:
        super().__init__(directory, LOOPBACK, {ISOLATED: "sandboxes have no network: only root can connect them"})
        self.launcher = launcher

    async def start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            with suppress(ValueError, OSError):
                address, pid, since = json.loads(path.read_text())
                held = _HeldNamespaces(IPv4Address(address), pid, since)
                if held.is_held:
                    self.addresses.reserve(held.address)
                    self._attached[path.name] = held
                    continue
            path.unlink()

    async def attach(self, pod: SharedObject) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        held = self._attached.get(uid)
        if held is None or not held.is_held:
            found = await self._hold_new(uid) if held is None else await self._held(uid, held.address)
            held = self._attached[uid] = found
        return Attachment(held.namespace, (str(held.address),))

    async def detach(self, uid: str) -> None:
        held = self._attached.pop(uid, None)
        if held is not None:
            if held.is_held:
                with suppress(ProcessLookupError):
                    os.kill(held.holder, signal.SIGKILL)
            (self.directory / uid).unlink(missing_ok=True)
            self.addresses.release(held.address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        held = self._attached.get(uid)
        if held is None or not held.is_held:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            request = DialRequest(str(held.namespace), host or str(held.address), port, [theirs.fileno()] * 3, b"")
            try:
                child = await self.launcher.launch(request)
            except RuntimeFailure as error:
                raise ConnectionRefusedError(str(error)) from error
            child.close()
            theirs.close()
            await readable(ours.fileno())
            _, descriptors = receive(ours, 1)
        if not descriptors:
            raise ConnectionRefusedError(f"no process listens on port {port} of pod {uid}")
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        return connection

    async def _hold_new(self, uid: str) -> _HeldNamespaces:
        with self._new_address() as address:
            return await self._held(uid, address)

    async def _held(self, uid: str, address: IPv4Address) -> _HeldNamespaces:
        try:
            holder = await self._hold(uid, address)
        except RuntimeFailure as error:
            raise refused(error) from error
        return _HeldNamespaces(address, holder, start_time(holder))

    async def _hold(self, uid: str, address: IPv4Address) -> int:
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            child = await self.launcher.launch(
                HoldNamespacesRequest(str(self.directory / uid), str(address), [nothing] * 3, b"")
            )
        finally:
            os.close(nothing)
        child.close()
        return child.pid
