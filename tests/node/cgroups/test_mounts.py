"""Discovery of cgroup hierarchies from the mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandpool.node.cgroups.mounts import Mounts, NoCgroups, discover


def table(tmp_path: Path, *, v2: str | None, v1: tuple[str, ...] = ()) -> Path:
    """A mount table with hierarchies below ``tmp_path``; ``v2`` are the controllers of the unified one."""
    lines = ["22 1 254:0 / / rw,relatime - ext4 /dev/vda rw"]
    if v2 is not None:
        (tmp_path / "unified").mkdir()
        (tmp_path / "unified" / "cgroup.controllers").write_text(v2)
        lines.append(f"31 22 0:27 / {tmp_path}/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate")
    lines += [f"32 22 0:28 / {tmp_path}/{name} rw,relatime - cgroup cgroup rw,{name}" for name in v1]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines))
    return file


def test_unified_hierarchy_is_discovered(tmp_path: Path) -> None:
    assert discover(table(tmp_path, v2="cpuset cpu io memory pids")) == Mounts(tmp_path / "unified", {})


def test_hybrid_hierarchy_takes_controllers_from_v1(tmp_path: Path) -> None:
    found = discover(table(tmp_path, v2="hugetlb", v1=("cpu,cpuacct", "memory", "pids", "name=systemd")))
    assert found.unified == tmp_path / "unified"
    assert found.v1 == {
        "cpu": tmp_path / "cpu,cpuacct",
        "memory": tmp_path / "memory",
        "pids": tmp_path / "pids",
    }


@pytest.mark.parametrize(
    ("v2", "v1", "why"),
    [
        (None, ("cpu", "memory", "pids"), "no cgroup v2 hierarchy"),
        ("cpu", ("memory",), "no cgroup controller for pids"),
    ],
)
def test_missing_controllers_are_named(tmp_path: Path, v2: str | None, v1: tuple[str, ...], why: str) -> None:
    with pytest.raises(NoCgroups, match=why):
        discover(table(tmp_path, v2=v2, v1=v1))
