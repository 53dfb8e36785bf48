"""Access to simulated pods: functions of the test act as commands."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from sandpool.api.resource import Object, SharedObject
from sandpool.kube.pod_access import LogQuery, PodAccessError, StreamClient

#: Acts as a command: reads standard input from the stream and returns the exit code.
Play = Callable[[tuple[str, ...], StreamClient], Awaitable[int]]


class FakePodAccess:
    """``ports`` maps ports of a pod to local ones; other ports refuse connections. ``log`` is the content of every
    log."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.ports: dict[int, int] = {}  # of the pod -> of this machine
        self.log: list[bytes] = []
        self.queries: list[LogQuery] = []
        self.more: asyncio.Event | None = None  # a log that is followed ends when it is set
        self.summary: Object | None = None  # of the node
        self.running = 0  # commands under way

    def serves(self, pod: SharedObject) -> bool:
        return True

    async def execute(self, pod: SharedObject, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        if command[0] == "impossible":
            raise PodAccessError(f"container {container} is not running")
        self.running += 1
        try:
            return await self.play(command, client)
        finally:
            self.running -= 1

    async def attach(self, pod: SharedObject, container: str, client: StreamClient) -> int:
        return await self.execute(pod, container, ("attach", container), client)

    async def dial(self, pod: SharedObject, port: int, user: Object) -> socket.socket:
        if port not in self.ports:
            raise ConnectionRefusedError(111, "Connection refused")
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[port]))
        return sock

    async def stats(self, node: str) -> Object | None:
        return self.summary

    async def logs(self, pod: SharedObject, query: LogQuery) -> AsyncIterator[bytes]:
        self.queries.append(query)
        for line in self.log:
            yield line
        if query.follow and self.more is not None:
            await self.more.wait()
            yield b"the last\n"
