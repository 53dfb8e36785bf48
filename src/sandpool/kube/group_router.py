"""The transport to two APIs: requests of some API groups go to one, all others to the other.

As an aggregated API server, Sandpool keeps its own kinds in this process and everything else is kube-apiserver's. A
controller has one client for both and cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent, stores_metadata_with_status


class GroupRouter:
    """``own`` serves the resources of ``groups``, ``other`` every other path.

    Whether a status may be written together with metadata is decided by ``own``, because only custom resources can.
    """

    def __init__(self, groups: Collection[str], own: Transport, other: Transport) -> None:
        self.own = own
        self.other = other
        self.stores_metadata_with_status = stores_metadata_with_status(own)
        self._prefixes = tuple(f"/apis/{group}/" for group in groups)

    async def request(self, request: Request) -> Any:
        return await self._side(request).request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        return self._side(request).stream(request)

    async def close(self) -> None:
        """Close both transports."""
        try:
            await self.own.close()
        finally:
            await self.other.close()

    def _side(self, request: Request) -> Transport:
        return self.own if request.path.startswith(self._prefixes) else self.other
