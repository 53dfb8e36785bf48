"""Containers outlive who started them and are found again, whatever has become of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.limits import Limits
from sandpool.node.descriptors import readable
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.confined import ConfinedRuntime
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.runtime import Container, ContainerSpec, PodSandbox
from tests.support.cgroups import is_populated
from tests.support.isolation import RUNTIMES, Rig

pytestmark = pytest.mark.isolation


@asynccontextmanager
async def successor(boxes: Rig) -> AsyncIterator[ConfinedRuntime]:
    """A runtime that knows nothing of what the other has started; the launcher of that one is gone."""
    boxes.launcher.close()
    launcher = LauncherClient()
    yield RUNTIMES[boxes.runtime.name](boxes.cgroups, launcher, SystemClock(), directory=boxes.directory)
    launcher.close()


async def test_running_container_is_adopted(boxes: Rig) -> None:
    pod = await boxes.pod()
    first = await boxes.start("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done", pod=pod)
    await boxes.output_of(first).until("ready")
    async with successor(boxes) as runtime:
        assert await runtime.pods() == {pod.uid}
        found = await runtime.adopt(pod, "main")
        assert found is not None
        assert found.spec == first.spec and found.pid == first.pid
        assert await boxes.execute(found, "echo", "still here") == (0, "still here\n")
        await found.pause()
        await found.resume()
        await found.signal(signal.SIGTERM)
        assert (await found.wait()).code == 9
        await found.delete()


async def test_container_that_ended_meanwhile_is_adopted_with_its_exit_code(boxes: Rig) -> None:
    pod = await boxes.pod()
    first = await boxes.start("sh", "-c", "sleep 1000 & read line; exit 6", pod=pod, stdin=True)
    async with successor(boxes) as runtime:
        stdin = os.open(first.directory / "stdin", os.O_WRONLY)
        os.write(stdin, b"go\n")
        os.close(stdin)
        cgroup = boxes.cgroups.group(pod.uid, "main")
        status = first.directory / "status"
        await boxes.cgroups.events.wait_until(status, lambda text: "exit-code" in text)
        os.utime(status, (1_000_000.0, 1_000_000.0))  # as if that were long ago
        found = await runtime.adopt(pod, "main")
        assert found is not None
        result = await found.wait()
        assert (result.code, result.ended_at) == (6, 1_000_000.0)
        assert not is_populated(cgroup), "nor does what it left in the background"
        await found.delete()


@pytest.mark.parametrize("was_attached", [False, True])
async def test_stdin_once_of_an_adopted_container_ends_with_the_first_client(boxes: Rig, was_attached: bool) -> None:
    """The end of an agent ends its attachments and nothing else."""
    pod = await boxes.pod()
    script = "echo ready; cat; echo at its end"
    first = await boxes.start("sh", "-c", script, pod=pod, stdin=True, stdin_once=True)
    await boxes.output_of(first).until("ready\n")
    if was_attached:
        _type(first, "before\n")
    async with successor(boxes) as runtime:
        found = await runtime.adopt(pod, "main")
        assert found is not None
        if not was_attached:
            _type(found, "after\n")
            await boxes.output_of(first).until("after\n")
            assert found.pid is not None
            stdin_once.end(found.directory)
        assert (await found.wait()).code == 0
        said = "before" if was_attached else "after"
        assert boxes.drain(first).stdout.decode() == f"ready\n{said}\nat its end\n"
        await found.delete()


def _type(container: Container, text: str) -> None:
    descriptor = stdin_once.take(container.directory)
    assert descriptor is not None
    os.write(descriptor, text.encode())
    os.close(descriptor)


async def test_container_killed_meanwhile_is_adopted_as_killed(boxes: Rig) -> None:
    pod = await boxes.pod()
    await boxes.start("sleep", "1000", pod=pod)
    async with successor(boxes) as runtime:
        await boxes.cgroups.group(pod.uid, "main").kill()
        found = await runtime.adopt(pod, "main")
        assert found is not None
        assert (await found.wait()).code == 137
        assert found.pid is None
        await found.delete()


async def test_container_oom_killed_meanwhile_is_adopted_as_such(boxes: Rig) -> None:
    pod = await boxes.pod()
    hog = "read line; exec python3 -c 'x = bytearray(200 << 20)'"
    first = await boxes.start("sh", "-c", hog, pod=pod, stdin=True, limits=Limits(memory=48 << 20))
    async with successor(boxes) as runtime:
        stdin = os.open(first.directory / "stdin", os.O_WRONLY)
        os.write(stdin, b"go\n")
        os.close(stdin)
        await boxes.cgroups.group(pod.uid, "main").empty()
        found = await runtime.adopt(pod, "main")
        assert found is not None
        result = await found.wait()
        assert (result.code, result.oom_killed) == (137, True)
        await found.delete()


async def test_container_that_lost_a_process_to_oom_is_ended_at_adoption(boxes: Rig) -> None:
    """If the kernel killed a single process, the next agent ends the rest."""
    pod = await boxes.pod()
    hog = "read line; python3 -c 'x = bytearray(200 << 20)'; echo survived; exec sleep 1000"
    first = await boxes.start("sh", "-c", hog, pod=pod, stdin=True, limits=Limits(memory=48 << 20))
    assert isinstance(first, LaunchedContainer)
    first.unwatch()
    async with successor(boxes) as runtime:
        stdin = os.open(first.directory / "stdin", os.O_WRONLY)
        os.write(stdin, b"go\n")
        os.close(stdin)
        cgroup = boxes.cgroups.group(pod.uid, "main")
        for _ in range(3000):
            if b"survived" in boxes.output_of(first).stdout or not is_populated(cgroup):
                break
            await asyncio.sleep(0.01)
        found = await runtime.adopt(pod, "main")
        assert found is not None
        result = await found.wait()
        assert (result.code, result.oom_killed) == (137, True)
        await found.delete()


async def test_container_that_was_never_started_is_not_adopted(boxes: Rig) -> None:
    pod = await boxes.pod()
    created = await boxes.runtime.create(pod, ContainerSpec("main", ("true",)))
    async with successor(boxes) as runtime:
        assert await runtime.adopt(pod, "main") is None
        assert await runtime.adopt(pod, "other") is None
    await created.delete()


async def test_adopted_pod_is_closed_with_all_its_containers(boxes: Rig) -> None:
    pod = await boxes.pod()
    await boxes.start("sleep", "1000", pod=pod, name="one")
    await boxes.start("sleep", "1000", pod=pod, name="two")
    async with successor(boxes) as runtime:
        await runtime.close_pod(pod)
        await runtime.close_pod(pod)
        assert await runtime.pods() == set()
        unknown = PodSandbox("never-made", Path("/none"), 1, 1, None, "x")
        await runtime.close_pod(unknown)


async def test_containers_survive_the_death_of_the_launcher(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "echo ready; read line; exit 4", stdin=True)
    await boxes.output_of(container).until("ready")
    assert boxes.launcher.pid is not None
    launcher = os.pidfd_open(boxes.launcher.pid)
    signal.pidfd_send_signal(launcher, signal.SIGKILL)
    await readable(launcher)
    os.close(launcher)
    await asyncio.sleep(0.05)  # the end of its socket comes by another way
    assert await boxes.execute(container, "echo", "next launcher") == (0, "next launcher\n")
    stdin = os.open(container.directory / "stdin", os.O_WRONLY)
    os.write(stdin, b"go\n")
    os.close(stdin)
    assert (await container.wait()).code == 4
