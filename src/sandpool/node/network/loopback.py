"""Pod network of the process runtime without root: every pod has an address on the host's loopback interface.

Nothing is enforced. A pod reaches whatever the node's user reaches, every process of the machine reaches the pod, and
NetworkPolicies have no effect. Only the address is the pod's own: several pods can listen on the same port if they bind
to their address (``status.podIP``) and not to all addresses. A node condition reports this.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from sandpool.api.resource import SharedObject
from sandpool.node.network.unrouted import THIS_HOST, UnroutedNetwork
from sandpool.node.pods.interfaces import Attachment

#: The type of the node condition.
SHARED: Final = "SandboxNetworkShared"


class LoopbackNetwork(UnroutedNetwork[IPv4Address]):
    """``directory`` has a file per pod with its address. Its path also selects the range of addresses, because several
    nodes may run on one machine."""

    def __init__(self, directory: Path) -> None:
        number = 64 + zlib.crc32(str(directory).encode()) % 128
        message = "sandboxes share the network of this machine, and NetworkPolicies are not enforced"
        super().__init__(directory, IPv4Network(f"127.{number}.0.0/16"), {SHARED: message})

    async def start(self) -> None:
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            uid, _, text = path.name.rpartition("_")
            self._attached[uid] = address = IPv4Address(text)
            self.addresses.reserve(address)

    async def attach(self, pod: SharedObject) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        if uid not in self._attached:
            with self._new_address() as address:
                self._record(uid, address).touch()
            self._attached[uid] = address
        return Attachment(None, (str(self._attached[uid]),))

    async def detach(self, uid: str) -> None:
        address = self._attached.pop(uid, None)
        if address is not None:
            self._record(uid, address).unlink(missing_ok=True)
            self.addresses.release(address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        address = self._attached.get(uid)
        if address is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        # The pod's loopback interface is the host's here, on which other programs listen.
        target = str(address) if host in ("", "localhost", THIS_HOST) else host
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (target, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _record(self, uid: str, address: IPv4Address) -> Path:
        return self.directory / f"{uid}_{address}"
