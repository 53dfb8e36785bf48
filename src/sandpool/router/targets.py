"""Which pod is behind the name of a sandbox, from what the API shows.

Only a sandbox that was handed out, or that was made on its own, can be reached: those that wait in a pool are nobody's
and have no name for anybody. The pod must be its own and be ready.

Clients send along the address they last saw. One that the sandbox has, or had before it was suspended, does no harm and
no good; any other is somebody who wants to get elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random
from typing import Any, Final

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.labels import POD_NAME
from sandpool.api.views import PodView, SandboxView
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache, Key
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.router.destination import Destination, RequestRejected, invalid_address

#: Addresses of a sandbox that are still taken from who sends them.
_REMEMBERED: Final = 8


@dataclass(frozen=True, slots=True)
class Target:
    """A pod that can be connected to."""

    namespace: str
    pod: str
    uid: str
    address: str


class SandboxResolver:
    """``run`` is to be started as a task; ``synced`` waits until everything is known."""

    def __init__(self, client: Client, clock: Clock, random: Random, *, namespace: str | None = None) -> None:
        self.sandboxes = Cache(SandboxView.from_object, name="sandboxes of the router")
        self.pods = Cache(PodView.from_object, name="pods of the router")
        self._known: dict[str, deque[str]] = {}  # by UID of the sandbox: the addresses it has had, the newest last
        self.pods.subscribe(self._pod_changed, on_change_of=lambda pod: pod.ips)
        self.sandboxes.subscribe(self._sandbox_changed, on_change_of=lambda sandbox: sandbox.uid)
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, SANDBOX, self.sandboxes, clock, random, namespace=namespace),
            Reflector(client, POD, self.pods, clock, random, namespace=namespace),
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"{reflector.type.plural} of the router")

    async def synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    @property
    def is_synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def find(self, wanted: Destination) -> Target:
        """Raises ``RequestRejected``: at once and with the reason, so that nobody waits for what will not come."""
        sandbox = self.sandboxes.get(Key(wanted.namespace, wanted.sandbox))
        if sandbox is None or (sandbox.owner is not None and sandbox.owner.is_a(SANDBOX_WARM_POOL)):
            raise RequestRejected(404, f"Sandbox {wanted.sandbox} not found in namespace {wanted.namespace}.")
        if wanted.uid and wanted.uid != sandbox.uid:
            raise RequestRejected(404, f"Sandbox {wanted.sandbox} is not the one with UID {wanted.uid}.")
        name = sandbox.annotations.get(POD_NAME) or sandbox.name
        pod = self.pods.get(Key(sandbox.namespace, name))
        if pod is None or pod.owner is None or pod.owner.uid != sandbox.uid or pod.deleting:
            if sandbox.suspended:  # for as long as somebody likes: with 503, clients would try again for a while
                raise RequestRejected(409, f"Sandbox {wanted.sandbox} is suspended.")
            raise RequestRejected(503, f"Sandbox {wanted.sandbox} has no running pod.")
        if not pod.ready or not pod.ips:
            raise RequestRejected(503, f"Sandbox {wanted.sandbox} is not ready.")
        if wanted.hint and wanted.hint not in self._known.get(sandbox.uid, ()):
            raise _wrong_address(wanted)
        return Target(pod.namespace, pod.name, pod.uid, pod.ips[0])

    def _pod_changed(self, key: Key, old: PodView | None, new: PodView | None) -> None:
        if new is not None and new.owner is not None and new.owner.is_a(SANDBOX):
            known = self._known.setdefault(new.owner.uid, deque(maxlen=_REMEMBERED))
            known.extend(ip for ip in new.ips if ip not in known)

    def _sandbox_changed(self, key: Key, old: SandboxView | None, new: SandboxView | None) -> None:
        if new is None and old is not None:
            self._known.pop(old.uid, None)


def _wrong_address(wanted: Destination) -> RequestRejected:
    address = ip_address(wanted.hint)
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        return invalid_address()
    # A client that is merely behind asks again with the address of now.
    return RequestRejected(503, f"Sandbox {wanted.sandbox} does not have the address {wanted.hint}.")
