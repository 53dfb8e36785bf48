"""A sandbox can exhaust only its own resources: the host and other sandboxes keep working, and it can be removed at
once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.limits import Limits
from sandpool.node.logs.manager import RATE, LogManager
from sandpool.node.runtimes.runtime import Container, Scratch
from tests.support.isolation import RUNTIMES, SLOW, Rig

RUNTIME = [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in RUNTIMES]
pytestmark = [pytest.mark.isolation, pytest.mark.parametrize("boxes", RUNTIME, indirect=True)]

LIMITS = Limits(cpu=0.5, memory=64 << 20, pids=64)
# A kernel of a sandbox's own is charged to it as well.
ROOMY = Limits(cpu=0.5, memory=512 << 20, pids=64)
# Seconds in which a neighbour has to answer while a bomb goes off. Two busy cores shared with other tests; a machine
# that a bomb has got hold of answers in minutes, or never.
PATIENCE = 5.0

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
MEMORY_BOMB = "x = []\nwhile True: x.append(bytearray(1 << 20))"
MEMORY_IN_CHILDREN = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        x = bytearray(8 << 20)
        time.sleep(1000)
time.sleep(1000)
"""
DISK_FILLER = """
import errno, os
full = []
for directory in ("/", "/tmp", "/home", "/var/tmp", "/dev/shm", "/dev", "/run"):
    written = 0
    try:
        with open(f"{directory}/filler", "wb", buffering=0) as file:
            while written < 1 << 30:
                written += file.write(bytes(1 << 20))
        print("no end to", directory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT):
            print(directory, error)
    try:
        os.unlink(f"{directory}/filler")
    except OSError:
        pass
"""
INODE_FILLER = """
made = 0
try:
    while made < 2_000_000:
        open(f"/tmp/{made}", "w").close()
        made += 1
except OSError:
    pass
print("made", made)
"""
DESCRIPTORS = """
import os, socket
held = []
try:
    while len(held) < 100_000:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(len(held) < 1100, error.strerror)
try:
    while len(held) < 100_000:
        held.append(socket.socket())
except OSError as error:
    print(len(held) < 1100)
"""
ZOMBIES = """
import os, sys, time
made = 0
while made < 10_000:
    try:
        if os.fork() == 0:
            os._exit(0)
        made += 1
    except BlockingIOError:
        break
print("stopped", made, flush=True)
time.sleep(1000)
"""
ORPHANS = """
import os, sys, time
made = refused = 0
while made < int(sys.argv[1]) and refused < 50:
    try:
        child = os.fork()
        if child == 0:
            os.fork()  # its parent is gone, so another process has to reap it
            os._exit(0)
        os.waitpid(child, 0)
        made, refused = made + 1, 0
    except BlockingIOError:
        if child == 0:
            os._exit(0)
        refused += 1
        time.sleep(0.05)
print("stopped", made, flush=True)
time.sleep(1000)
"""


@asynccontextmanager
async def neighbour(boxes: Rig) -> AsyncIterator[Callable[[], float]]:
    """Another sandbox that is asked something again and again; what it gives is the longest it took to answer."""
    container = await boxes.start("sleep", "1000")
    longest = 0.0
    enough = False

    async def ask() -> None:
        nonlocal longest
        while not enough:
            begin = time.monotonic()
            assert await boxes.execute(container, "echo", "here") == (0, "here\n")
            longest = max(longest, time.monotonic() - begin)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    try:
        yield lambda: longest
    finally:
        enough = True
        await asking
    assert 0 < longest < PATIENCE


def forking(boxes: Rig) -> Limits:
    return ROOMY if boxes.has_own_kernel else LIMITS


async def spread(container: Container, pids: int) -> None:
    """Wait until it has as many processes as it may."""
    for _ in range(6_000):
        if (await container.usage()).pids >= pids:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the bomb does not go off")


async def test_fork_bomb_is_limited_to_its_sandbox(boxes: Rig) -> None:
    async with neighbour(boxes):
        container = await boxes.start("python3", "-c", FORK_BOMB, limits=forking(boxes))
        await spread(container, 64)
        await asyncio.sleep(0.5)
        allowed = boxes.runtime.limits(LIMITS).pids
        assert allowed is not None and (await container.usage()).pids <= allowed
        begin = time.monotonic()
        await container.delete()
        assert time.monotonic() - begin < PATIENCE


