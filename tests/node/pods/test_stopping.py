"""Stopping a pod: hooks, signals, grace periods and clean-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.api.kinds import POD
from sandpool.kube.client import MergePatch
from sandpool.node.runtimes.runtime import Command, Stdio
from tests.support.fake_runtime import FakeContainer

if TYPE_CHECKING:
    from tests.node.conftest import NodeRig

PRE_STOP = {"name": "main", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["flush"]}}}}


def hang(container: FakeContainer, command: Command, stdio: Stdio) -> None:
    return None


def runs(container: FakeContainer) -> bool:
    return container.pid is not None


async def test_deleted_pod_is_signalled_and_removed(rig: NodeRig) -> None:
    await rig.create()
    container = rig.container()
    await rig.delete()
    assert await rig.gone()
    assert container.signals == [15]
    assert ("Killing", "Stopping container main") in await rig.events()


async def test_deleted_pod_leaves_nothing(rig: NodeRig) -> None:
    await rig.create()
    await rig.delete()
    await rig.gone()
    await rig.until(lambda: _no_worker(rig))
    assert rig.holdings() == []
    assert list((rig.directory / "pods").iterdir()) == []


async def _no_worker(rig: NodeRig) -> bool:
    await rig.settle()
    return not rig.agent.workers


async def test_container_is_killed_after_the_grace_period(rig: NodeRig) -> None:
    await rig.create(spec={"terminationGracePeriodSeconds": 20})
    container = rig.container()
    container.stubborn = True
    await rig.delete()
    await rig.passes(19)
    assert runs(container)
    await rig.passes(1)
    assert not runs(container)
    assert await rig.gone()


async def test_later_request_shortens_the_grace_period(rig: NodeRig) -> None:
    await rig.create(spec={"terminationGracePeriodSeconds": 600})
    container = rig.container()
    container.stubborn = True
    await rig.delete()
    await rig.passes(5)
    await rig.delete(grace=10)
    await rig.passes(9)
    assert runs(container)
    await rig.passes(1)
    assert not runs(container)
    assert await rig.gone()


async def test_zero_grace_period_kills_at_once(rig: NodeRig) -> None:
    await rig.create()
    container = rig.container()
    container.stubborn = True
    await rig.delete(grace=0)

    async def closed() -> bool:
        await rig.settle()
        return not rig.runtime.open and not rig.agent.workers

    await rig.until(closed)
    assert (runs(container), container.signals) == (False, [])
    assert list((rig.directory / "pods").iterdir()) == []


async def test_pre_stop_hook_precedes_the_signal(rig: NodeRig) -> None:
    rig.runtime.on_execute = hang
    await rig.create(spec={"containers": [PRE_STOP]})
    container = rig.container()
    await rig.delete()
    assert (container.processes[0].command.argv, container.signals) == (("flush",), [])
    container.processes[0].end(0)
    assert await rig.gone()
    assert container.signals == [15]


async def test_pre_stop_hook_is_limited_by_the_grace_period(rig: NodeRig) -> None:
    rig.runtime.on_execute = hang
    await rig.create(spec={"containers": [PRE_STOP], "terminationGracePeriodSeconds": 5})
    container = rig.container()
    await rig.delete()
    await rig.passes(5)
    assert not runs(container)
    assert await rig.gone()


async def test_failed_pre_stop_hook_is_an_event(rig: NodeRig) -> None:
    rig.runtime.on_execute = lambda container, command, stdio: 3
    await rig.create(spec={"containers": [PRE_STOP]})
    await rig.delete()
    await rig.gone()
    assert [note for reason, note in await rig.events() if reason == "FailedPreStopHook"] == ["PreStopHook failed: "]


async def test_stop_signal_of_the_image_is_used(rig: NodeRig) -> None:
    from dataclasses import replace

    rig.images.image = replace(rig.images.image, stop_signal="SIGINT")
    await rig.create()
    container = rig.container()
    await rig.delete()
    await rig.gone()
    assert container.signals == [2]


async def test_pod_kept_by_finalizers_has_its_final_status(rig: NodeRig) -> None:
    await rig.create(metadata={"finalizers": ["example.com/keep"]})
    await rig.delete()

    async def ended() -> bool:
        await rig.settle()
        return bool((await rig.status())["phase"] == "Failed")

    await rig.until(ended)
    assert (await rig.state())["state"]["terminated"]["exitCode"] == 143
    await rig.client.patch(POD, "pod", MergePatch({"metadata": {"finalizers": None}}), "default")
    assert await rig.gone()


async def test_pod_deleted_while_starting_releases_everything(rig: NodeRig) -> None:
    """Everything made so far is released."""
    from asyncio import Event

    gate, resolve = Event(), rig.images.resolve

    async def slowly(name: str, policy: str, pod: object) -> object:
        await gate.wait()
        return await resolve(name, policy, pod)  # type: ignore[arg-type]

    rig.images.resolve = slowly  # type: ignore[assignment, method-assign]
    await rig.create()
    await rig.delete()
    assert rig.starts() == []
    gate.set()
    assert await rig.gone()
    assert rig.holdings() == []


async def test_post_start_hook_delays_the_next_container(rig: NodeRig) -> None:
    rig.runtime.on_execute = hang
    lifecycle = {"postStart": {"exec": {"command": ["prepare"]}}}
    containers = [{"name": "main", "image": "i", "lifecycle": lifecycle}, {"name": "other", "image": "i"}]
    await rig.create(spec={"containers": containers})
    assert rig.starts() == ["main"]
    rig.container("main").processes[0].end(0)

    async def both() -> bool:
        await rig.settle()
        return rig.starts() == ["main", "other"]

    assert await rig.until(both)


async def test_failed_post_start_hook_ends_the_container(rig: NodeRig) -> None:
    rig.runtime.on_execute = lambda container, command, stdio: 1
    lifecycle = {"postStart": {"exec": {"command": ["prepare"]}}}
    await rig.create(
        spec={"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "lifecycle": lifecycle}]}
    )

    async def failed() -> bool:
        await rig.settle()
        return bool((await rig.status())["phase"] == "Failed")

    await rig.until(failed)
    assert "FailedPostStartHook" in [reason for reason, _ in await rig.events()]


async def test_sleep_hook_waits(rig: NodeRig) -> None:
    container = {"name": "main", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 7}}}}
    await rig.create(spec={"containers": [container]})
    running = rig.container()
    await rig.delete()
    await rig.passes(6)
    assert running.signals == []
    await rig.passes(1)
    assert running.signals == [15]
