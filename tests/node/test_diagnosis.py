"""What ``sandpool doctor`` finds out about a machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandpool.node import diagnosis
from sandpool.node.cgroups.mounts import NoCgroups
from sandpool.node.diagnosis import PROGRAMS, Level, examine
from sandpool.node.runtimes.confined import RuntimeUnusable
from sandpool.node.runtimes.oci import CrunRuntime, RuncRuntime

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("release", "level"),
    [("6.1.0-13-amd64", Level.OK), ("5.12", Level.OK), ("5.11.2", Level.PROBLEM), ("odd", Level.PROBLEM)],
)
def test_old_kernels_are_a_problem(release: str, level: Level) -> None:
    assert diagnosis.kernel(release).level is level


def test_missing_root_is_a_warning_that_names_the_limits() -> None:
    assert diagnosis.user(True, "sudo /opt/sandpool up").level is Level.OK
    found = diagnosis.user(False, "sudo /opt/sandpool up")
    assert found.level is Level.WARNING
    assert "no limits of CPU and memory" in found.found and "`sudo /opt/sandpool up`" in found.advice


def test_missing_programs_name_their_package() -> None:
    found = {each.name: each for each in diagnosis.programs(True, lambda name: None)}
    assert set(found) == {each.name for each in PROGRAMS}
    assert found["nft"].level is Level.PROBLEM and found["nft"].advice == "apt-get install nftables"
    assert found["skopeo"].level is Level.NOTE
    assert {each.level for each in diagnosis.programs(False, lambda name: None)} == {Level.NOTE}
    assert {each.level for each in diagnosis.programs(True, lambda name: f"/bin/{name}")} == {Level.OK}


@pytest.mark.parametrize(("free", "level"), [(0, Level.PROBLEM), (5, Level.WARNING), (50, Level.OK)])
def test_low_disk_space_is_a_warning(free: int, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free << 30))
    found = diagnosis.disk(tmp_path / "not" / "made")
    assert found.level is level
    assert str(tmp_path) in found.found


def test_few_open_files_are_a_warning() -> None:
    assert diagnosis.open_files(1024).level is Level.WARNING
    assert diagnosis.open_files(4096).level is Level.OK
    assert diagnosis.open_files(resource.RLIM_INFINITY).found == "unlimited"


@pytest.mark.parametrize(
    ("now", "state", "level"),
    [(NOW, 0, Level.OK), (NOW, 5, Level.NOTE), (NOW - 10 * 86400, 0, Level.PROBLEM), (NOW, -1, Level.OK)],
)
def test_a_wrong_clock_is_found(now: float, state: int, level: Level) -> None:
    assert diagnosis.clock(now, NOW, state).level is level


def test_cgroups_are_needed_by_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoCgroups("no cgroup v2 hierarchy is mounted")

    monkeypatch.setattr(diagnosis, "discover", none)
    assert diagnosis.cgroups(True).level is Level.PROBLEM
    assert diagnosis.cgroups(False).level is Level.NOTE


@pytest.mark.parametrize(
    ("runtime", "find", "level"),
    [
        (CrunRuntime, lambda self: raised("crun is not installed"), Level.NOTE),
        (RuncRuntime, lambda self: raised("runc 1.1.0 lets images escape"), Level.NOTE),
    ],
)
def test_other_runtimes_are_optional(
    runtime: type[CrunRuntime], find: Callable[[object], None], level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "find_binary", find)
    found = diagnosis.optional_runtime(runtime, True)
    assert found.level is level
    assert found.advice.startswith("only for pods with this runtimeClassName")


def raised(message: str) -> None:
    raise RuntimeUnusable(message)


def test_a_bwrap_that_cannot_confine_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho setting up uid map: Permission denied >&2\nexit 1\n")
    program.chmod(0o755)
    binary = SimpleNamespace(directory=tmp_path, program="bwrap", version=(0, 11))
    monkeypatch.setattr(diagnosis, "find_bwrap", lambda: binary)
    found = diagnosis.namespaces()
    assert found.level is Level.PROBLEM
    assert found.found == "bwrap 0.11 fails: setting up uid map: Permission denied"
    assert "kernel.unprivileged_userns_clone" in found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the machine may forbid user namespaces")
def test_this_machine_can_run_sandboxes(tmp_path: Path) -> None:
    """It does: the tests of isolation run on it."""
    found = {each.name: each for each in examine(tmp_path, "sudo sandpool up")}
    assert found["bwrap"].level is Level.OK, found["bwrap"]
    assert found["cgroups"].level is Level.OK, found["cgroups"]
    assert found["seccomp"].level is Level.OK
