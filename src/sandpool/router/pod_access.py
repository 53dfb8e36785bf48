"""The way into pods, with the router's own among them: its port is where the router listens."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Container

from sandpool.api.resource import Object
from sandpool.kube.pod_access import LogQuery, PodAccess, PodAccessError, StreamClient
from sandpool.router.registration import PORT

_ONLY_A_PORT = "it is part of the API server's process: only its port can be forwarded"


class RouterPodAccess:
    """``own`` are the UIDs of the router's pods, ``connect`` is to where it listens. All others are behind ``other``,
    which is None if nothing here runs pods."""

    def __init__(
        self, own: Container[str], connect: Callable[[], Awaitable[socket.socket]], other: PodAccess | None
    ) -> None:
        self.own = own
        self.connect = connect
        self.other = other

    def leads_to(self, pod: Object) -> bool:
        return pod["metadata"]["uid"] in self.own or (self.other is not None and self.other.leads_to(pod))

    async def execute(self, pod: Object, container: str, command: tuple[str, ...], client: StreamClient) -> int:
        return await self._door(pod).execute(pod, container, command, client)

    async def attach(self, pod: Object, container: str, client: StreamClient) -> int:
        return await self._door(pod).attach(pod, container, client)

    async def dial(self, pod: Object, port: int) -> socket.socket:
        if pod["metadata"]["uid"] not in self.own:
            return await self._door(pod).dial(pod, port)
        if port != PORT:
            raise ConnectionRefusedError(f"the router listens on port {PORT} only")
        return await self.connect()

    def logs(self, pod: Object, query: LogQuery) -> AsyncIterator[bytes]:
        return self._door(pod).logs(pod, query)

    def _door(self, pod: Object) -> PodAccess:
        metadata = pod["metadata"]
        if metadata["uid"] in self.own:
            raise PodAccessError(f'pod "{metadata["name"]}" is the router: {_ONLY_A_PORT}')
        if self.other is None:
            raise PodAccessError(f'pod "{metadata["name"]}" cannot be reached: no node of this server runs it')
        return self.other
