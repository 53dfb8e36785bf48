"""The network of pods for a node that is not root: everybody alone, in namespaces that processes hold.

Without privileges a namespace cannot be bound to a file, so a process stays in it that does nothing else; it is found
again by what was written down of it. To connect to a pod somebody has to go in, which the launcher does.
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

from sandpool.api.resource import Object
from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.descriptors import readable
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.messages import receive
from sandpool.node.launcher.unprivileged import DialRequest, HoldNamespacesRequest
from sandpool.node.network.unrouted import ISOLATED, LOOPBACK, UnroutedNetwork, refused
from sandpool.node.pods.interfaces import Attachment
from sandpool.node.runtimes.runtime import RuntimeFailure


class _Place(NamedTuple):
    """Where a pod is: an address, and a process that holds the namespaces. That may have been killed, and its PID may
    be somebody else's by now, in whose network the pod has no business; so it is known by when it began, too."""

    address: IPv4Address
    holder: int
    since: int | None

    @property
    def is_held(self) -> bool:
        return self.since is not None and start_time(self.holder) == self.since

    @property
    def namespace(self) -> Path:
        return Path(f"/proc/{self.holder}/ns/net")


class RootlessNetwork(UnroutedNetwork[_Place]):
    """Who holds which pod's namespaces is kept under ``directory``."""

    def __init__(self, directory: Path, launcher: LauncherClient) -> None:
        super().__init__(directory, LOOPBACK, {ISOLATED: "sandboxes have no network: only root can connect them"})
        self.launcher = launcher

    async def start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            with suppress(ValueError, OSError):
                address, pid, since = json.loads(path.read_text())
                place = _Place(IPv4Address(address), pid, since)
                if place.is_held:
                    self.addresses.keep(place.address)
                    self._places[path.name] = place
                    continue
            path.unlink()

    async def attach(self, pod: Object) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        place = self._places.get(uid)
        if place is None or not place.is_held:
            found = await self._new_place(uid) if place is None else await self._held(uid, place.address)
            place = self._places[uid] = found
        return Attachment(place.namespace, (str(place.address),))

    async def detach(self, uid: str) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            if place.is_held:
                with suppress(ProcessLookupError):
                    os.kill(place.holder, signal.SIGKILL)
            (self.directory / uid).unlink(missing_ok=True)
            self.addresses.give_back(place.address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        place = self._places.get(uid)
        if place is None or not place.is_held:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            order = DialRequest(str(place.namespace), host or str(place.address), port, [theirs.fileno()] * 3, b"")
            try:
                child = await self.launcher.launch(order)
            except RuntimeFailure as error:
                raise ConnectionRefusedError(str(error)) from error
            child.close()
            theirs.close()
            await readable(ours.fileno())
            _, descriptors = receive(ours, 1)
        if not descriptors:
            raise ConnectionRefusedError(f"nobody listens on port {port} of pod {uid}")
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        return connection

    async def _new_place(self, uid: str) -> _Place:
        with self._new_address() as address:
            return await self._held(uid, address)

    async def _held(self, uid: str, address: IPv4Address) -> _Place:
        try:
            holder = await self._hold(uid, address)
        except RuntimeFailure as error:
            raise refused(error) from error
        return _Place(address, holder, start_time(holder))

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
