"""Requests for sandboxes that sleep: held, one attempt for all of them, and the reason if it fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.api.resource import Object
from sandpool.router.broker import WAKE, BrokerClient, BrokerRequest, ConnectionBroker, MalformedRequest
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.dialer import NodeDialer
from sandpool.router.targets import SandboxAsleep, SandboxResolver, Target
from sandpool.router.waking import RequestWaker, Wake
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from tests.support.sandbox_objects import pod_status, sandbox, sandbox_pod, stored

BOX = Destination("default", "box", 8888, 60.0, "", "")


def box(version: int, *, asleep: bool, suspended: bool | None = None) -> Object:
    made = sandbox("box")
    claim = stored(SANDBOX_CLAIM, "mine")
    owner = {key: claim[key] for key in ("apiVersion", "kind")} | {"name": "mine", "uid": claim["metadata"]["uid"]}
    made["metadata"] |= {"resourceVersion": str(version), "ownerReferences": [owner | {"controller": True}]}
    made["metadata"]["annotations"] = {ASLEEP_SINCE: "2026-01-01T00:00:00Z"} if asleep else {}
    made["spec"]["operatingMode"] = "Suspended" if (asleep if suspended is None else suspended) else "Running"
    return made


def pod(version: int, *, ready: bool, uid: str = "pod-2") -> Object:
    made = sandbox_pod(box(version, asleep=False), status=pod_status("Running", ready=ready, ips=["10.1.0.2"]))
    return {**made, "metadata": {**made["metadata"], "uid": uid, "resourceVersion": str(version)}}


@pytest.fixture
def targets(server: ApiServer) -> SandboxResolver:
    """A resolver that has seen the sandbox asleep."""
    targets = SandboxResolver(server.client(), ManualClock(), Random(0))
    targets.sandboxes.observe(box(10, asleep=True))
    return targets


def test_sandbox_that_sleeps_is_told_from_one_that_a_user_has_suspended(targets: SandboxResolver) -> None:
    with pytest.raises(SandboxAsleep):
        targets.find(BOX)
    targets.sandboxes.observe(box(11, asleep=False, suspended=True))
    with pytest.raises(RequestRejected, match="is suspended") as rejected:
        targets.find(BOX)
    assert not isinstance(rejected.value, SandboxAsleep)


def test_sandbox_that_falls_asleep_gets_no_more_requests_for_its_old_pod(targets: SandboxResolver) -> None:
    targets.pods.observe(pod(9, ready=True, uid="pod-1"))
    with pytest.raises(SandboxAsleep):
        targets.find(BOX)


def test_requests_wait_for_a_sandbox_that_was_resumed_until_it_is_ready(targets: SandboxResolver) -> None:
    targets.sandboxes.observe(box(11, asleep=False))
    with pytest.raises(SandboxAsleep):
        targets.find(BOX)
    targets.pods.observe(pod(12, ready=False))
    with pytest.raises(SandboxAsleep):
        targets.find(BOX)
    targets.pods.observe(pod(13, ready=True))
    assert targets.find(BOX).uid == "pod-2"
    targets.pods.observe(pod(14, ready=False))
    with pytest.raises(RequestRejected, match="is not ready") as rejected:
        targets.find(BOX)
    assert not isinstance(rejected.value, SandboxAsleep), "later it is unready for other reasons"


class Parent:
    """Resumes sandboxes when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.go_on = asyncio.Event()
        self.failure: RequestRejected | None = None

    async def wake(self, namespace: str, name: str, uid: str) -> None:
        self.asked.append((namespace, name, uid))
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure


def asleep(targets: SandboxResolver) -> SandboxAsleep:
    with pytest.raises(SandboxAsleep) as rejected:
        targets.find(BOX)
    return rejected.value


