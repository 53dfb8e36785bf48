"""The requests that a router serves, as the sleep of pods needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class RouterRequests(Protocol):
    """A router whose connections to pods the node has made."""

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        """Return for how many seconds the router has sent no request to each of these pods, by UID; 0 while it serves
        one. Close the idle connections to pods for which that is at least the given number, so that the next request
        opens a new one and is noticed. Raises ``OSError`` or ``ValueError`` if the router does not answer."""
        ...


class NoRouter:
    """Requests where no router runs beside the node."""

    async def quiesce(self, pods: Mapping[str, float]) -> Mapping[str, float]:
        return dict.fromkeys(pods, float("inf"))
