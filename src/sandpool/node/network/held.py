"""The network of pods for a node that is not root: everybody alone, in namespaces that processes hold.

Without privileges a namespace cannot be bound to a file, so a process stays in it that does nothing else; it is found
again by what was written down of it. To connect to a pod somebody has to go in, which the launcher does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from sandpool.api.resource import Object
from sandpool.node.cgroups.membership import began
from sandpool.node.descriptors import readable
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.launcher.unprivileged import Dial, Hold
from sandpool.node.network.addresses import Addresses, NoAddressLeft
from sandpool.node.network.lonely import ISOLATED, LOOPBACK
from sandpool.node.pods.parts import Attachment, NetworkFailure
from sandpool.node.runtimes.runtime import RuntimeFailure


class HeldNetwork:
    """Who holds which pod's namespaces is kept under ``directory``."""

    nameservers: tuple[str, ...] = ()
    host_addresses: tuple[str, ...] = ("127.0.0.1",)

    def __init__(self, directory: Path, launcher: LauncherClient) -> None:
        self.directory = directory
        self.launcher = launcher
        self.weaknesses = {ISOLATED: "sandboxes have no network: only root can connect them"}
        self.addresses = Addresses(LOOPBACK)
        self._places: dict[str, tuple[IPv4Address, int]] = {}  # by UID of the pod: address, holder

    async def start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            with suppress(ValueError, OSError):
                address, pid, since = json.loads(path.read_text())
                if began(pid) == since:
                    self.addresses.keep(IPv4Address(address))
                    self._places[path.name] = IPv4Address(address), pid
                    continue
            path.unlink()

    async def stop(self, *, keep: bool = False) -> None:
        if not keep:
            for uid in list(self._places):
                await self.detach(uid)
            shutil.rmtree(self.directory, ignore_errors=True)

    async def attach(self, pod: Object) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        if uid not in self._places:
            try:
                address = self.addresses.take()
                pid = await self._hold()
            except (RuntimeFailure, NoAddressLeft) as error:
                raise NetworkFailure(f"the pod could not be given a network namespace: {error}") from error
            (self.directory / uid).write_text(json.dumps([str(address), pid, began(pid)]))
            self._places[uid] = address, pid
        address, pid = self._places[uid]
        return Attachment(_namespace(pid), (str(address),))

    async def detach(self, uid: str) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            with suppress(ProcessLookupError):
                os.kill(place[1], signal.SIGKILL)
            (self.directory / uid).unlink(missing_ok=True)
            self.addresses.give_back(place[0])

    async def attached(self) -> set[str]:
        return set(self._places)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        place = self._places.get(uid)
        if place is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        address, holder = place
        ours, theirs = socket.socketpair()
        with ours, theirs:
            order = Dial(str(_namespace(holder)), host or str(address), port, [theirs.fileno()] * 3, b"")
            try:
                child = await self.launcher.launch(order)
            except RuntimeFailure as error:
                raise ConnectionRefusedError(str(error)) from error
            child.close()
            theirs.close()
            await readable(ours.fileno())
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise ConnectionRefusedError(f"nobody listens on port {port} of pod {uid}")
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        return connection

    async def _hold(self) -> int:
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            child = await self.launcher.launch(Hold([nothing] * 3, b""))
        finally:
            os.close(nothing)
        child.close()
        return child.pid


def _namespace(holder: int) -> Path:
    return Path(f"/proc/{holder}/ns/net")
