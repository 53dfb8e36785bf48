"""Exec, port-forward and logs of pods for clients in the server's own process.

The requests are those of a client over the network: the same authorization, audit log and errors. Only the connection
is a byte stream in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from sandpool.api.kinds import POD
from sandpool.kube.byte_stream import MemoryByteStream
from sandpool.kube.errors import InternalError
from sandpool.kube.pod_client import (
    EXEC_PROTOCOLS,
    TUNNEL_PROTOCOL,
    ExecOptions,
    LogOptions,
    WebSocketExec,
    encode_query,
    upgrade_headers,
)
from sandpool.kube.websocket import ClientWebSocket, WebSocketBytes, new_key
from sandpool.server.request.messages import Response
from sandpool.server.serving.inprocess import InProcessTransport


class InProcessPodClient:
    """Access to the pods of the server in this process. ``close`` ends all sessions."""

    def __init__(self, transport: InProcessTransport) -> None:
        self._transport = transport
        self._sessions: set[asyncio.Task[None]] = set()

    async def execute(self, namespace: str, pod: str, options: ExecOptions) -> WebSocketExec:
        socket = await self._websocket(namespace, pod, "exec", options.query(), EXEC_PROTOCOLS[0])
        return WebSocketExec(socket, can_end_input=True)

    async def tunnel(self, namespace: str, pod: str) -> WebSocketBytes:
        return WebSocketBytes(await self._websocket(namespace, pod, "portforward", (), TUNNEL_PROTOCOL))

    async def logs(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        stream = (await self._request(namespace, pod, "log", options.query(), {})).stream
        if stream is None:
            raise InternalError("the server answered a request for a log with a document")
        try:
            async for batch in stream:
                for piece in batch:
                    yield piece.line()
        finally:
            await stream.aclose()

    async def close(self) -> None:
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)

    async def _websocket(
        self, namespace: str, pod: str, subresource: str, query: Sequence[tuple[str, str]], protocol: str
    ) -> ClientWebSocket:
        headers = {name.lower(): value for name, value in upgrade_headers(new_key(), (protocol,)).items()}
        upgrade = (await self._request(namespace, pod, subresource, query, headers)).upgrade
        if upgrade is None:
            raise InternalError(f"the server did not switch protocols for {subresource}")
        ours, theirs = MemoryByteStream.pair()

        async def serve() -> None:
            try:
                with suppress(OSError):
                    await upgrade.run(theirs)
            finally:
                await theirs.close()

        session = asyncio.create_task(serve(), name=f"{subresource} {namespace}/{pod}")
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)
        return ClientWebSocket(ours)

    async def _request(
        self, namespace: str, pod: str, subresource: str, query: Sequence[tuple[str, str]], headers: dict[str, str]
    ) -> Response:
        request = self._transport.new_request("GET", POD.path(namespace, pod, subresource), headers)
        request.raw_query = encode_query(query)
        request.query = dict(reversed(query))  # the first value of a repeated parameter
        return await self._transport.perform(request)
