"""Limits are written as the kernel reads them, in both versions; on a tree of plain files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sandpool.node.cgroups import controllers as module
from sandpool.node.cgroups.controllers import Hybrid, Unified, controllers_of
from sandpool.node.cgroups.limits import Limits
from sandpool.node.cgroups.mounts import Mounts

GROUP = "node/pod/main"


@pytest.fixture
def unified(tmp_path: Path) -> Unified:
    controllers = controllers_of(Mounts(tmp_path, {}))
    assert isinstance(controllers, Unified)
    controllers.make(GROUP)
    return controllers


@pytest.fixture
def hybrid(tmp_path: Path) -> Hybrid:
    v1 = {name: tmp_path / name for name in ("cpu", "memory", "pids")}
    controllers = controllers_of(Mounts(tmp_path / "unified", v1))
    assert isinstance(controllers, Hybrid)
    controllers.make(GROUP)
    return controllers


def written(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir() if file.is_file()}


def test_unified_limits_are_written(unified: Unified, tmp_path: Path) -> None:
    unified.limit(GROUP, Limits(cpu=1.5, cpu_request=1.0, memory=1 << 30, pids=64))
    assert written(tmp_path / GROUP) == {
        "cpu.max": "150000 100000",
        "cpu.weight": "39",
        "memory.max": "1073741824",
        "memory.oom.group": "1",
        "pids.max": "64",
    }


def test_unified_controllers_are_enabled_on_the_way_and_not_where_processes_are(
    unified: Unified, tmp_path: Path
) -> None:
    for above in (tmp_path, tmp_path / "node", tmp_path / "node/pod"):
        assert (above / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert not (tmp_path / GROUP / "cgroup.subtree_control").exists()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root as a container sees it: it has processes, and until they have moved it passes no controllers on."""
    processes = tmp_path / "cgroup.procs"
    processes.write_text("1\n7\n")

    def write(file: Path, value: str) -> None:
        if file == tmp_path / "cgroup.subtree_control" and processes.read_text():
            raise OSError(errno.EBUSY, "busy")
        if file.name == "cgroup.procs":
            left = [pid for pid in processes.read_text().split() if pid != value]
            processes.write_text("".join(f"{pid}\n" for pid in left))
            value = f"{file.read_text() if file.exists() else ''}{value}\n"
        file.write_text(value)

    monkeypatch.setattr(module, "_write", write)
    return tmp_path


def test_unified_root_moves_the_processes_of_a_container_aside(busy: Path) -> None:
    controllers_of(Mounts(busy, {})).make(GROUP)
    assert (busy / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (busy / "others/cgroup.procs").read_text() == "1\n7\n"


def test_unified_processes_of_other_namespaces_are_not_moved(busy: Path) -> None:
    (busy / "cgroup.procs").write_text("0\n7\n")
    with pytest.raises(OSError, match="cannot be moved"):
        controllers_of(Mounts(busy, {})).make(GROUP)
    assert (busy / "others/cgroup.procs").read_text() == "7\n"


def test_unified_without_limits_writes_max(unified: Unified, tmp_path: Path) -> None:
    unified.limit(GROUP, Limits())
    assert written(tmp_path / GROUP) == {
        "cpu.max": "max 100000",
        "memory.max": "max",
        "memory.oom.group": "1",
        "pids.max": "max",
    }


def test_unified_memory_limit_disables_swap(unified: Unified, tmp_path: Path) -> None:
    (tmp_path / GROUP / "memory.swap.max").write_text("max")
    unified.limit(GROUP, Limits(memory=1 << 20))
    assert written(tmp_path / GROUP)["memory.swap.max"] == "0"


def test_unified_usage_is_read(unified: Unified, tmp_path: Path) -> None:
    (tmp_path / GROUP / "memory.current").write_text("5000\n")
    (tmp_path / GROUP / "memory.stat").write_text("anon 1\ninactive_file 2000\n")
    (tmp_path / GROUP / "memory.events").write_text("low 0\noom 2\noom_kill 1\noom_group_kill 1\n")
    (tmp_path / GROUP / "pids.current").write_text("7\n")
    assert unified.memory(GROUP) == (5000, 2000)
    assert unified.oom_kills(GROUP) == 1
    assert unified.pids(GROUP) == 7
    assert unified.join_files(GROUP) == []


def test_hybrid_limits_are_written(hybrid: Hybrid, tmp_path: Path) -> None:
    (tmp_path / "memory" / GROUP / "memory.memsw.limit_in_bytes").write_text("-1")
    hybrid.limit(GROUP, Limits(cpu=0.2, cpu_request=0.5, memory=1 << 20, pids=64))
    assert written(tmp_path / "cpu" / GROUP) == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "20000",
        "cpu.shares": "512",
    }
    assert written(tmp_path / "memory" / GROUP) == {
        "memory.limit_in_bytes": "1048576",
        "memory.memsw.limit_in_bytes": "1048576",
    }
    assert written(tmp_path / "pids" / GROUP) == {"pids.max": "64"}


def test_hybrid_without_limits_writes_unlimited(hybrid: Hybrid, tmp_path: Path) -> None:
    hybrid.limit(GROUP, Limits())
    assert written(tmp_path / "cpu" / GROUP)["cpu.cfs_quota_us"] == "-1"
    assert written(tmp_path / "memory" / GROUP)["memory.limit_in_bytes"] == "-1"
    assert written(tmp_path / "pids" / GROUP)["pids.max"] == "max"


def test_hybrid_usage_is_read(hybrid: Hybrid, tmp_path: Path) -> None:
    memory = tmp_path / "memory" / GROUP
    (memory / "memory.usage_in_bytes").write_text("5000\n")
    (memory / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 2000\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert hybrid.memory(GROUP) == (5000, 2000)
    assert hybrid.oom_kills(GROUP) == 3
    assert hybrid.join_files(GROUP) == [tmp_path / name / GROUP / "tasks" for name in ("cpu", "memory", "pids")]


@pytest.mark.parametrize("cores", [0.001, 0.0])
def test_cpu_limit_is_at_least_the_kernel_minimum(unified: Unified, tmp_path: Path, cores: float) -> None:
    unified.limit(GROUP, Limits(cpu=cores, cpu_request=cores))
    assert (tmp_path / GROUP / "cpu.max").read_text() == "1000 100000"
    assert (tmp_path / GROUP / "cpu.weight").read_text() == "1"
