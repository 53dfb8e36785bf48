"""Resumes sandboxes that sleep, for the request that needs them.

Only a sandbox that was suspended because it was not used is resumed (``labels.ASLEEP_SINCE``). The mark is checked and
removed by the write that resumes it, with its resourceVersion as a precondition: a user who suspends the sandbox at the
same moment wins. Many requests for one sandbox share one attempt.

A late-bound sandbox is given the variables of its claim again, and its requests wait for that, too.

A sandbox that is still falling asleep first gets there: its old pod is deleted in any case, and Ready of the sandbox
describes that pod until then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, cast

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import condition_of
from sandpool.api.kinds import SANDBOX
from sandpool.api.resource import Key, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import ApiError, Conflict, NotFound
from sandpool.service.errors import ServiceError
from sandpool.service.handover import NotHandedOver, states, until_handed_over

#: Seconds until a sandbox must be ready.
WAKE_SECONDS: Final = 60.0
_ATTEMPTS: Final = 5
_SUSPENDED: Final = "Suspended"
_RUNNING: Final = "Running"


class WakeFailed(ServiceError):
    """A sandbox that sleeps could not be resumed. The message has the reason."""


class SuspendedByUser(WakeFailed):
    """A user has suspended the sandbox: no request resumes it."""


def is_asleep(sandbox: SharedObject) -> bool:
    """Whether a sandbox was suspended because it was not used."""
    return is_suspended(sandbox) and labels.ASLEEP_SINCE in (sandbox["metadata"].get("annotations") or {})


def is_suspended(sandbox: SharedObject) -> bool:
    return bool((sandbox.get("spec") or {}).get("operatingMode") == _SUSPENDED)


class Waker:
    """``done`` is called after each attempt, with whether it succeeded and how many seconds it took."""

    def __init__(
        self,
        client: Client,
        *,
        seconds: float = WAKE_SECONDS,
        done: Callable[[bool, float], None] = lambda succeeded, seconds: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.monotonic = monotonic
        self.seconds = seconds
        self.done = done
        self._waking: dict[Key, asyncio.Task[SharedObject]] = {}

    async def wake(self, namespace: str, name: str) -> SharedObject:
        """Return the sandbox once it is ready, and resume it before if it sleeps. Raises ``WakeFailed``."""
        key = Key(namespace, name)
        task = self._waking.get(key)
        if task is None:
            task = self._waking[key] = asyncio.create_task(self._timed(key), name=f"wake sandbox {key}")
            task.add_done_callback(lambda task: self._ended(key, task))
        return await asyncio.shield(task)

    def is_waking(self, sandbox: Key) -> bool:
        """Whether a request waits until the sandbox is resumed."""
        return sandbox in self._waking

    def _ended(self, key: Key, task: asyncio.Task[SharedObject]) -> None:
        del self._waking[key]
        if not task.cancelled():
            task.exception()  # its waiters may all be gone

    async def _timed(self, key: Key) -> SharedObject:
        last = list[SharedObject]()
        started, succeeded = self.monotonic(), False
        try:
            async with asyncio.timeout(self.seconds):
                ready = await self._wake(key, last)
                await until_handed_over(self.client, ready, last.append)
            succeeded = True
            return ready
        except TimeoutError:
            condition = condition_of(last[-1], api.READY) if last else None
            state = f": {condition['message']}" if condition is not None and condition.get("message") else ""
            raise WakeFailed(
                f'sandbox "{key.name}" was not ready {self.seconds:g} s after it was woken{state}'
            ) from None
        except NotHandedOver as error:
            raise WakeFailed(error.message, error.advice) from error
        except (ApiError, OSError) as error:
            raise WakeFailed(f'sandbox "{key.name}" cannot be resumed: {error}') from error
        finally:
            self.done(succeeded, self.monotonic() - started)

    async def _wake(self, key: Key, last: list[SharedObject]) -> SharedObject:
        for _ in range(_ATTEMPTS):
            try:
                sandbox: SharedObject = await self.client.get(SANDBOX, key.name, key.namespace)
            except NotFound:
                raise WakeFailed(f'sandbox "{key.name}" does not exist any more') from None
            last.append(sandbox)
            if is_asleep(sandbox) and not _is_true(sandbox, api.SUSPENDED):
                sandbox = await self._until(key, sandbox, last, lambda each: _is_true(each, api.SUSPENDED))
            if not is_suspended(sandbox):
                return await self._until(key, sandbox, last, lambda each: _is_true(each, api.READY))
            if not is_asleep(sandbox):
                raise SuspendedByUser(
                    f'sandbox "{key.name}" is suspended', f"Resume it with: sandpool resume {key.name}"
                )
            metadata = sandbox["metadata"]
            patch = {
                "metadata": {
                    "resourceVersion": metadata["resourceVersion"],
                    "annotations": {labels.ASLEEP_SINCE: None},
                },
                "spec": {"operatingMode": _RUNNING},
            }
            try:
                resumed = await self.client.patch(SANDBOX, key.name, MergePatch(patch), key.namespace)
            except Conflict:
                continue
            return await self._until(key, resumed, last, lambda each: _is_true(each, api.READY))
        raise WakeFailed(f'sandbox "{key.name}" cannot be resumed: other clients keep changing it')

    async def _until(
        self, key: Key, sandbox: SharedObject, last: list[SharedObject], reached: Callable[[SharedObject], bool]
    ) -> SharedObject:
        """Return the sandbox in the first state, from the given one on, that is ``reached`` or ends the wait."""
        if reached(sandbox):
            return sandbox
        uid = sandbox["metadata"]["uid"]
        following = states(self.client, SANDBOX, key, sandbox["metadata"]["resourceVersion"])
        async with aclosing(cast("Any", following)) as stream:
            async for each in stream:
                if each is None or each["metadata"]["uid"] != uid or each["metadata"].get("deletionTimestamp"):
                    raise WakeFailed(f'sandbox "{key.name}" was deleted while it was resumed')
                last.append(each)
                if reached(each):
                    return cast("SharedObject", each)
                _check(key, each)
        raise WakeFailed(f'sandbox "{key.name}" cannot be watched')


def _is_true(sandbox: SharedObject, type: str) -> bool:
    condition = condition_of(sandbox, type)
    return condition is not None and condition["status"] == api.TRUE


def _check(key: Key, sandbox: SharedObject) -> None:
    """Raise for a state that waiting does not change."""
    ready = condition_of(sandbox, api.READY)
    ended = (api.POD_FAILED[0], api.POD_SUCCEEDED[0], api.SANDBOX_EXPIRED[0], api.MULTIPLE_PODS)
    if ready is not None and not is_suspended(sandbox) and ready["reason"] in ended:
        raise WakeFailed(f'sandbox "{key.name}" did not become ready: {ready["message"]} ({ready["reason"]})')
