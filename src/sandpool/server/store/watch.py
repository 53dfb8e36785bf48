"""Watch subscriptions to one resource, indexed by scope.

Three hundred clients that wait for their own claim are three hundred subscriptions, and a change concerns one of them.
So subscriptions are indexed by scope (everything, a namespace, a name, a single object), and a change goes to at most
four small groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sandpool.api.resource import Key
from sandpool.server.store.entry import Change, Overrun

# A client that reads slower than objects change is disconnected; it resumes from its last resourceVersion or lists
# again. The bytes of changes are bounded by the history, which releases those that it no longer keeps.
MAX_BACKLOG = 20_000


class SubscriptionExpired(Exception):
    """The subscriber must start over: the objects continue elsewhere."""


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
        self._expired = False

    def deliver(self, change: Change) -> None:
        changes = self._changes
        if changes and (len(changes) >= MAX_BACKLOG or changes[0].released):
            self._overrun = True
            changes.clear()
        elif not self._overrun:
            changes.append(change)
        self._notify()

    def close(self, *, expired: bool = False) -> None:
        """End the subscription: the reader gets the remaining changes, then None, or ``SubscriptionExpired``."""
        if not self._closed:
            self._closed, self._expired = True, expired
            self._hub.leave(self)
            self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, timeout: float | None = None) -> list[Change] | None:
        """Wait for changes and return all since the last call. An empty list means that the timeout passed; None means
        that the subscription has ended. Raises ``Overrun``; so does a change that is released before it is read."""
        if not self._changes and not self._closed and not self._overrun:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._notify) if timeout is not None else None
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
        if self._expired:
            raise SubscriptionExpired
        return None if self._closed else []


# In the order of joining, so that a replay notifies them in the same order.
_Group = dict[Subscription, None]


class WatchHub:
    """The subscriptions to one resource."""

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
                self._by_key.pop(Key(namespace, name), None)
            elif name is not None:
                self._by_name.pop(name, None)

    def _group(self, subscription: Subscription) -> _Group:
        namespace, name = subscription.namespace, subscription.name
        if name is None:
            return self._everything if namespace is None else self._by_namespace.setdefault(namespace, {})
        if namespace is None:
            return self._by_name.setdefault(name, {})
        return self._by_key.setdefault(Key(namespace, name), {})

    def publish(self, change: Change) -> bool:
        """Deliver a change to matching subscriptions; returns whether there were any."""
        key = change.entry.key
        delivered = False
        groups = (
            self._everything,
            self._by_namespace.get(key[0]) if self._by_namespace else None,
            self._by_key.get(key) if self._by_key else None,
            self._by_name.get(key[1]) if self._by_name else None,
        )
        for group in groups:
            if group:
                delivered = True
                for subscription in group:
                    subscription.deliver(change)
        return delivered

    def close(self, *, expired: bool = False) -> None:
        groups = [self._everything, *self._by_namespace.values(), *self._by_key.values(), *self._by_name.values()]
        for group in groups:
            for subscription in list(group):
                subscription.close(expired=expired)