async def test_storm_of_requests_resumes_a_sandbox_once(targets: SandboxResolver) -> None:
    parent, clock = Parent(), ManualClock()
    waker = RequestWaker(targets, parent.wake, clock)
    waiting = [asyncio.create_task(waker(BOX, asleep(targets))) for _ in range(200)]
    await clock.settle()
    gone = waiting.pop()
    gone.cancel()
    parent.go_on.set()
    await clock.settle()
    targets.sandboxes.observe(box(11, asleep=False))
    await clock.settle()
    assert not any(each.done() for each in waiting), "the caches do not show the pod yet"
    targets.pods.observe(pod(12, ready=True))
    found = await asyncio.gather(*waiting)
    assert {target.uid for target in found} == {"pod-2"}
    assert parent.asked == [("default", "box", asleep_uid())]


def asleep_uid() -> str:
    return str(sandbox("box")["metadata"]["uid"])


async def test_all_requests_get_the_reason_why_it_was_not_resumed(targets: SandboxResolver) -> None:
    parent, clock = Parent(), ManualClock()
    parent.failure = RequestRejected(503, "Sandbox box was asleep and could not be resumed: no node fits.")
    waker = RequestWaker(targets, parent.wake, clock)
    waiting = [asyncio.create_task(waker(BOX, asleep(targets))) for _ in range(3)]
    await clock.settle()
    parent.go_on.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers] == [parent.failure.detail] * 3
    assert len(parent.asked) == 1


async def test_request_ends_if_the_caches_never_show_the_pod(targets: SandboxResolver) -> None:
    parent, clock = Parent(), ManualClock()
    parent.go_on.set()
    waiting = asyncio.create_task(RequestWaker(targets, parent.wake, clock)(BOX, asleep(targets)))
    await clock.advance(60)
    with pytest.raises(RequestRejected, match="is not ready"):
        await waiting


@asynccontextmanager
async def channel(wake: Wake | None, dial: Any = None) -> AsyncIterator[BrokerClient]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def no_api() -> socket.socket:
        raise ConnectionRefusedError

    broker = ConnectionBroker(ours, dial or NodeDialer(None), no_api, max_requests=10, wake=wake)
    serving = asyncio.create_task(broker.serve())
    client = BrokerClient(theirs)
    try:
        yield client
    finally:
        client.close()
        with suppress(MalformedRequest):
            await serving


async def test_router_process_has_its_parent_resume_a_sandbox() -> None:
    parent = Parent()
    parent.go_on.set()
    async with channel(parent.wake) as client:
        await client.wake("team", "box", "uid-1")
        assert parent.asked == [("team", "box", "uid-1")]
        parent.failure = RequestRejected(409, "Sandbox box is suspended. " + "x" * 5000)
        with pytest.raises(RequestRejected, match=r"Sandbox box is suspended\. x+") as rejected:
            await client.wake("team", "box", "uid-1")
        assert rejected.value.status == 409
        assert len(rejected.value.detail) <= 1024


async def test_parent_that_resumes_nothing_says_so() -> None:
    async with channel(None) as client:
        with pytest.raises(RequestRejected, match="nothing here can resume it"):
            await client.wake("team", "box", "uid-1")


async def test_pod_that_falls_asleep_while_it_is_dialled_is_reported_with_its_sandbox() -> None:
    async def dial(target: Target, port: int) -> socket.socket:
        raise SandboxAsleep("box", "sandbox-uid")

    async with channel(None, dial) as client:
        with pytest.raises(SandboxAsleep) as rejected:
            await client.dial(Target("team", "box-pod", "uid-1", ""), 80)
        assert (rejected.value.name, rejected.value.uid) == ("box", "sandbox-uid")


@pytest.mark.parametrize(
    "request_",
    [BrokerRequest(WAKE, 1), BrokerRequest(WAKE, 1, 80, "team", "box", "uid"), BrokerRequest(WAKE, 1, 0, "team")],
)
def test_request_to_resume_has_all_names_and_no_port(request_: BrokerRequest) -> None:
    with pytest.raises(MalformedRequest):
        BrokerRequest.decode(request_.encode())
