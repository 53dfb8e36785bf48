"""The output of a container, for somebody who is attached to it."""

from __future__ import annotations

import asyncio
from typing import Final

from sandpool.kube.pod_access import StreamClient

# Bytes that may wait for a client.
MOST_BEHIND: Final = 16 << 20


class AttachedOutput:
    """What a container writes, for a client who reads it at a pace of their own. The container does not wait for them
    and nothing is left out, so a client who stays far behind is given up: what waits for them is in our memory."""

    def __init__(self, client: StreamClient) -> None:
        self.client = client
        self.overflowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._waiting = 0  # bytes

    def write(self, stream: str, data: bytes) -> None:
        if self.overflowed.done():
            return
        self._waiting += len(data)
        self._pieces.put_nowait((stream, data))
        if self._waiting > MOST_BEHIND:
            self.overflowed.set_result(None)

    def finish(self) -> None:
        """Nothing more will be heard."""
        self._pieces.put_nowait(None)

    async def show(self) -> None:
        while (piece := await self._pieces.get()) is not None:
            stream, data = piece
            await self.client.write(data, error=stream == "stderr")
            self._waiting -= len(data)
