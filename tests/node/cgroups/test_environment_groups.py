"""Groups by an environment variable: who belongs to them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.node.cgroups import environment_groups
from sandpool.node.cgroups.environment_groups import EnvironmentGroup, EnvironmentGroups, group_environment
from sandpool.node.cgroups.process_identity import proc_stat


@pytest.fixture
def group(tmp_path: Path) -> EnvironmentGroup:
    return EnvironmentGroups(tmp_path).group("pod", "main")


@pytest.fixture
def member(group: EnvironmentGroup) -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **group_environment(group)}) as process:
        yield process.pid
        process.kill()


def test_a_process_belongs_to_the_group_of_its_variable_and_to_those_above(
    group: EnvironmentGroup, member: int, tmp_path: Path
) -> None:
    assert group.processes() == [member]
    assert EnvironmentGroups(tmp_path).group("pod").processes() == [member]
    assert EnvironmentGroups(tmp_path).group("pod", "mai").processes() == []


def test_a_process_that_executes_a_program_is_not_overlooked(
    group: EnvironmentGroup, member: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows neither environment nor its place until the new program is loaded. Its answers are replayed: the
    moment is too short to be met at will."""
    looks = 0
    read_bytes = Path.read_bytes

    def empty_at_first(path: Path) -> bytes:
        nonlocal looks
        if path != Path(f"/proc/{member}/environ"):
            return read_bytes(path)
        looks += 1
        return read_bytes(path) if looks > 2 else b""

    def without_places_at_first(pid: int) -> list[str]:
        fields = proc_stat(pid)
        return [*fields[:47], "0", "0", *fields[49:]] if pid == member and looks < 2 else fields

    monkeypatch.setattr(Path, "read_bytes", empty_at_first)
    monkeypatch.setattr(environment_groups, "proc_stat", without_places_at_first)
    assert group.processes() == [member]
    assert looks == 3


def test_a_process_without_an_environment_is_looked_at_once(
    group: EnvironmentGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(seconds: float) -> None:
        raise AssertionError("waited for an environment that does not come")

    monkeypatch.setattr(time, "sleep", pause)
    with subprocess.Popen(["sleep", "1000"], env={}) as process:
        while proc_stat(process.pid)[48] == "0" or Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            os.sched_yield()
        assert environment_groups._environment(str(process.pid)) == b""
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert environment_groups._environment(str(process.pid)) == b""  # a zombie
    assert environment_groups._environment("2") == b""  # a kernel thread, or not visible
