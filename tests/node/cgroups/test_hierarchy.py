"""Real cgroups: what is in them is limited, stopped and killed, and none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from glob import glob

import pytest

from sandpool.node.cgroups.hierarchy import Cgroup, Cgroups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import discover
from tests.support.cgroups import is_populated

pytestmark = pytest.mark.isolation

HOG = "import mmap; m = mmap.mmap(-1, 64 << 20); m.write(b'x' * (64 << 20))"
FORKS = """
import os, signal
made = 0
try:
    while os.fork():
        made += 1
    signal.pause()
except BlockingIOError:
    print(made)
"""

# What a container's process sees: its own cgroup as the root of all. It makes one below.
CONTAINED = """
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import discover
from sandpool.node.cgroups.hierarchy import Cgroups
cgroups = Cgroups(discover(), "node")
cgroups.check()
group = cgroups.group("pod")
group.create(Limits(pids=8))
print((group.directory / "pids.max").read_text().strip(), open("/proc/self/cgroup").read().strip())
"""


@pytest.fixture
async def cgroups() -> AsyncIterator[Cgroups]:
    cgroups = Cgroups(discover(), f"sandpool-test-{os.getpid()}")
    yield cgroups
    root = cgroups.group()
    await root.remove()
    cgroups.close()
    assert not glob(f"/sys/fs/cgroup/*/{cgroups.name}") + glob(f"/sys/fs/cgroup/{cgroups.name}")


@pytest.fixture
def group(cgroups: Cgroups) -> Cgroup:
    cgroups.group("pod").create(Limits())
    group = cgroups.group("pod", "main")
    group.create(Limits(cpu=0.5, memory=32 << 20, pids=8))
    return group


def run(group: Cgroup, *argv: str) -> subprocess.Popen[str]:
    """Start a program in the cgroup."""
    enter = "".join(f"echo 0 > {file} && " for file in group.join_files()) + 'exec "$@"'
    return subprocess.Popen(
        ["sh", "-c", enter, "sh", *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=30)
    return output


async def test_check_passes_on_this_machine(cgroups: Cgroups) -> None:
    cgroups.check()
    assert cgroups.group().children() == []


async def test_processes_are_listed_and_killed(group: Cgroup) -> None:
    process = run(group, "sh", "-c", "sleep 100 & sleep 100 & echo there; wait")
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    assert is_populated(group) and process.pid in group.processes()
    assert group.usage().pids == 3
    await group.kill()
    assert not is_populated(group) and group.processes() == []
    ended(process)
    assert process.returncode == -signal.SIGKILL


async def test_frozen_processes_do_not_run_and_can_be_killed(group: Cgroup) -> None:
    process = run(group, "sh", "-c", "echo there; while :; do :; done")
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    await group.freeze()
    assert group.is_frozen()
    before = group.usage().cpu_nanoseconds
    await asyncio.sleep(0.05)
    assert group.usage().cpu_nanoseconds == before
    await group.thaw()
    assert not group.is_frozen()
    await group.freeze()
    await group.kill()
    ended(process)
    assert not is_populated(group)


async def test_oom_kill_is_counted_and_reported(group: Cgroup) -> None:
    told = asyncio.Event()
    watch = group.watch_oom(told.set)
    process = run(group, "python3", "-c", HOG)
    await asyncio.to_thread(ended, process)
    assert process.returncode == -signal.SIGKILL
    assert group.oom_kills() >= 1  # v2 counts the first to go twice: by itself, and with all the others
    if watch is not None:
        await asyncio.wait_for(told.wait(), 30)
        watch.close()


async def test_pids_limit_is_enforced(group: Cgroup) -> None:
    process = run(group, "python3", "-c", FORKS)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == 7
    await group.kill()
    ended(process)


async def test_cpu_limit_is_enforced(group: Cgroup) -> None:
    process = run(group, "sh", "-c", "while :; do :; done")
    before = group.usage().cpu_nanoseconds
    await asyncio.sleep(1.0)
    used = (group.usage().cpu_nanoseconds - before) / 1e9
    await group.kill()
    ended(process)
    assert used < 0.75, "half a core is 0.5, and may come in pieces of a tenth of a second"


async def test_limits_can_be_raised_and_lowered(group: Cgroup) -> None:
    for memory in (16 << 20, 128 << 20, None, 64 << 20):
        group.limit(Limits(memory=memory, pids=8))
    process = run(group, "python3", "-c", HOG.replace("64", "24"))
    ended(process)
    assert process.returncode == 0


async def test_remove_kills_and_is_idempotent(cgroups: Cgroups, group: Cgroup) -> None:
    process = run(group, "sh", "-c", "echo there; sleep 100")
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    await cgroups.group("pod").remove()
    await cgroups.group("pod").remove()
    ended(process)
    assert not group.exists
    assert group.processes() == [] and not is_populated(group) and group.oom_kills() == 0


async def test_waiter_for_a_removed_cgroup_is_woken(cgroups: Cgroups, group: Cgroup) -> None:
    waiting = asyncio.create_task(
        cgroups.events.wait_until(group.directory / "cgroup.events", lambda text: "never" in text)
    )
    await asyncio.sleep(0)
    await cgroups.group("pod").remove()
    await asyncio.wait_for(waiting, 30)


async def test_nested_cgroups_work_in_a_container(cgroups: Cgroups) -> None:
    if discover().v1:
        pytest.skip("only cgroup v2 keeps processes and limits apart (dev/vm has it)")
    group = cgroups.group("container")
    group.create(Limits())
    inside = 'umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
    process = run(group, "unshare", "--cgroup", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", CONTAINED)
    assert ended(process) == "8 0::/others\n"


def test_path_outside_the_group_is_rejected(cgroups: Cgroups) -> None:
    with pytest.raises(ValueError, match="not a path"):
        cgroups.group("..", "other")
