"""Tells the API how a pod is, no more often than needed, and at last that it is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, Final

from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.kube.client import StrategicPatch
from sandpool.kube.errors import ApiError, Conflict, NotFound
from sandpool.node.pods.context import NodeContext
from sandpool.node.pods.pod_status import compute_pod_status
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.state import Moment, PodState
from sandpool.node.pods.status_throttle import FIRST_DELAY, LATER_DELAY, changes, is_urgent

_log = logging.getLogger(__name__)

# Before a write that failed is tried again, in seconds; the pause doubles.
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

# Nothing is said of these: a pod may be frozen and used without being another to anybody.
_UNTOLD: Final = frozenset({"frozen", "freezing", "touched"})
_TOLD: Final = tuple(field.name for field in fields(PodState) if field.name not in _UNTOLD)

Spawn = Callable[[Coroutine[Any, Any, None], str], None]


class StatusManager:
    """Of one pod. ``done`` is called after every write, ``pod_deleted`` when the API knows no such pod."""

    def __init__(self, context: NodeContext, done: Callable[[], None], pod_deleted: Callable[[], None]) -> None:
        self.context = context
        self.done = done
        self.pod_deleted = pod_deleted
        self.writes = 0  # that succeeded
        self._idle = asyncio.Event()  # nothing is being written
        self._idle.set()
        self._stale_since: float | None = None  # since when the API does not show how it is
        self._failures = 0  # in a row
        self._not_before = 0.0
        self._settled: PodState | None = None  # as it was when there was nothing to say

    def sync(self, state: PodState, now: Moment, spawn: Spawn) -> float | None:
        """Report what is to be reported now. When to look again if nothing happens before."""
        if state.gone or state.discarded or not self._idle.is_set() or self._is_settled(state):
            return None
        before = state.pod.object.get("status") or {}
        wanted = compute_pod_status(state, now, self.context.network.host_addresses, before)
        patch = changes(before, wanted)
        if not patch:
            self._stale_since, self._settled = None, state
            return None
        if self._stale_since is None:
            self._stale_since = now.at
        delay = 0.0 if is_urgent(before, wanted) else LATER_DELAY if self.writes else FIRST_DELAY
        due = max(self._stale_since + delay, self._not_before)
        if now.at < due:
            return due
        self._idle.clear()
        spawn(self._write(state.pod, patch), "the status")
        return None

    def _is_settled(self, state: PodState) -> bool:
        known = self._settled
        return known is not None and all(getattr(known, name) is getattr(state, name) for name in _TOLD)

    async def _write(self, pod: Pod, patch: Object) -> None:
        try:
            if pod.is_warm:
                await self.context.turn()
            answer = await self._send(pod, patch)
        except (NotFound, Conflict):
            self.pod_deleted()  # there is none, or another one of its name
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("the status of pod %s could not be written: %s", pod.key, error)
            self._failures += 1
            pause = min(_PAUSE * 2.0 ** min(self._failures - 1, 16), _LONGEST_PAUSE)
            self._not_before = self.context.clock.monotonic() + pause
        else:
            self.writes += 1
            self._failures = 0
            self.context.wrote(answer)
        finally:
            self._idle.set()
            self._stale_since = None
            self.done()

    async def _send(self, pod: Pod, patch: Object) -> Object:
        # With the UID, what is said about this pod never ends up on the next one of its name.
        body = StrategicPatch({"metadata": {"uid": pod.uid}, "status": patch})
        return await self.context.client.patch(POD, pod.key.name, body, pod.key.namespace, subresource="status")

    async def write_final_status(self, known: Callable[[], PodState], now: Moment) -> None:
        """Say how it is at last, of a pod that stops with its node: there is no later. Who cannot be told is not."""
        while not self._idle.is_set():
            await self._idle.wait()
        state = known()
        before = state.pod.object.get("status") or {}
        patch = changes(before, compute_pod_status(state, now, self.context.network.host_addresses, before))
        if patch:
            self._idle.clear()
            await self._write(state.pod, patch)

    async def delete_pod(self, state: PodState, now: Moment) -> None:
        """Have the API forget a pod of which nothing is left. If finalizers keep it, it shows how it ended."""
        pod = state.pod
        if pod.object["metadata"].get("finalizers"):
            before = pod.object.get("status") or {}
            patch = changes(before, compute_pod_status(state, now, self.context.network.host_addresses, before))
            await self._send_until_answered(lambda: self._send(pod, patch))
        await self._send_until_answered(
            lambda: self.context.client.delete(
                POD, pod.key.name, pod.key.namespace, grace_period_seconds=0, uid=pod.uid
            )
        )

    async def _send_until_answered(self, request: Callable[[], Coroutine[Any, Any, Object]]) -> None:
        """Send until the API has said yes or no."""
        while True:
            try:
                await request()
                return
            except (NotFound, Conflict):
                return  # there is none, or another one of its name
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("a pod that has ended could not be removed: %s", error)
            await self.context.clock.sleep(_PAUSE)
