"""One watch for all claims of a client, however many of them are waited for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random
from typing import Any, Final, cast

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Expired, Forbidden, Unauthorized
from sandpool.kube.transport import WatchEvent
from sandpool.kube.user_agent import shared_context

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_Queue = asyncio.Queue["WatchEvent | ApiError"]


class ClaimWatch:
    """Distributes the events of the claims with a label to those who wait for one of them.

    The watch is opened by the first waiter and stays open until ``close``. It is resumed after errors, and the claims
    are listed again if the server has forgotten the version.
    """

    def __init__(self, client: Client, namespace: str, selector: str, rng: Random | None = None) -> None:
        self.client = client
        self.namespace = namespace
        self.selector = selector
        self._backoff = Backoff[None](rng or Random(), first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, jitter=0.5)
        self._queues: defaultdict[str, set[_Queue]] = defaultdict(set)
        self._latest: dict[str, WatchEvent] = {}
        self._running: asyncio.Task[None] | None = None
        self._refusal: ApiError | None = None

    async def events(self, name: str, version: str | None) -> AsyncIterator[WatchEvent]:
        """Yield the latest state of a claim, unless it has ``version``, and then every later event.

        Raises ``ApiError`` if the watch is not allowed."""
        if self._refusal is not None:
            raise self._refusal
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="claim watch", context=shared_context())
        queue: _Queue = asyncio.Queue()
        latest = self._latest.get(name)
        if latest is not None and latest.object["metadata"]["resourceVersion"] != version:
            queue.put_nowait(latest)
        self._queues[name].add(queue)
        try:
            while True:
                event = await queue.get()
                if isinstance(event, ApiError):
                    raise event
                yield event
        finally:
            self._queues[name].discard(queue)
            if not self._queues[name]:
                del self._queues[name]

    async def close(self) -> None:
        """End the watch."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        version: str | None = None
        while True:
            try:
                if version == "":
                    version = await self._list()
                async for event in self._stream(version):
                    version = event.object["metadata"]["resourceVersion"]
                    self._backoff.forget(None)
                    if event.type != "BOOKMARK":
                        self._deliver(event)
                await asyncio.sleep(self._backoff.next_delay(None))  # the server ends a watch from time to time
            except Expired:
                version = ""  # list before the next watch
            except (Unauthorized, Forbidden) as error:
                self._refusal = error
                for queue in [each for queues in self._queues.values() for each in queues]:
                    queue.put_nowait(error)
                return
            except (ApiError, OSError):
                await asyncio.sleep(self._backoff.next_delay(None))

    async def _stream(self, version: str | None) -> AsyncIterator[WatchEvent]:
        events = self.client.watch(
            SANDBOX_CLAIM, self.namespace, label_selector=self.selector, resource_version=version
        )
        async with aclosing(cast("Any", events)) as stream:
            async for event in stream:
                yield event

    async def _list(self) -> str:
        listed = await self.client.list(SANDBOX_CLAIM, self.namespace, label_selector=self.selector)
        present = {claim["metadata"]["name"]: claim for claim in listed["items"]}
        for name in self._latest.keys() - present.keys():
            self._deliver(WatchEvent("DELETED", self._latest[name].object))
        for claim in present.values():
            self._deliver(WatchEvent("MODIFIED", claim))
        return str(listed["metadata"]["resourceVersion"])

    def _deliver(self, event: WatchEvent) -> None:
        name = event.object["metadata"]["name"]
        if event.type == "DELETED":
            self._latest.pop(name, None)
        else:
            self._latest[name] = event
        for queue in self._queues.get(name, ()):
            queue.put_nowait(event)
