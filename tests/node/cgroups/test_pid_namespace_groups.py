"""Groups that are PID namespaces: who is in them, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.pid_namespace_groups import PidNamespaceGroup, PidNamespaceGroups
from sandpool.node.cgroups.process_identity import append_member, proc_stat

pytestmark = pytest.mark.isolation

# One of them is a zombie, which does not count.
SCRIPT = "sh -c 'sleep 0 & exec sleep 1000' & setsid sleep 1000 & echo; wait"


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def below(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from below(child)


@pytest.fixture
def watcher() -> Iterator[subprocess.Popen[bytes]]:
    """A process like bwrap: its child is the first process of a PID namespace."""
    command = ["unshare", "--pid", "--fork", "sh", "-c", SCRIPT]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while "Z" not in (proc_stat(pid)[0] for pid in below(process.pid)):
        time.sleep(0.01)
    yield process
    with suppress(FileNotFoundError):
        for first in children(process.pid):
            os.kill(first, signal.SIGKILL)  # and all in the namespace with it
    process.kill()
    process.communicate()


@pytest.fixture
def group(tmp_path: Path, watcher: subprocess.Popen[bytes]) -> PidNamespaceGroup:
    group = PidNamespaceGroups(tmp_path).group("pod", "main")
    group.create(Limits())
    (entrance,) = group.join_files()
    append_member(str(entrance), watcher.pid)
    return group


async def test_processes_of_a_namespace_are_listed(
    group: PidNamespaceGroup, watcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    found = group.processes()
    assert watcher.pid in found and len(found) == 4  # the shell is the first, and has two
    assert sorted(PidNamespaceGroups(tmp_path).group("pod").processes()) == sorted(found)
    assert PidNamespaceGroups(tmp_path).group().children() == ["pod"]
    assert group.usage().pids == 4
    await group.kill()
    assert group.processes() == []


async def test_processes_are_frozen_and_thawed(group: PidNamespaceGroup) -> None:
    assert not group.is_frozen()
    await group.freeze()
    assert group.is_frozen()
    await group.thaw()
    assert not group.is_frozen()
    await group.freeze()
    await group.remove()
    assert group.processes() == [] and not group.directory.exists()


async def test_processes_are_found_after_their_monitor_was_killed(
    group: PidNamespaceGroup, watcher: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert len(group.processes()) == 4
    watcher.kill()
    watcher.wait()
    again = PidNamespaceGroups(tmp_path).group("pod", "main")
    assert len(again.processes()) == 3
    await again.kill()
    assert again.processes() == []


def test_reused_pid_is_not_taken_for_the_group(tmp_path: Path, watcher: subprocess.Popen[bytes]) -> None:
    group = PidNamespaceGroups(tmp_path).group("pod", "main")
    group.create(Limits())
    (entrance,) = group.join_files()
    entrance.write_text(f"{watcher.pid} 1\n")
    assert group.processes() == []
