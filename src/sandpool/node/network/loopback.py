"""The network of pods that are not isolated, without privileges: every pod has an address of the host's loopback
interface, if it keeps to it.

Nothing is enforced. A pod reaches whatever the user of the node reaches, and everybody on this machine reaches the pod;
policies mean nothing. Only the address is a pod's own, so that several can listen on the same port, provided they ask
for that address (``status.podIP``) and not for all. The conditions of the node say so.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from sandpool.api.resource import Object
from sandpool.node.network.unrouted import THIS_HOST, UnroutedNetwork
from sandpool.node.pods.interfaces import Attachment

#: The type of the condition that says so.
SHARED: Final = "SandboxNetworkShared"


class LoopbackNetwork(UnroutedNetwork[IPv4Address]):
    """Who has which address is kept under ``directory``, whose name also decides which addresses these are: several
    nodes may run on one machine."""

    def __init__(self, directory: Path) -> None:
        number = 64 + zlib.crc32(str(directory).encode()) % 128
        why = "sandboxes share the network of this machine, and NetworkPolicies are not enforced"
        super().__init__(directory, IPv4Network(f"127.{number}.0.0/16"), {SHARED: why})

    async def start(self) -> None:
        self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            uid, _, text = path.name.rpartition("_")
            self._places[uid] = address = IPv4Address(text)
            self.addresses.keep(address)

    async def attach(self, pod: Object) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        if uid not in self._places:
            with self._new_address() as address:
                self._place(uid, address).touch()
            self._places[uid] = address
        return Attachment(None, (str(self._places[uid]),))

    async def detach(self, uid: str) -> None:
        address = self._places.pop(uid, None)
        if address is not None:
            self._place(uid, address).unlink(missing_ok=True)
            self.addresses.give_back(address)

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        address = self._places.get(uid)
        if address is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        # What is the loopback interface to a pod elsewhere is the host's here, with the services of others on it.
        target = str(address) if host in ("", "localhost", THIS_HOST) else host
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (target, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _place(self, uid: str, address: IPv4Address) -> Path:
        return self.directory / f"{uid}_{address}"
