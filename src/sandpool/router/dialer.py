"""Dialers: connect the router to a port of a pod, over the network or through the node agent in the same process."""

from __future__ import annotations

import asyncio
import socket

from sandpool.kube.pod_access import PodAsleep
from sandpool.node.agent import NodeAgent
from sandpool.node.pods.binding import NotBound
from sandpool.node.sleep.suspension import sandbox_of
from sandpool.router.broker import not_here
from sandpool.router.targets import SandboxAsleep, Target


async def connect(host: str, port: int) -> socket.socket:
    """Return a connected, non-blocking socket. Raises ``OSError``."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def by_address(target: Target, port: int) -> socket.socket:
    """Dial the address of the pod, as any client in the pod network does."""
    return await connect(target.address, port)


class NodeDialer:
    """Dials pods of the node agent in this process, and no others. NetworkPolicies do not apply, as for probes.
    ``agent`` is None where no node runs pods."""

    def __init__(self, agent: NodeAgent | None) -> None:
        self.agent = agent

    async def __call__(self, target: Target, port: int) -> socket.socket:
        worker = None if self.agent is None else self.agent.find(target.namespace, target.pod)
        if self.agent is None or worker is None or worker.state.pod.uid != target.uid:
            raise not_here(target.pod)
        with worker.clients.client():
            try:
                await worker.ensure_thawed()
            except PodAsleep as error:
                owner = sandbox_of(worker.state.pod.object)
                if owner is None:
                    raise not_here(target.pod) from error
                raise SandboxAsleep(*owner) from error
            try:
                await worker.variables()  # what the program behind the port starts has them
            except NotBound as error:
                raise TimeoutError(f"pod {target.pod}: {error}") from error
            return await self.agent.parts.network.dial(target.uid, port)