async def test_fork_bomb_in_a_command_is_limited_to_its_sandbox(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000", limits=forking(boxes))
    bomb = asyncio.create_task(boxes.execute(container, "python3", "-c", FORK_BOMB))
    await spread(container, 64)
    await container.kill()
    assert (await bomb)[0] == 137


@pytest.mark.parametrize("bomb", [MEMORY_BOMB, MEMORY_IN_CHILDREN], ids=["one process", "many"])
async def test_memory_bomb_is_oom_killed(boxes: Rig, bomb: str) -> None:
    async with neighbour(boxes):
        result, _, _ = await boxes.run("python3", "-c", bomb, limits=LIMITS)
    assert (result.code, result.oom_killed) == (137, True)


async def test_memory_bomb_in_a_command_ends_the_container(boxes: Rig) -> None:
    container = await boxes.start("sleep", "1000", limits=LIMITS)
    code, _ = await boxes.execute(container, "python3", "-c", MEMORY_BOMB)
    result = await container.wait()
    assert (code, result.code, result.oom_killed) == (137, 137, True)


async def test_memory_limit_of_the_pod_holds_for_all_containers(boxes: Rig) -> None:
    pod = await boxes.pod(limits=Limits(memory=64 << 20))
    result, _, _ = await boxes.run("python3", "-c", MEMORY_BOMB, pod=pod)
    assert result.oom_killed


async def test_disk_filler_cannot_fill_the_host_disk(boxes: Rig) -> None:
    """All it can write to is in memory, bounded by size and by its memory limit, and not on the host's disk."""
    before = os.statvfs("/").f_bavail
    scratch = Scratch(size=16 << 20)
    result, output, _ = await boxes.run("python3", "-c", DISK_FILLER, limits=Limits(memory=128 << 20), scratch=scratch)
    assert (result.code, output) == (0, "")
    assert (before - os.statvfs("/").f_bavail) * os.statvfs("/").f_frsize < 1 << 30


async def test_inode_filler_is_charged_to_its_memory_limit(boxes: Rig) -> None:
    """The kernel charges the memory of a file, even an empty one, to the cgroup that creates it."""
    result, output, _ = await boxes.run("python3", "-c", INODE_FILLER, limits=Limits(memory=48 << 20))
    assert result.oom_killed or int(output.split()[1]) < 500_000


async def test_descriptors_run_out_only_in_their_sandbox(boxes: Rig) -> None:
    async with neighbour(boxes):
        result, output, _ = await boxes.run("python3", "-c", DESCRIPTORS, limits=LIMITS)
    assert (result.code, output) == (0, "True Too many open files\nTrue\n")


async def test_zombies_count_towards_the_pids_limit(boxes: Rig) -> None:
    """Unreaped processes count towards the limit. A quick program finds that of the start, in which there is room for
    the threads of runc, before the container's own limit is set."""
    limits = forking(boxes)
    allowed = limits.pids if boxes.has_own_kernel else boxes.runtime.limits(limits).pids
    assert allowed is not None and allowed <= 2 * 64
    async with neighbour(boxes):
        container = await boxes.start("python3", "-c", ZOMBIES, limits=limits)
        output = await boxes.output_of(container).until("stopped")
        assert int(output.split()[1]) < allowed
        await container.delete()


@pytest.mark.long
async def test_ten_thousand_orphans_are_reaped(boxes: Rig) -> None:
    """bwrap reaps them; where the program itself is the first process, that is its own duty, and its own harm."""
    number = 500 if boxes.has_own_kernel else 10_000  # to fork takes 10 ms there
    container = await boxes.start("python3", "-c", ORPHANS, str(number), limits=Limits(pids=64))
    output = await boxes.output_of(container).until("stopped")
    usage = await container.usage()
    if boxes.runtime.name == "bwrap":
        assert int(output.split()[1]) == 10_000 and usage.pids < 16
    allowed = boxes.runtime.limits(LIMITS).pids
    assert allowed is not None and usage.pids <= allowed
    await container.delete()


async def test_log_flood_is_limited_on_disk(boxes: Rig, tmp_path: Path) -> None:
    """Neither the disk nor the agent is flooded; the one that floods waits."""
    logs = LogManager(SystemClock(), max_size=1 << 20, max_files=3)
    container = await boxes.start("sh", "-c", "yes 0123456789012345678901234567890123456789 | cat", captured=False)
    begin = time.monotonic()
    logs.follow(container, tmp_path / "logs", 0)
    async with neighbour(boxes) as longest:
        await asyncio.sleep(2.0)
        passed = time.monotonic() - begin
        assert longest() < PATIENCE
    await container.kill()
    await logs.finish(container)
    kept = sum(file.stat().st_size for file in (tmp_path / "logs").iterdir())
    assert 1 << 20 < kept < 4 << 20
    used = (await container.usage()).cpu_nanoseconds / 1e9
    assert used < passed, f"it wrote for {used} s of {passed} s, although it may write no more than {RATE} bytes/s"


async def test_unread_output_blocks_its_writer(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "yes", captured=False)
    await asyncio.sleep(0.2)
    before = (await container.usage()).cpu_nanoseconds
    await asyncio.sleep(0.2)
    assert (await container.usage()).cpu_nanoseconds - before < 50_000_000
    await container.delete()
