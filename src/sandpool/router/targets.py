"""Resolve the name of a sandbox to its pod, from informer caches of Sandboxes and Pods.

Only sandboxes that were adopted by a claim or created on their own can be reached; members of a warm pool cannot. The
pod must be owned by the sandbox and be ready.

Clients send the address that they last saw. An address that the sandbox has, or had before it was suspended, is
ignored. A request with any other address is rejected: it is meant for another machine.

A sandbox that has lost its state (condition StateLost) looks like before to a client that does not watch the API. So
the first request after the loss is rejected with 410 and the reason; the next ones are forwarded. A client opts out
with a header. Several routers each reject one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from random import Random
from typing import Any, Final

from sandpool.api.conditions import STATE_LOST
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import POD_NAME
from sandpool.api.resource import Key
from sandpool.api.views import PodView, SandboxView, pod_view, sandbox_view
from sandpool.api.views.times import parse_time
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import RateLimiter
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.router.destination import ACCEPT_STATE_LOSS, Destination, RequestRejected, invalid_address

#: Sandboxes that do not exist, or cannot be reached, and are read from the API because a watch may be behind: per
#: second and at once, in all and in one namespace.
_MISSES: Final = (100.0, 100)
_MISSES_PER_NAMESPACE: Final = (20.0, 50)
#: Earlier addresses of a sandbox that are still accepted from clients.
_MAX_ADDRESSES: Final = 8
#: A router that starts reports losses of this age: the client may not have sent a request since.
_RECENT: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Target:
    """A pod that can be connected to."""

    namespace: str
    pod: str
    uid: str
    address: str


class SandboxAsleep(RequestRejected):
    """The sandbox sleeps, or was resumed and is not ready yet. The request can wait for it."""

    def __init__(self, name: str, uid: str) -> None:
        super().__init__(409, f"Sandbox {name} is asleep.")
        self.name = name
        self.uid = uid


class SandboxResolver:
    """``run`` watches the API and must run as a task; ``synced`` waits for the first lists."""

    def __init__(self, client: Client, clock: Clock, rng: Random, *, namespace: str | None = None) -> None:
        self.client = client
        self.clock = clock
        self._misses = RateLimiter(*_MISSES, clock)
        self._misses_of: dict[str, RateLimiter] = {}  # by namespace
        self.sandboxes = Cache(sandbox_view, name="router sandboxes")
        self.pods = Cache(pod_view, name="router pods")
        self.clock = clock
        self._addresses: dict[str, deque[str]] = {}  # by UID of the sandbox, the latest address last
        self._unreported: dict[str, str] = {}  # state losses that no client was told of, by UID of the sandbox
        self._resuming: set[str] = set()  # UIDs of sandboxes that slept and are not ready yet
        self._changed = asyncio.Event()  # replaced at every change that a request may wait for
        self.pods.subscribe(self._pod_changed, on_change_of=lambda pod: pod.ips)
        self.pods.subscribe(self._progressed, on_change_of=lambda pod: (pod.uid, pod.ready, pod.ips, pod.deleting))
        self.sandboxes.subscribe(self._sleep_changed, on_change_of=lambda sandbox: (sandbox.uid, sandbox.asleep))
        self.sandboxes.subscribe(self._sandbox_changed, on_change_of=lambda sandbox: sandbox.uid)
        self.sandboxes.subscribe(self._state_lost, on_change_of=lambda sandbox: sandbox.status.condition(STATE_LOST))
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, SANDBOX, self.sandboxes, clock, rng, namespace=namespace),
            Reflector(client, POD, self.pods, clock, rng, namespace=namespace),
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"router: {reflector.type.plural}")

    async def synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    @property
    def is_synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def find(self, destination: Destination) -> Target:
        """Raises ``RequestRejected`` with the reason, at once: a client does not wait for a sandbox to become ready."""
        sandbox = self.sandboxes.get(Key(destination.namespace, destination.sandbox))
        if sandbox is None or (sandbox.owner is not None and sandbox.owner.type is SANDBOX_WARM_POOL):
            raise RequestRejected(404, f"Sandbox {destination.sandbox} not found in namespace {destination.namespace}.")
        if destination.uid and destination.uid != sandbox.uid:
            raise RequestRejected(404, f"Sandbox {destination.sandbox} is not the one with UID {destination.uid}.")
        if sandbox.asleep:
            raise SandboxAsleep(sandbox.name, sandbox.uid)
        try:
            target = self._target(destination, sandbox)
        except RequestRejected as rejection:
            if sandbox.uid in self._resuming and rejection.status == 503:
                raise SandboxAsleep(sandbox.name, sandbox.uid) from rejection
            raise
        self._resuming.discard(sandbox.uid)
        return target

    def _target(self, destination: Destination, sandbox: SandboxView) -> Target:
        name = sandbox.annotations.get(POD_NAME) or sandbox.name
        pod = self.pods.get(Key(sandbox.namespace, name))
        if pod is None or pod.owner is None or pod.owner.uid != sandbox.uid or pod.deleting:
            if sandbox.suspended:  # for an unknown time: with 503, clients would retry
                raise RequestRejected(409, f"Sandbox {destination.sandbox} is suspended.")
            raise RequestRejected(503, f"Sandbox {destination.sandbox} has no running pod.")
        if not destination.accepts_loss and sandbox.uid in self._unreported:
            raise RequestRejected(410, self._unreported.pop(sandbox.uid))
        if not pod.ready or not pod.ips:
            raise RequestRejected(503, f"Sandbox {destination.sandbox} is not ready.")
        if destination.hint and destination.hint not in self._addresses.get(sandbox.uid, ()):
            raise _wrong_address(destination)
        return Target(pod.namespace, pod.name, pod.uid, pod.ips[0])

    async def until_found(self, destination: Destination) -> Target:
        """Wait until the caches show a pod of a sandbox that was resumed. Raises ``RequestRejected``."""
        while True:
            changed = self._changed
            try:
                return self.find(destination)
            except RequestRejected as rejection:
                if rejection.status != 503 and not isinstance(rejection, SandboxAsleep):
                    raise
            await changed.wait()

    async def refresh(self, destination: Destination) -> bool:
        """Read a sandbox and its pod from the API into the caches. Returns False if that was not possible, or if there
        were many refreshes in vain: clients can name sandboxes that do not exist. Those of one namespace leave most
        refreshes to others."""
        namespace, name = destination.namespace, destination.sandbox
        limits = (self._misses, self._misses_in(namespace))
        if any(limit.delay for limit in limits):
            return False
        for limit in limits:
            limit.take()
        known = self._versions(Key(namespace, name))
        try:
            sandbox = await self.client.get(SANDBOX, name, namespace)
            self.sandboxes.record_write(sandbox)
            pod = (sandbox["metadata"].get("annotations") or {}).get(POD_NAME) or name
            self.pods.record_write(await self.client.get(POD, pod, namespace))
        except (ApiError, ConnectionError, TimeoutError):
            return False  # what is known about it stays
        if self._versions(Key(namespace, name)) != known:
            for limit in limits:
                limit.give_back()  # the watch was behind
        return True

    def _versions(self, key: Key) -> tuple[str | None, str | None]:
        """The versions of a sandbox and of its pod that the caches have."""
        sandbox = self.sandboxes.get(key)
        pod = key if sandbox is None else Key(key.namespace, sandbox.annotations.get(POD_NAME) or sandbox.name)
        return self.sandboxes.version(key), self.pods.version(pod)

    def _misses_in(self, namespace: str) -> RateLimiter:
        """The limit of a namespace. Those of namespaces without recent misses are forgotten."""
        limit = self._misses_of.get(namespace)
        if limit is None:
            self._misses_of = {name: each for name, each in self._misses_of.items() if not each.is_full}
            limit = self._misses_of[namespace] = RateLimiter(*_MISSES_PER_NAMESPACE, self.clock)
        return limit

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if new is not None and new.owner is not None and new.owner.type is SANDBOX:
            known = self._addresses.setdefault(new.owner.uid, deque(maxlen=_MAX_ADDRESSES))
            known.extend(ip for ip in new.ips if ip not in known)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is None and old is not None:
            self._addresses.pop(old.uid, None)
            self._unreported.pop(old.uid, None)

    def _sleep_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if old is not None and old.asleep and new is not None and new.uid == old.uid and not new.suspended:
            self._resuming.add(new.uid)
        elif old is not None:
            self._resuming.discard(old.uid)
        self._progressed(key, None, None)

    def _progressed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _state_lost(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        lost = None if new is None else new.status.condition(STATE_LOST)
        if new is None or lost is None:
            return
        known = None if old is None else old.status.condition(STATE_LOST)
        if known is not None and known["message"] == lost["message"]:
            return
        when = parse_time(lost["lastTransitionTime"])
        if old is not None or (when is not None and self.clock.now() - when < _RECENT):
            detail = f"{lost['message']} (StateLost: {lost['reason']}, {lost['lastTransitionTime']})"
            advice = f"The next request is forwarded; send {ACCEPT_STATE_LOSS.title()}: true to be forwarded at once."
            self._unreported[new.uid] = f"Sandbox {new.name} has lost its state. {detail} {advice}"


def _wrong_address(destination: Destination) -> RequestRejected:
    address = ip_address(destination.hint)
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        return invalid_address()
    # A client with a stale view retries after 503, with the current address.
    return RequestRejected(503, f"Sandbox {destination.sandbox} does not have the address {destination.hint}.")
