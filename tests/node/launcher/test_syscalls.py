"""System calls that nothing else tests by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.node.cgroups.hierarchy import Cgroup, Cgroups
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import discover
from sandpool.node.launcher import server, syscalls


@pytest.fixture
def group() -> Iterator[Cgroup]:
    cgroups = Cgroups(discover(), f"sandpool-kernel-{os.getpid()}")
    made = cgroups.group("born")
    made.create(Limits())
    yield made
    cgroups.group().remove_empty()
    cgroups.close()


@pytest.mark.isolation
def test_child_is_forked_into_a_cgroup(group: Cgroup) -> None:
    directory = os.open(group.directory, os.O_RDONLY | os.O_DIRECTORY)
    pid = syscalls.fork_into(directory)
    if pid == 0:
        here = f"0::/{group.path}" in Path("/proc/self/cgroup").read_text().splitlines()
        os._exit(0 if here else 1)
    os.close(directory)
    assert os.waitpid(pid, 0) == (pid, 0)


@pytest.mark.isolation
def test_fork_into_a_directory_that_is_no_cgroup_fails() -> None:
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        syscalls.fork_into(directory)
    os.close(directory)


def test_old_kernel_forks_outside_the_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(cgroup: int) -> int:
        raise NotImplementedError

    monkeypatch.setattr(syscalls, "fork_into", unknown)
    assert server._fork_into("/") is None
