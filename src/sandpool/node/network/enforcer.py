"""Keeps the firewall of a node's pods in line with the NetworkPolicies.

Changes that arrive together are enforced together. A caller that needs a change in force before it goes on (a pod must
not start with an open network) awaits ``enforce``. Changes of policies, namespaces and labels are enforced in the
background and retried with back-off; ``failure`` gives the reason until they are in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from sandpool.api.resource import Key, Object
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.retry import backoff_delay
from sandpool.kube.selectors import LabelSelector
from sandpool.node.network import ruleset
from sandpool.node.network.links import UPLINK
from sandpool.node.network.policy import EMPTY_FIREWALL, Firewall, PodEndpoint, PolicyCompiler, selectors

_log = logging.getLogger(__name__)

TABLE: Final = "sandpool"
# Seconds between retries; the delay doubles.
_RETRY_DELAY: Final = 1.0
_MAX_RETRY_DELAY: Final = 60.0

#: Runs an nft script in the router namespace. Raises ``OSError`` if nft fails.
Run = Callable[[str], Awaitable[None]]
#: Returns the current labels of a pod, by UID and key; None if the pod is unknown.
LabelsOf = Callable[[str, Key], Mapping[str, str] | None]


def _unknown(uid: str, key: Key) -> None:
    return None


class Enforcer:
    def __init__(self, run: Run, policies: Cache[Object], namespaces: Cache[Object], clock: Clock) -> None:
        self.run = run
        self.clock = clock
        self.policies = policies
        self.namespaces = namespaces
        self.labels_of: LabelsOf = _unknown  # the informer that reports label changes to ``relabel``
        self._endpoints: dict[str, PodEndpoint] = {}  # by pod UID
        self._enforced: Firewall | None = None  # None: unknown, so the next script replaces the whole table
        self._changes = 0  # requested so far
        self._in_force = 0  # how many of them are in force
        self._lock = asyncio.Lock()
        self._selectors: tuple[LabelSelector, ...] | None = None  # of all policies; None after a change of a policy
        self._compiler: PolicyCompiler | None = None  # likewise
        self._catching_up: asyncio.Task[None] | None = None
        self.failure = ""  # why the firewall is not what the policies say; empty if it is, or the update is under way
        policies.subscribe(self._changed)
        namespaces.subscribe(self._changed, on_change_of=_labels)

    async def add(self, uid: str, endpoint: PodEndpoint) -> None:
        """Add a pod. Returns when its policies are in force."""
        # A label change while the pod was being connected was reported before the pod was known here.
        labels = self.labels_of(uid, Key(endpoint.namespace, endpoint.name))
        self._endpoints[uid] = endpoint if labels is None else replace(endpoint, labels=labels)
        await self.enforce()

    async def remove(self, uid: str) -> None:
        if self._endpoints.pop(uid, None) is not None:
            await self.enforce()

    def relabel(self, uid: str, labels: dict[str, str]) -> None:
        """Apply new labels of a pod, in the background if they change which policies select it."""
        endpoint = self._endpoints.get(uid)
        if endpoint is None or endpoint.labels == labels:
            return
        self._endpoints[uid] = replace(endpoint, labels=labels)
        # An adoption changes labels that no policy selects by, and a burst of claims has hundreds of adoptions.
        if any(selector.matches(endpoint.labels) != selector.matches(labels) for selector in self._choices()):
            self._catch_up()

    async def enforce(self) -> None:
        """Return when every change made before the call is in force. Raises ``OSError`` if nft fails."""
        self._changes += 1
        wanted = self._changes
        async with self._lock:
            if self._in_force >= wanted:
                return  # the update of another caller has covered it
            covered = self._changes
            if self._compiler is None:
                self._compiler = PolicyCompiler(self.policies, self._namespace_labels())
            firewall = self._compiler.compile(self._endpoints.values())
            before, self._enforced = self._enforced, None
            try:
                if before is None:
                    await self.run(ruleset.full_script(firewall, TABLE, UPLINK))
                elif script := ruleset.update_script(before, firewall, TABLE, UPLINK):
                    await self.run(script)
            except OSError as error:
                self.failure = str(error)
                raise
            self._enforced, self._in_force, self.failure = firewall, covered, ""

    async def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        self._endpoints.clear()
        self._enforced = EMPTY_FIREWALL

    def _changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        self._selectors = self._compiler = None
        self._catch_up()

    def _choices(self) -> tuple[LabelSelector, ...]:
        if self._selectors is None:
            self._selectors = selectors(self.policies)
        return self._selectors

    def _catch_up(self) -> None:
        if not self._in_force:
            return  # before the first ``enforce``, which writes everything
        self._changes += 1
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._until_in_force(), name="network policies")

    async def _until_in_force(self) -> None:
        failures = 0
        while self._in_force < self._changes:
            try:
                await self.enforce()
            except Exception as error:  # noqa: BLE001 - no other task would retry
                # The rules in force stay in force until then.
                self.failure = str(error) or type(error).__name__
                _log.error("cannot enforce network policies: %s", error, exc_info=not isinstance(error, OSError))
                failures += 1
                await self.clock.sleep(backoff_delay(failures, first=_RETRY_DELAY, longest=_MAX_RETRY_DELAY))

    def _namespace_labels(self) -> dict[str, dict[str, str]]:
        return {each["metadata"]["name"]: _labels(each) for each in self.namespaces}


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
