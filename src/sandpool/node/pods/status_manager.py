"""Writes the status of a pod to the API, no more often than needed, and finally deletes the pod."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, Final

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import StrategicPatch
from sandpool.kube.errors import ApiError, Conflict, NotFound
from sandpool.kube.retry import backoff_delay
from sandpool.node.pods.context import NodeContext
from sandpool.node.pods.pod_status import compute_pod_status
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.state import Moment, PodState
from sandpool.node.pods.status_throttle import FIRST_DELAY, LATER_DELAY, changes, is_urgent

_log = logging.getLogger(__name__)

# Back-off after a failed write, in seconds.
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

# Fields that do not appear in the status. ``asleep`` does, for pods that are frozen because they were not used.
_UNREPORTED: Final = frozenset({"frozen", "freezing", "touched"})
_REPORTED: Final = tuple(field.name for field in fields(PodState) if field.name not in _UNREPORTED)

Spawn = Callable[[Coroutine[Any, Any, None], str], None]


class StatusManager:
    """Status of one pod. ``done`` is called after every write, ``pod_deleted`` when the API has no such pod."""

    def __init__(self, context: NodeContext, done: Callable[[], None], pod_deleted: Callable[[], None]) -> None:
        self.context = context
        self.done = done
        self.pod_deleted = pod_deleted
        self.writes = 0  # successful writes
        self._idle = asyncio.Event()  # no write is in progress
        self._idle.set()
        self._stale_since: float | None = None  # since when the status in the API is out of date
        self._failures = 0  # failed writes in a row
        self._not_before = 0.0
        self._settled: PodState | None = None  # the state for which the API was last found up to date

    def sync(self, state: PodState, now: Moment, spawn: Spawn) -> float | None:
        """Write the status if it is due. Returns when to call again at the latest, or None."""
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
        return known is not None and all(getattr(known, name) is getattr(state, name) for name in _REPORTED)

    async def _write(self, pod: Pod, patch: Object) -> None:
        try:
            if pod.is_warm:
                await self.context.background_turn()
            answer = await self._send(pod, patch)
        except (NotFound, Conflict):
            self.pod_deleted()  # there is none, or another one of its name
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("failed to write the status of pod %s: %s", pod.key, error)
            self._failures += 1
            pause = backoff_delay(self._failures, first=_PAUSE, longest=_LONGEST_PAUSE)
            self._not_before = self.context.clock.monotonic() + pause
        else:
            self.writes += 1
            self._failures = 0
            self.context.record_write(answer)
        finally:
            self._idle.set()
            self._stale_since = None
            self.done()

    async def _send(self, pod: Pod, patch: Object) -> SharedObject:
        # The UID is a precondition: the status must not end up on a later pod of the same name.
        body = StrategicPatch({"metadata": {"uid": pod.uid}, "status": patch})
        return await self.context.client.patch(POD, pod.key.name, body, pod.key.namespace, subresource="status")

    async def write_final_status(self, known: Callable[[], PodState], now: Moment) -> None:
        """Write the status of a pod that stops with its node. There is no retry: the node is about to exit."""
        while not self._idle.is_set():
            await self._idle.wait()
        state = known()
        before = state.pod.object.get("status") or {}
        patch = changes(before, compute_pod_status(state, now, self.context.network.host_addresses, before))
        if patch:
            self._idle.clear()
            await self._write(state.pod, patch)

    async def delete_pod(self, state: PodState, now: Moment) -> None:
        """Delete a pod of which nothing is left from the API. If finalizers keep it, write its final status first."""
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

    async def _send_until_answered(self, request: Callable[[], Coroutine[Any, Any, SharedObject]]) -> None:
        """Repeat a request until the API accepts or rejects it."""
        while True:
            try:
                await request()
                return
            except (NotFound, Conflict):
                return  # deleted, or replaced by another pod of this name
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("failed to delete a pod that has ended: %s", error)
            await self.context.clock.sleep(_PAUSE)
