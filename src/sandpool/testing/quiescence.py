"""Detect quiescence with a manual clock and an API that runs in real time.

An API behind a socket takes real time to answer and to send watch events. The world is quiescent when no request is in
flight and every cache has the API's version of all written objects. Work that the API does by itself, such as garbage
collection, is not included.

A manual clock knows when all tasks of the event loop wait. An API in the same process also writes its journal in
threads; while a request is in flight there, time must not advance (``settle``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sandpool.api.resource import Key, ResourceType
from sandpool.engine.cache.store import Cache
from sandpool.kube.client import Client
from sandpool.kube.transport import Request
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.waiting import WITHIN

Caches = Iterable[tuple[ResourceType, Cache[Any]]]


async def settle(clock: ManualClock, *wires: FaultyTransport) -> None:
    """Run until all tasks wait and no request of the transports is in flight."""
    before = -1
    while (sent := sum(len(wire.requests) for wire in wires)) != before:
        before = sent
        await clock.settle()
        for wire in wires:
            while wire.busy:
                await wire.quiet()
                await clock.settle()


class Quiescence:
    """Quiescence of one namespace: its components write through ``wires`` and read from ``caches``.

    ``client`` reads the API's state.
    """

    def __init__(
        self,
        clock: ManualClock,
        client: Client,
        namespace: str,
        wires: Iterable[FaultyTransport],
        caches: Callable[[], Caches],
    ) -> None:
        self.clock = clock
        self.client = client
        self.namespace = namespace
        self.wires = tuple(wires)
        self.caches = caches
        self._seen = [0 for _ in self.wires]  # by transport: requests that all caches reflect

    async def reached(self) -> None:
        """Wait until the world is quiescent at the present time."""
        async with asyncio.timeout(WITHIN):
            while True:
                await settle(self.clock, *self.wires)
                sent = self._sent()
                if await self._caught_up():
                    await self.clock.settle()
                    if self._sent() == sent:
                        self._seen = sent
                        return
                elif self._sent() == sent:
                    await asyncio.sleep(0.002)  # for data on a socket

    async def passed(self, seconds: float) -> None:
        """Advance the time from one timer to the next, and reach quiescence after each."""
        clock = self.clock
        end = clock.monotonic() + seconds
        await self.reached()
        while (alarm := clock.next_alarm) is not None and clock.monotonic() + alarm <= end:
            await clock.jump()
            if self._sent() != self._seen:
                await self.reached()
        await clock.advance(end - clock.monotonic())
        await self.reached()

    def _sent(self) -> list[int]:
        return [len(wire.requests) for wire in self.wires]

    async def _caught_up(self) -> bool:
        """Whether the caches match the API for all types written since the last quiescence."""
        written = [
            request
            for wire, seen in zip(self.wires, self._seen, strict=True)
            for request in wire.requests[seen:]
            if request.method != "GET"
        ]
        caches = [(type, cache) for type, cache in self.caches() if any(self._is_about(type, each) for each in written)]
        types = dict.fromkeys(type for type, _ in caches)
        lists = await asyncio.gather(*(self.client.list(type, self.namespace) for type in types))
        held = {
            type: {Key.of(each): each["metadata"]["resourceVersion"] for each in found["items"]}
            for type, found in zip(types, lists, strict=True)
        }
        return all(
            len(cache) == len(held[type]) and all(cache.version(key) == version for key, version in held[type].items())
            for type, cache in caches
        )

    def _is_about(self, type: ResourceType, request: Request) -> bool:
        path = type.path(self.namespace)
        return request.path == path or request.path.startswith(f"{path}/")
