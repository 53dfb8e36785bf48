"""Unused sandboxes are suspended by one write, and clients that come meanwhile learn which pod is theirs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import ASLEEP_SINCE, IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER
from sandpool.api.resource import SharedObject
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import ServiceUnavailable
from sandpool.kube.pod_access import PodAsleep
from sandpool.kube.transport import Request
from sandpool.node.pods.worker import PodWorker
from sandpool.testing.objects import new, pod_template
from tests.support.api_objects import owner_reference

if TYPE_CHECKING:
    from tests.node.sleep.conftest import SleepRig

SUSPEND = {IDLE_SUSPEND_AFTER: "1m"}


async def create(sleepy: SleepRig, annotations: dict[str, str]) -> PodWorker:
    """Create the sandbox ``pod`` with its pod."""
    made = new(SANDBOX, "pod", spec={"podTemplate": pod_template()})
    box = await sleepy.node.client.create(SANDBOX, made, "default")
    return await sleepy.create(annotations, ownerReferences=[owner_reference(box, controller=True)])


async def box(sleepy: SleepRig) -> SharedObject:
    return await sleepy.node.client.get(SANDBOX, "pod", "default")


async def mode(sleepy: SleepRig) -> str:
    return str((await box(sleepy))["spec"].get("operatingMode") or "Running")


def writes(sleepy: SleepRig) -> list[Request]:
    return [each for each in sleepy.node.wire.requests if each.method == "PATCH" and "/sandboxes/" in each.path]


async def test_unused_sandbox_is_suspended_by_one_write_and_marked(sleepy: SleepRig) -> None:
    await create(sleepy, SUSPEND)
    await sleepy.node.passes(59)
    assert await mode(sleepy) == "Running"
    await sleepy.node.passes(2)
    assert await mode(sleepy) == "Suspended"
    assert (await box(sleepy))["metadata"]["annotations"][ASLEEP_SINCE] == "2026-01-01T00:01:00Z"
    await sleepy.node.passes(600)
    assert len(writes(sleepy)) == 1


async def test_sandbox_is_frozen_first_and_suspended_later(sleepy: SleepRig) -> None:
    await create(sleepy, {IDLE_FREEZE_AFTER: "1m", IDLE_SUSPEND_AFTER: "1h"})
    await sleepy.node.passes(61)
    assert sleepy.container().paused
    await sleepy.node.passes(3500)
    assert await mode(sleepy) == "Running"
    await sleepy.node.passes(60)
    assert await mode(sleepy) == "Suspended"


async def test_pod_without_a_sandbox_is_not_suspended(sleepy: SleepRig) -> None:
    await sleepy.create(SUSPEND)
    await sleepy.node.passes(600)
    assert writes(sleepy) == []
    await sleepy.worker().ensure_thawed()


async def test_sandbox_in_use_is_not_suspended(sleepy: SleepRig) -> None:
    await create(sleepy, SUSPEND)
    running = await sleepy.begin_exec()
    await sleepy.node.passes(600)
    assert await mode(sleepy) == "Running"
    sleepy.container().jobs = 1
    await sleepy.end_exec(running)
    await sleepy.node.passes(600)
    assert await mode(sleepy) == "Running"
    sleepy.container().jobs = 0
    await sleepy.node.passes(71)
    assert await mode(sleepy) == "Suspended"


async def test_client_that_comes_while_it_is_suspended_waits_and_learns_that_another_pod_follows(
    sleepy: SleepRig,
) -> None:
    worker = await create(sleepy, SUSPEND)
    arriving: list[asyncio.Task[None]] = []

    def comes(request: Request) -> None:
        if request.method == "PATCH" and "/sandboxes/" in request.path:
            arriving.append(asyncio.create_task(worker.ensure_thawed()))

    sleepy.node.wire.fault = comes
    await sleepy.node.passes(61)
    (client,) = arriving
    with pytest.raises(PodAsleep):
        await client
    with pytest.raises(PodAsleep):
        await worker.ensure_thawed()


async def test_client_goes_on_if_the_sandbox_could_not_be_suspended(sleepy: SleepRig) -> None:
    worker = await create(sleepy, SUSPEND)

    def fails(request: Request) -> Exception | None:
        if request.method == "PATCH" and "/sandboxes/" in request.path:
            return ServiceUnavailable("not now")
        return None

    sleepy.node.wire.fault = fails
    await sleepy.node.passes(61)
    assert await mode(sleepy) == "Running"
    await worker.ensure_thawed()
    sleepy.node.wire.fault = lambda request: None
    await sleepy.node.passes(59)
    assert await mode(sleepy) == "Running", "its time begins again"
    await sleepy.node.passes(12)
    assert await mode(sleepy) == "Suspended"


async def test_sandbox_that_its_user_suspends_is_not_marked(sleepy: SleepRig) -> None:
    worker = await create(sleepy, SUSPEND)
    body = MergePatch({"spec": {"operatingMode": "Suspended"}})
    await sleepy.node.client.patch(SANDBOX, "pod", body, "default")
    await sleepy.node.passes(600)
    assert ASLEEP_SINCE not in ((await box(sleepy))["metadata"].get("annotations") or {})
    await worker.ensure_thawed()


async def test_clients_go_on_if_a_user_resumes_the_sandbox_before_its_pod_is_deleted(sleepy: SleepRig) -> None:
    worker = await create(sleepy, SUSPEND)
    await sleepy.node.passes(61)
    with pytest.raises(PodAsleep):
        await worker.ensure_thawed()
    body = MergePatch({"spec": {"operatingMode": "Running"}, "metadata": {"annotations": {ASLEEP_SINCE: None}}})
    await sleepy.node.client.patch(SANDBOX, "pod", body, "default")
    await sleepy.node.passes(15)
    await worker.ensure_thawed()
