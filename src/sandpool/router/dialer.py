"""How the router gets to a sandbox: over the network, or through the node that is in the same process."""

from __future__ import annotations

import asyncio
import socket

from sandpool.node.agent import NodeAgent
from sandpool.router.destination import RequestRejected
from sandpool.router.targets import Target


async def connect(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. Raises ``OSError``."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def by_address(target: Target, port: int) -> socket.socket:
    """As any client in the network of the pods would."""
    return await connect(target.address, port)


class NodeDialer:
    """Past every NetworkPolicy, as the node's own probes are, and to nothing but the pods that it runs. ``agent`` is
    None where nothing runs any pod."""

    def __init__(self, agent: NodeAgent | None) -> None:
        self.agent = agent

    async def __call__(self, target: Target, port: int) -> socket.socket:
        worker = None if self.agent is None else self.agent.find(target.namespace, target.pod)
        if self.agent is None or worker is None or worker.state.pod.uid != target.uid:
            raise RequestRejected(503, f"Nothing runs in pod {target.pod}: its node is simulated or gone.")
        await worker.touch()
        return await self.agent.parts.network.dial(target.uid, port)
