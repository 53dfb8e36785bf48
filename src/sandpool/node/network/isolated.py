"""Pod network of a machine on which routing between pods cannot be set up: every pod is isolated.

A pod has a namespace with a loopback interface and an address on it. It reaches no other pod and no other pod reaches
it, so no NetworkPolicy is ever broken. Only the node enters the namespace, for probes, commands and the router. A node
condition reports what is missing.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address
from pathlib import Path

from sandpool.api.resource import SharedObject
from sandpool.node.network.links import set_up_loopback
from sandpool.node.network.netns import NetworkNamespace, connect_inside
from sandpool.node.network.unrouted import ISOLATED, LOOPBACK, UnroutedNetwork, refused
from sandpool.node.pods.interfaces import Attachment


class IsolatedNetwork(UnroutedNetwork[tuple[IPv4Address, NetworkNamespace]]):
    """``reason`` is why there is no routed network. Namespaces are in ``directory``, named by pod UID and address."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(directory, LOOPBACK, {ISOLATED: f"sandboxes have no network: {reason}"})

    async def start(self) -> None:
        for path in self.directory.iterdir() if self.directory.exists() else ():
            uid, _, text = path.name.rpartition("_")
            namespace = NetworkNamespace(path)
            if uid and namespace.exists:
                self.addresses.reserve(IPv4Address(text))
                self._attached[uid] = IPv4Address(text), namespace
            else:
                namespace.remove()

    async def attach(self, pod: SharedObject) -> Attachment:
        uid: str = pod["metadata"]["uid"]
        if uid not in self._attached:
            with self._new_address() as address:
                path = self.directory / f"{uid}_{address}"
                try:
                    namespace, _ = await asyncio.to_thread(NetworkNamespace.make, path, set_up_loopback)
                except OSError as error:
                    raise refused(error) from error
            self._attached[uid] = address, namespace
        address, namespace = self._attached[uid]
        return Attachment(namespace.path, (str(address),))

    async def detach(self, uid: str) -> None:
        attached = self._attached.pop(uid, None)
        if attached is not None:
            await asyncio.to_thread(attached[1].remove)
            self.addresses.release(attached[0])

    async def dial(self, uid: str, port: int, host: str = "") -> socket.socket:
        attached = self._attached.get(uid)
        if attached is None:
            raise ConnectionRefusedError(f"pod {uid} is not connected")
        return await connect_inside(attached[1], (host or str(attached[0]), port))
