"""No process of a sandbox survives its deletion."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.runtime import PodSandbox
from tests.support.isolation import Rig, alive

pytestmark = pytest.mark.isolation

DAEMONS = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                if os.fork() == 0:  # a new PID all the time
                    time.sleep(0.01)
                else:
                    os._exit(0)
        os._exit(0)
print("ready", flush=True)
time.sleep(1000)
"""


async def gone(pod: PodSandbox) -> bool:
    """A process that has left its cgroup is still to be seen until the kernel has taken it apart."""
    for _ in range(500):
        if not alive(pod):
            return True
        await asyncio.sleep(0.01)
    return False


async def seen(pod: PodSandbox, number: int) -> bool:
    """At least this many at one time: those that are new all the time are missed now and then."""
    for _ in range(500):
        if len(alive(pod)) >= number:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_daemons_that_ignore_signals_do_not_survive_deletion(boxes: Rig) -> None:
    pod = await boxes.pod()
    container = await boxes.start("python3", "-c", DAEMONS, pod=pod)
    await boxes.output_of(container).until("ready")
    assert await seen(pod, 2)
    await container.delete()
    assert await gone(pod)


async def test_daemons_of_a_command_do_not_survive_deletion(boxes: Rig) -> None:
    pod = await boxes.pod()
    container = await boxes.start("sleep", "1000", pod=pod)
    code, _ = await boxes.execute(
        container, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 &"
    )
    assert code == 0 and len(alive(pod)) >= 3
    await container.delete()
    assert await gone(pod)


async def test_frozen_processes_do_not_survive_deletion(boxes: Rig) -> None:
    pod = await boxes.pod()
    container = await boxes.start("python3", "-c", DAEMONS, pod=pod)
    await boxes.output_of(container).until("ready")
    await container.pause()
    await container.delete()
    assert await gone(pod)


async def test_processes_do_not_survive_their_killed_monitor(boxes: Rig) -> None:
    """The outermost process of a sandbox is killed: the others must end with it."""
    pod = await boxes.pod()
    container = await boxes.start("python3", "-c", DAEMONS, pod=pod)
    assert isinstance(container, LaunchedContainer)
    await boxes.output_of(container).until("ready")
    watcher = container.tracker.watcher()
    assert watcher is not None
    os.kill(watcher, signal.SIGKILL)
    assert (await container.wait()).code == 137
    assert await gone(pod)


async def test_monitor_cannot_be_reached_from_inside(boxes: Rig) -> None:
    """It has the user of the sandbox, and would end it."""
    result, output, _ = await boxes.run("sh", "-c", "kill -9 -1; kill -9 1; echo $PPID; ps ax | wc -l", uid=0, gid=0)
    assert result.code in (0, 137)
    assert output == "" or output.split()[0] in ("0", "1"), (
        "its parent is the first process inside, or outside the namespace"
    )


async def test_closing_a_pod_ends_all_its_containers(boxes: Rig) -> None:
    pod = await boxes.pod()
    for name in ("one", "two"):
        await boxes.start("python3", "-c", DAEMONS, pod=pod, name=name)
    await boxes.runtime.close_pod(pod)
    assert await gone(pod)
