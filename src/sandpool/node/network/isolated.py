"""The network of pods on a machine that does not let us make a better one: everybody alone.

Each pod has a namespace with nothing but a loopback interface in it, and an address on that. Nobody reaches it and it
reaches nobody, so no policy is ever broken; the node alone can go in, for probes, commands and the router. What is
missing is said in the conditions of the node.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address
from pathlib import Path

from sandpool.api.resource import Object
from sandpool.node.network.links import set_up_loopback
from sandpool.node.network.netns import NetworkNamespace, connect_inside
from sandpool.node.network.unrouted import ISOLATED, LOOPBACK, UnroutedNetwork, refused
from sandpool.node.pods.interfaces import Attachment


class IsolatedNetwork(UnroutedNetwork[tuple[IPv4Address, NetworkNamespace]]):
    """``why`` is what kept us from more. Namespaces are kept under ``directory``, named by UID and address."""

    def __init__(self, directory: Path, why: str) -> None:
        super().__init__(directory, LOOPBACK, {ISOLATED: f"sandboxes have no network: {why}"})

    async def start(self) -> None:
        for path in self.directory.iterdir() if self.directory.exists() else ():
            uid, _, text = path.name.rpartition("_")
            namespace = NetworkNamespace(path)
            if uid and namespace.exists:
                self.addresses.keep(IPv4Address(text))
                self._places[uid] = IPv4Address(text), namespace
            else:
                namespace.remove()

    async def attach(self, pod: Object) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        if uid not in self._places:
            with self._new_address() as address:
                path = self.directory / f"{uid}_{address}"
                try:
                    namespace, _ = await asyncio.to_thread(NetworkNamespace.make, path, set_up_loopback)
                except OSError as error:
                    raise refused(error) from error
            self._places[uid] = address, namespace
        address, namespace = self._places[uid]
        return Attachment(namespace.path, (str(address),))

    async def detach(self, uid: str) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            await asyncio.to_thread(place[1].remove)
            self.addresses.give_back(place[0])

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        place = self._places.get(uid)
        if place is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        return await connect_inside(place[1], (host or str(place[0]), port))
