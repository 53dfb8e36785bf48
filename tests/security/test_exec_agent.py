"""A sandbox cannot disturb other commands through their exec agent."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.container import LaunchedContainer
from sandpool.node.runtimes.runtime import Container, RuntimeFailure
from sandpool.testing.waiting import until
from tests.support.isolation import Rig

pytestmark = [pytest.mark.isolation, pytest.mark.parametrize("boxes", ["bwrap", "crun", "runc"], indirect=True)]

# Seconds for what would never come.
PATIENCE = 60.0
LIMITS = Limits(pids=64)

# A process that is traced and has ended is its tracer's to bury before it is its parent's.
HOLDER = """
import ctypes, os, signal, time
SEIZE = 0x4206
victim = int(open("/tmp/victim").read())
assert ctypes.CDLL(None).ptrace(SEIZE, victim, 0, 0) == 0
os.kill(victim, signal.SIGKILL)
while open(f"/proc/{victim}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
open("/tmp/held", "w").close()
while not os.path.exists("/tmp/let-go"):
    time.sleep(0.01)
"""
# Children that are reparented to the parent of this process.
SIBLINGS = """
import ctypes, os, platform, signal
CLONE, CLONE_PARENT = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x8000
for _ in range(10):
    pid = ctypes.CDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    assert pid > 0
"""
# A user may have only so many descriptors on their way. It waits for those who are to be in before that.
ON_THEIR_WAY = """
import os, socket, time
while not (os.path.exists("/tmp/before") and os.path.exists("/tmp/watching")):
    time.sleep(0.01)
nothing, held = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [nothing] * 200)
except OSError as error:
    with open("/tmp/said", "w") as said:
        said.write(error.strerror)
os.rename("/tmp/said", "/tmp/full")
time.sleep(1000)
"""


def called(container: Container, word: str) -> list[int]:
    """The processes in it that were called with this word."""
    assert isinstance(container, LaunchedContainer)
    found = []
    for pid in container.cgroup.processes():
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                found.append(pid)
    return found


async def is_gone(container: Container, word: str) -> bool:
    return not called(container, word)


async def there(boxes: Rig, container: Container, path: str) -> None:
    await boxes.execute(container, "sh", "-c", f"until test -e {path}; do sleep 0.05; done")


async def test_traced_command_does_not_block_other_commands(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000", limits=LIMITS)
    victim = asyncio.create_task(
        boxes.execute(container, "sh", "-c", "echo $$ > /tmp/v; mv /tmp/v /tmp/victim; exec sleep 1000")
    )
    await there(boxes, container, "/tmp/victim")
    holder = asyncio.create_task(boxes.execute(container, "python3", "-c", HOLDER))
    await there(boxes, container, "/tmp/held")
    async with asyncio.timeout(PATIENCE):
        assert await boxes.execute(container, "echo", "in") == (0, "in\n")
        assert not victim.done()
        await boxes.execute(container, "touch", "/tmp/let-go")
        assert await holder == (0, "")
        assert await victim == (128 + signal.SIGKILL, "")


async def test_reparented_children_are_reaped_by_the_exec_agent(boxes: Rig) -> None:
    """Otherwise a PID namespace would not end before its exec agent goes."""
    container = await boxes.start("sh", "-c", "until test -e /tmp/end; do sleep 0.05; done; exit 7", limits=LIMITS)
    assert await boxes.execute(container, "python3", "-c", SIBLINGS) == (0, "")
    async with asyncio.timeout(PATIENCE):
        dead = "while grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.05; done"
        assert await boxes.execute(container, "sh", "-c", dead) == (0, "")
        await boxes.execute(container, "touch", "/tmp/end")
        assert (await container.wait()).code == 7


async def test_command_whose_start_cannot_be_reported_does_not_run(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000", limits=LIMITS)
    waits = "touch /tmp/before; until test -e /tmp/end; do sleep 0.05; done; exit 5"
    before = asyncio.create_task(boxes.execute(container, "sh", "-c", waits))
    filling = asyncio.create_task(boxes.execute(container, "python3", "-c", ON_THEIR_WAY))
    watches = "touch /tmp/watching; until test -e /tmp/full; do sleep 0.05; done; cat /tmp/full"
    async with asyncio.timeout(PATIENCE):
        assert await boxes.execute(container, "sh", "-c", watches) == (0, os.strerror(errno.ETOOMANYREFS))
        with pytest.raises(RuntimeFailure, match="descriptors"):
            await boxes.execute(container, "sleep", "1234")
        await until(lambda: is_gone(container, "1234"))
        (filler,) = called(container, ON_THEIR_WAY)
        os.kill(filler, signal.SIGKILL)
        assert (await filling)[0] == 128 + signal.SIGKILL
        assert await boxes.execute(container, "touch", "/tmp/end") == (0, "")
        assert await before == (5, "")
