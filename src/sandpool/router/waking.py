"""Holds requests for sandboxes that sleep: has them resumed, once, and waits until they can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sandpool.engine.clock import Clock, within
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.targets import SandboxAsleep, SandboxResolver, Target
from sandpool.service.waking import SuspendedByUser, WakeFailed, Waker

#: Resumes a sandbox, given by namespace, name and UID, and returns when it is ready. Raises ``RequestRejected``.
Wake = Callable[[str, str, str], Awaitable[None]]

# Seconds in which the caches must show that a sandbox is ready which the API shows as ready.
_CATCH_UP_SECONDS: Final = 30.0


class RequestWaker:
    """All requests that wait for a sandbox share one attempt to resume it."""

    def __init__(self, targets: SandboxResolver, wake: Wake, clock: Clock) -> None:
        self.targets = targets
        self.wake = wake
        self.clock = clock
        self._waking: dict[str, asyncio.Task[None]] = {}  # by UID of the sandbox

    async def __call__(self, destination: Destination, asleep: SandboxAsleep) -> Target:
        """Return the pod of a sandbox that slept. Raises ``RequestRejected``."""
        task = self._waking.get(asleep.uid)
        if task is None:
            task = asyncio.ensure_future(self.wake(destination.namespace, destination.sandbox, asleep.uid))
            self._waking[asleep.uid] = task
            task.add_done_callback(lambda task: self._ended(asleep.uid, task))
        await asyncio.shield(task)
        try:
            return await within(self.clock, _CATCH_UP_SECONDS, self.targets.until_found(destination))
        except TimeoutError:
            raise RequestRejected(503, f"Sandbox {destination.sandbox} is not ready.") from None

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._waking[uid]
        if not task.cancelled():
            task.exception()  # its requests may all be gone


def wake_with(waker: Waker) -> Wake:
    """Return a ``Wake`` that resumes sandboxes through an API client."""

    async def wake(namespace: str, name: str, uid: str) -> None:
        try:
            sandbox = await waker.wake(namespace, name)
        except SuspendedByUser as error:
            raise RequestRejected(409, f"Sandbox {name} is suspended.") from error
        except WakeFailed as error:
            raise RequestRejected(
                503, f"Sandbox {name} was asleep and could not be resumed: {error.message}."
            ) from error
        if sandbox["metadata"]["uid"] != uid:
            raise RequestRejected(404, f"Sandbox {name} is not the one with UID {uid}.")

    return wake
