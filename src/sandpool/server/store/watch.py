"""Who hears of a change: subscriptions to one table, found by what they listen to and never by walking all of them.

Three hundred clients each waiting for their own claim are three hundred subscriptions, and a change concerns one of
them. So subscriptions are kept by their scope (everything, a namespace, a single object) and a change is handed to
at most three small groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sandpool.server.store.entry import Change, Key

# A client that reads slower than the world changes is cut off: it comes back from its last resourceVersion, or lists
# again. The bound is on changes, whose bytes are shared with the history.
MAX_BACKLOG = 20_000


class Overrun(Exception):
    """The subscriber fell too far behind."""


class Subscription:
    """Changes of one scope, in order, from the moment of subscribing on."""

    def __init__(self, hub: WatchHub, namespace: str | None, name: str | None, backlog: Iterable[Change]) -> None:
        self.namespace = namespace
        self.name = name
        self._hub = hub
        self._changes: list[Change] = list(backlog)
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._overrun = False

    def deliver(self, change: Change) -> None:
        if len(self._changes) >= MAX_BACKLOG:
            self._overrun = True
            self._changes.clear()
        elif not self._overrun:
            self._changes.append(change)
        self._wake()

    def close(self) -> None:
        """End the subscription: a waiting reader gets what is there, then nothing more."""
        if not self._closed:
            self._closed = True
            self._hub.leave(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, timeout: float | None = None) -> list[Change] | None:
        """Everything that has happened since the last call, waiting for the first of it. An empty list means the
        time-out passed; None means the subscription has ended."""
        if not self._changes and not self._closed and not self._overrun:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._wake) if timeout is not None else None
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        if self._overrun:
            raise Overrun
        if self._changes:
            changes, self._changes = self._changes, []
            return changes
        return None if self._closed else []


# In the order in which they joined, so that a replay wakes them in the same one.
_Group = dict[Subscription, None]


class WatchHub:
    """The subscriptions to one table."""

    def __init__(self) -> None:
        self._everything: _Group = {}
        self._by_namespace: dict[str, _Group] = {}
        self._by_key: dict[Key, _Group] = {}
        self._by_name: dict[str, _Group] = {}  # a name in whichever namespace

    def __len__(self) -> int:
        groups = (*self._by_namespace.values(), *self._by_key.values(), *self._by_name.values())
        return len(self._everything) + sum(map(len, groups))

    def join(self, namespace: str | None, name: str | None, backlog: Iterable[Change]) -> Subscription:
        subscription = Subscription(self, namespace, name, backlog)
        self._group(subscription)[subscription] = None
        return subscription

    def leave(self, subscription: Subscription) -> None:
        namespace, name = subscription.namespace, subscription.name
        group = self._group(subscription)
        group.pop(subscription, None)
        if not group:
            if name is None and namespace is not None:
                self._by_namespace.pop(namespace, None)
            elif name is not None and namespace is not None:
                self._by_key.pop((namespace, name), None)
            elif name is not None:
                self._by_name.pop(name, None)

    def _group(self, subscription: Subscription) -> _Group:
        namespace, name = subscription.namespace, subscription.name
        if name is None:
            return self._everything if namespace is None else self._by_namespace.setdefault(namespace, {})
        if namespace is None:
            return self._by_name.setdefault(name, {})
        return self._by_key.setdefault((namespace, name), {})

    def publish(self, change: Change) -> bool:
        """Hand a change to everybody it concerns; says whether there was anybody."""
        key = change.entry.key
        heard = False
        groups = (
            self._everything,
            self._by_namespace.get(key[0]),
            self._by_key.get(key),
            self._by_name.get(key[1]),
        )
        for group in groups:
            if group:
                heard = True
                for subscription in group:
                    subscription.deliver(change)
        return heard

    def close(self) -> None:
        groups = [self._everything, *self._by_namespace.values(), *self._by_key.values(), *self._by_name.values()]
        for group in groups:
            for subscription in list(group):
                subscription.close()
