"""Creates claims and measures their latency.

The latency of a claim runs from its due time until the client's own watch delivers the first event with Ready=True. One
watch serves all claims of a run, as a client's informer does. The due time counts even if this process is too busy to
send the create call then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, cast

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Object, SharedObject
from sandpool.bench.scenarios import Wave
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import WatchEvent

#: Seconds between progress messages.
SHOW_SECONDS: Final = 1.0
_BAR: Final = 20  # characters

# A function that reports one line of progress.
Show = Callable[[str], object]


@dataclass(slots=True)
class Claim:
    """One claim of a run; times are the clock's monotonic seconds."""

    name: str
    due: float
    sent: float = 0.0
    ready: float | None = None
    sandbox: str = ""
    answered: float | None = None  # the create call
    seen: float | None = None  # by the watch
    assigned: float | None = None  # the watch has brought the name of its sandbox

    @property
    def latency(self) -> float | None:
        return None if self.ready is None else self.ready - self.due


@dataclass(slots=True)
class Outcome:
    """The outcome of a load. ``failed`` holds the messages of refused creates. ``given_up`` is the second of a wave at
    which too many claims waited to create more."""

    claims: list[Claim] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    given_up: float | None = None

    @property
    def latencies(self) -> list[float]:
        return [claim.latency for claim in self.claims if claim.latency is not None]

    @property
    def seconds(self) -> float:
        """Return the seconds from the first create call to the last Ready."""
        ready = [claim.ready for claim in self.claims if claim.ready is not None]
        return max(ready) - min(claim.due for claim in self.claims) if ready else 0.0

    @property
    def throughput(self) -> float:
        """Return served claims divided by the seconds from the first claim until the last one was ready."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0


class Load:
    """Claims on one pool, used as ``async with``: the watch is open inside.

    The load stops creating at ``most_waiting`` waiting claims: a system that far behind does not catch up. With a
    ``lifetime`` each claim is deleted that many seconds after it was ready."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        namespace: str,
        pool: str,
        *,
        most_waiting: float = float("inf"),
        lifetime: float | None = None,
        show: Show = lambda text: None,
    ) -> None:
        self.client = client
        self.clock = clock
        self.namespace = namespace
        self.pool = pool
        self.most_waiting = most_waiting
        self.lifetime = lifetime
        self.show = show
        self.outcome = Outcome()
        self._waiting: dict[str, Claim] = {}  # by name, claims that are not known to be ready
        self._settled = asyncio.Event()  # set while no claim waits
        self._watching: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Load:
        version = (await self.client.list(SANDBOX_CLAIM, self.namespace, limit=1))["metadata"]["resourceVersion"]
        self._watching = asyncio.create_task(self._watch(version), name="watch of the load")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._watching is not None
        ending = {self._watching, *self._leaving}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def run(
        self, waves: list[Wave], *, timeout: float = 60.0, between: Callable[[], Awaitable[None]] | None = None
    ) -> Outcome:
        """Create all claims. A claim that is not ready ``timeout`` seconds after its wave stays without a time.

        ``between`` is awaited between waves."""
        for number, wave in enumerate(waves, 1):
            if between is not None and number > 1:
                await between()
            title = f"wave {number} of {len(waves)}: " if len(waves) > 1 else ""
            before = len(self.outcome.claims)
            telling = asyncio.create_task(self._report(title, before, len(wave)), name="progress")
            try:
                await self._make(wave)
                await self._until_settled(timeout)
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
        return self.outcome

    async def _make(self, wave: Wave) -> None:
        begin = self.clock.monotonic()
        sending: set[asyncio.Task[None]] = set()
        for offset in wave:
            wait = begin + offset - self.clock.monotonic()
            if wait > 0:
                await self.clock.sleep(wait)
            if len(self._waiting) >= self.most_waiting:
                self.outcome.given_up = self.clock.monotonic() - begin
                break
            claim = Claim(f"claim-{len(self.outcome.claims)}", begin + offset)
            self.outcome.claims.append(claim)
            self._waiting[claim.name] = claim
            task = asyncio.create_task(self._send(claim))
            sending.add(task)
            task.add_done_callback(sending.discard)
        await asyncio.gather(*sending)

    async def _send(self, claim: Claim) -> None:
        claim.sent = self.clock.monotonic()
        try:
            await self.client.create(SANDBOX_CLAIM, new_claim(claim.name, self.pool), self.namespace)
            claim.answered = self.clock.monotonic()
        except (ApiError, OSError) as error:
            self.outcome.failed.append(f"{claim.name}: {error}")
            del self._waiting[claim.name]

    async def _until_settled(self, timeout: float) -> None:
        """Wait until every claim is ready, or until the timeout ends."""
        if not self._waiting:
            return
        self._settled.clear()
        assert self._watching is not None
        settled = asyncio.create_task(self._settled.wait())
        late = asyncio.create_task(self.clock.sleep(timeout))
        await asyncio.wait([settled, late, self._watching], return_when=asyncio.FIRST_COMPLETED)
        for task in (settled, late):
            task.cancel()
        await asyncio.gather(settled, late, return_exceptions=True)
        if self._watching.done():
            await self._watching  # raises what ended it

    async def _watch(self, version: str) -> None:
        while True:
            stream = self.client.watch(SANDBOX_CLAIM, self.namespace, resource_version=version)
            async with aclosing(cast(AsyncGenerator[WatchEvent, None], stream)) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._observe(event.object)

    def _observe(self, object: SharedObject) -> None:
        claim = self._waiting.get(object["metadata"]["name"])
        if claim is None:
            return
        now = self.clock.monotonic()
        if claim.seen is None:
            claim.seen = now
        if claim.assigned is None and assigned_sandbox(object):
            claim.assigned = now
        if is_ready(object):
            claim.ready = now
            claim.sandbox = assigned_sandbox(object)
            del self._waiting[claim.name]
            if not self._waiting:
                self._settled.set()
            if self.lifetime is not None:
                task = asyncio.create_task(self._leave(claim.name, self.lifetime))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _leave(self, name: str, lifetime: float) -> None:
        await self.clock.sleep(lifetime)
        try:
            await self.client.delete(SANDBOX_CLAIM, name, self.namespace)
        except (ApiError, OSError) as error:
            self.outcome.failed.append(f"{name}: it was not deleted: {error}")

    async def _report(self, title: str, before: int, total: int) -> None:
        while True:
            await self.clock.sleep(SHOW_SECONDS)
            made = len(self.outcome.claims) - before
            served = made - len(self._waiting)
            self.show(
                f"{title}{_bar(served / total)} {made:,} of {total:,} claims made, {len(self._waiting):,} waiting"
            )


def _bar(share: float) -> str:
    full = int(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}]"


def new_claim(name: str, pool: str) -> Object:
    return {
        "apiVersion": SANDBOX_CLAIM.api_version,
        "kind": SANDBOX_CLAIM.kind,
        "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": pool}},
    }


def assigned_sandbox(claim: SharedObject) -> str:
    return ((claim.get("status") or {}).get("sandbox") or {}).get("name") or ""
