"""Resuming sandboxes that sleep: once for many requests, never against their user, and with the reason if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandpool.api import conditions as api
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import ASLEEP_SINCE, LATE_BOUND
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.service.waking import SuspendedByUser, WakeFailed, Waker
from sandpool.testing.clock import ManualClock
from sandpool.testing.faulty_transport import FaultyTransport
from sandpool.testing.objects import new, pod_template
from tests.support.api_objects import owner_reference

SINCE = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:05Z"


def condition(type: str, value: bool, reason: str, message: str, since: str) -> Object:
    status = "True" if value else "False"
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


class Rig:
    """A sandbox called ``box``, and a waker with the requests it sent."""

    def __init__(self, server: ApiServer) -> None:
        self.client = server.client(name="users")
        self.wire = FaultyTransport(server.client(name="waker").transport)
        self.clock = ManualClock()
        self.results: list[bool] = []
        self.durations: list[float] = []
        self.waker = Waker(Client(self.wire), seconds=20.0, done=self.done, monotonic=self.clock.monotonic)

    def done(self, succeeded: bool, seconds: float) -> None:
        self.results.append(succeeded)
        self.durations.append(seconds)

    async def create(self, *, mode: str = "Suspended", asleep: bool = True, late_bound: bool = False) -> None:
        """``late_bound`` creates a claim called ``mine`` that hands its variables to the sandbox."""
        made = new(SANDBOX, "box", spec={"podTemplate": pod_template(), "operatingMode": mode})
        if asleep:
            made["metadata"]["annotations"] = {ASLEEP_SINCE: SINCE}
        if late_bound:
            wanted = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "python"}})
            claim = await self.client.create(SANDBOX_CLAIM, wanted, "default")
            made["metadata"].setdefault("annotations", {})[LATE_BOUND] = "true"
            made["metadata"]["ownerReferences"] = [owner_reference(claim, controller=True, block=True)]
        await self.client.create(SANDBOX, made, "default")

    async def status(
        self, *, suspended: bool, ready: bool, reason: str = "Reason", message: str = "message", since: str = SINCE
    ) -> None:
        values = {api.SUSPENDED: suspended, api.READY: ready}
        found = [condition(type, value, reason, message, since) for type, value in values.items()]
        body = MergePatch({"status": {"conditions": found}})
        await self.client.patch(SANDBOX, "box", body, "default", subresource="status")

    async def claim_status(self, *, ready: bool, reason: str = "Reason", message: str = "message", since: str) -> None:
        body = MergePatch({"status": {"conditions": [condition(api.READY, ready, reason, message, since)]}})
        await self.client.patch(SANDBOX_CLAIM, "mine", body, "default", subresource="status")

    async def get(self) -> SharedObject:
        return await self.client.get(SANDBOX, "box", "default")

    async def resumed(self) -> None:
        """Wait until the sandbox is to run."""
        async for event in self.client.watch(SANDBOX, "default"):
            if event.object["spec"]["operatingMode"] == "Running":
                return

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.wire.requests if request.method == "PATCH"]


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    server = ApiServer(tmp_path / "data")
    await server.start()
    yield Rig(server)
    await server.stop()


async def test_duration_ends_when_the_sandbox_is_ready(rig: Rig) -> None:
    """Once for all requests that waited, from the first of them on."""
    await rig.create()
    await rig.status(suspended=True, ready=False)
    waiting = [asyncio.create_task(rig.waker.wake("default", "box"))]
    await rig.resumed()
    await rig.clock.advance(2.5)
    waiting.append(asyncio.create_task(rig.waker.wake("default", "box")))
    await rig.clock.advance(0.5)
    assert rig.durations == []
    await rig.status(suspended=False, ready=True)
    await asyncio.gather(*waiting)
    assert rig.durations == [pytest.approx(3.0)]


async def test_many_requests_resume_a_sandbox_once(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False)
    waiting = [asyncio.create_task(rig.waker.wake("default", "box")) for _ in range(100)]
    await rig.resumed()
    assert ASLEEP_SINCE not in ((await rig.get())["metadata"].get("annotations") or {})
    assert not any(each.done() for each in waiting)
    await rig.status(suspended=False, ready=True)
    ready = await asyncio.gather(*waiting)
    assert {each["metadata"]["name"] for each in ready} == {"box"}
    assert len(rig.writes) == 1
    assert rig.results == [True]


async def test_request_whose_client_has_gone_does_not_stop_the_others(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False)
    gone, stays = (asyncio.create_task(rig.waker.wake("default", "box")) for _ in range(2))
    await rig.resumed()
    gone.cancel()
    await rig.status(suspended=False, ready=True)
    await stays
    assert len(rig.writes) == 1


async def test_sandbox_that_is_still_falling_asleep_gets_there_first(rig: Rig) -> None:
    """Its Ready condition describes the pod that is about to go."""
    await rig.create()
    await rig.status(suspended=False, ready=True)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await asyncio.wait([waiting], timeout=0.1)
    assert rig.writes == []
    await rig.status(suspended=True, ready=False)
    await rig.resumed()
    await rig.status(suspended=False, ready=True)
    await waiting
    assert len(rig.writes) == 1


async def test_sandbox_that_is_awake_is_only_waited_for(rig: Rig) -> None:
    await rig.create(mode="Running", asleep=False)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await rig.status(suspended=False, ready=True)
    await waiting
    assert rig.writes == []


async def test_sandbox_that_a_user_has_suspended_stays_suspended(rig: Rig) -> None:
    await rig.create(asleep=False)
    with pytest.raises(SuspendedByUser, match="Resume it with: sandpool resume box"):
        await rig.waker.wake("default", "box")
    assert rig.writes == []
    assert rig.results == [False]


async def test_user_who_suspends_it_at_the_same_moment_wins(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False)
    changed = False

    async def user_is_quicker(request: Request) -> None:
        nonlocal changed
        if request.method == "PATCH" and not changed:
            changed = True
            body = MergePatch({"metadata": {"annotations": {ASLEEP_SINCE: None}}})
            await rig.client.patch(SANDBOX, "box", body, "default")

    rig.waker.client = Client(_Before(rig.wire, user_is_quicker))
    with pytest.raises(SuspendedByUser):
        await rig.waker.wake("default", "box")
    assert (await rig.get())["spec"]["operatingMode"] == "Suspended"


class _Before:
    """A transport that awaits a function before each request."""

    def __init__(self, wire: FaultyTransport, before: Any) -> None:
        self.wire = wire
        self.before = before

    async def request(self, request: Request) -> Any:
        await self.before(request)
        return await self.wire.request(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wire, name)


async def test_sandbox_that_does_not_exist_is_an_error(rig: Rig) -> None:
    with pytest.raises(WakeFailed, match='sandbox "box" does not exist any more'):
        await rig.waker.wake("default", "box")


async def test_sandbox_that_is_deleted_meanwhile_is_an_error(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await rig.resumed()
    await rig.client.delete(SANDBOX, "box", "default")
    with pytest.raises(WakeFailed, match="was deleted while it was resumed"):
        await waiting


async def test_pod_that_fails_is_an_error_with_its_reason(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await rig.resumed()
    await rig.status(suspended=False, ready=False, reason=api.POD_FAILED[0], message="Pod failed")
    with pytest.raises(WakeFailed, match=r"did not become ready: Pod failed \(PodFailed\)"):
        await waiting


async def test_sandbox_that_does_not_become_ready_in_time_is_an_error_with_its_state(rig: Rig) -> None:
    await rig.create()
    await rig.status(suspended=True, ready=False, message="no node fits")
    rig.waker.seconds = 0.05
    with pytest.raises(WakeFailed, match=r"was not ready 0.05 s after it was woken: no node fits"):
        await rig.waker.wake("default", "box")


async def test_failure_is_not_remembered(rig: Rig) -> None:
    with pytest.raises(WakeFailed):
        await rig.waker.wake("default", "box")
    await rig.create(mode="Running", asleep=False)
    await rig.status(suspended=False, ready=True)
    await rig.waker.wake("default", "box")
    assert rig.results == [False, True]


async def test_late_bound_sandbox_is_awake_when_its_claim_has_handed_over_the_variables(rig: Rig) -> None:
    await rig.create(late_bound=True)
    await rig.status(suspended=True, ready=False)
    await rig.claim_status(ready=True, since=SINCE)  # of the run before; no controller has seen that it sleeps
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await rig.resumed()
    await rig.status(suspended=False, ready=True, since=LATER)
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    await rig.claim_status(ready=True, since=LATER)
    await waiting


async def test_sandbox_whose_variables_are_refused_is_an_error_with_the_reason(rig: Rig) -> None:
    await rig.create(late_bound=True)
    await rig.status(suspended=True, ready=False)
    await rig.claim_status(ready=False, since=SINCE)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await rig.resumed()
    await rig.status(suspended=False, ready=True, since=LATER)
    await rig.claim_status(ready=False, reason=api.ENVIRONMENT_NOT_BOUND, message="the template is gone", since=SINCE)
    with pytest.raises(WakeFailed, match=r"without the variables of its claim: the template is gone.*\n.*why mine"):
        await waiting
    assert rig.results == [False]


async def test_claim_that_is_late_is_named_with_its_state(rig: Rig) -> None:
    await rig.create(mode="Running", asleep=False, late_bound=True)
    await rig.status(suspended=False, ready=True, since=LATER)
    await rig.claim_status(ready=False, message="the claim is looked at", since=SINCE)
    rig.waker.seconds = 0.05
    with pytest.raises(WakeFailed, match="the claim is looked at"):
        await rig.waker.wake("default", "box")


async def test_claim_that_is_gone_is_not_waited_for(rig: Rig) -> None:
    await rig.create(mode="Running", asleep=False, late_bound=True)
    await rig.status(suspended=False, ready=True, since=LATER)
    await rig.claim_status(ready=False, since=SINCE)
    waiting = asyncio.create_task(rig.waker.wake("default", "box"))
    await asyncio.wait([waiting], timeout=0.05)
    await rig.client.delete(SANDBOX_CLAIM, "mine", "default")
    await waiting
