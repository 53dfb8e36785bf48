"""Keeps the firewall of a node's pods what NetworkPolicies say.

However many things change at once, they are enforced together, and whoever needs a change to be in force before going
on (a pod must not start with an open network) waits for ``enforce``. A change that nobody waits for and that cannot be
enforced is tried again and again, and ``failure`` says why until it is in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache, Key
from sandpool.engine.clock import Clock
from sandpool.kube.selectors import LabelSelector
from sandpool.node.network import ruleset
from sandpool.node.network.links import UPLINK
from sandpool.node.network.policy import NOTHING, Compiler, Endpoint, Firewall, selectors

_log = logging.getLogger(__name__)

TABLE: Final = "sandpool"
# Before what could not be enforced is tried again, in seconds; the pause doubles.
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

#: Gives nft a script to carry out in the switchyard; fails if nft does.
Run = Callable[[str], Awaitable[None]]
#: The labels a pod has now, by UID and key; None if it is not known.
LabelsOf = Callable[[str, Key], Mapping[str, str] | None]


def _unknown(uid: str, key: Key) -> None:
    return None


class Enforcer:
    def __init__(self, run: Run, policies: Cache[Object], namespaces: Cache[Object], clock: Clock) -> None:
        self.run = run
        self.clock = clock
        self.policies = policies
        self.namespaces = namespaces
        self.labels_of: LabelsOf = _unknown  # what ``relabel`` is told changes of
        self._endpoints: dict[str, Endpoint] = {}  # by UID of the pod
        self._enforced: Firewall | None = None  # None: not known; everything is to be written
        self._changes = 0  # announced so far
        self._in_force = 0  # of those
        self._lock = asyncio.Lock()
        self._selectors: tuple[LabelSelector, ...] | None = None  # of the policies; None: look again
        self._compiler: Compiler | None = None  # likewise
        self._catching_up: asyncio.Task[None] | None = None
        self.failure = ""  # why what is in force is not what policies say; empty if it is, or will be at once
        policies.subscribe(self._changed)
        namespaces.subscribe(self._changed, on_change_of=_labels)

    @property
    def enforced(self) -> Firewall:
        """What is in force, as far as is known."""
        return self._enforced or NOTHING

    @property
    def behind(self) -> int:
        """How many changes are not in force yet."""
        return self._changes - self._in_force

    async def add(self, uid: str, endpoint: Endpoint) -> None:
        """Returns when the policies that hold for the pod are in force."""
        # Labels that have changed while the pod was being connected were told when we did not know it yet.
        labels = self.labels_of(uid, Key(endpoint.namespace, endpoint.name))
        self._endpoints[uid] = endpoint if labels is None else replace(endpoint, labels=labels)
        await self.enforce()

    async def remove(self, uid: str) -> None:
        if self._endpoints.pop(uid, None) is not None:
            await self.enforce()

    def relabel(self, uid: str, labels: dict[str, str]) -> None:
        """The pod's labels are others now, and with them perhaps its policies."""
        endpoint = self._endpoints.get(uid)
        if endpoint is None or endpoint.labels == labels:
            return
        self._endpoints[uid] = replace(endpoint, labels=labels)
        # A claim changes labels that no policy asks for, and in a burst there are hundreds.
        if any(selector.matches(endpoint.labels) != selector.matches(labels) for selector in self._choices()):
            self._catch_up()

    async def enforce(self) -> None:
        """Returns when all that has changed before the call is in force. Raises ``OSError`` if that cannot be done."""
        self._changes += 1
        wanted = self._changes
        async with self._lock:
            if self._in_force >= wanted:
                return  # somebody else's turn has covered it
            covered = self._changes
            if self._compiler is None:
                self._compiler = Compiler(self.policies, self._namespace_labels())
            firewall = self._compiler.compile(self._endpoints.values())
            before, self._enforced = self._enforced, None
            try:
                if before is None:
                    await self.run(ruleset.whole(firewall, TABLE, UPLINK))
                elif script := ruleset.change(before, firewall, TABLE, UPLINK):
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
        self._enforced = NOTHING

    def _changed(self, key: Key, old: Object | None, new: Object | None) -> None:
        self._selectors = self._compiler = None
        self._catch_up()

    def _choices(self) -> tuple[LabelSelector, ...]:
        if self._selectors is None:
            self._selectors = selectors(self.policies)
        return self._selectors

    def _catch_up(self) -> None:
        if not self._in_force:
            return  # nothing was ever in force: whoever begins writes everything there is then
        self._changes += 1
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._until_in_force(), name="network policies")

    async def _until_in_force(self) -> None:
        pause = _PAUSE
        while self._in_force < self._changes:
            try:
                await self.enforce()
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody else would try again
                # What was in force stays so until then.
                self.failure = str(error) or type(error).__name__
                _log.error("network policies could not be enforced: %s", error, exc_info=not isinstance(error, OSError))
                await self.clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _namespace_labels(self) -> dict[str, dict[str, str]]:
        return {each["metadata"]["name"]: _labels(each) for each in self.namespaces}


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
