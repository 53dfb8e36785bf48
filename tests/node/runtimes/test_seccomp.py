"""Seccomp filters are those of the generator, and unknown machines have none."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.node.runtimes import seccomp

GENERATOR = Path(__file__).parents[3] / "dev" / "seccomp"


@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="libseccomp is not installed")
def test_filters_are_up_to_date(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, GENERATOR, "--output", tmp_path], capture_output=True, text=True, check=False
    )
    if "too old" in made.stderr:
        pytest.skip(made.stderr)
    assert made.returncode == 0, made.stderr
    kept = Path(seccomp.__file__).parent
    for file in tmp_path.rglob("*.*"):
        name = file.relative_to(tmp_path)
        assert file.read_bytes() == (kept / name).read_bytes(), f"{name} differs: run dev/seccomp"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filters_are_valid_bpf_programs(machine: str) -> None:
    program = seccomp.program(machine)
    assert len(program) % 8 == 0 and 0 < len(program) // 8 < 4096


def test_unknown_machine_is_an_error() -> None:
    with pytest.raises(seccomp.NoFilter, match="there is no seccomp filter for pdp11"):
        seccomp.program("pdp11")


def test_dangerous_system_calls_are_denied() -> None:
    profile = seccomp.profile()
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    refused = {
        "mount", "unshare", "setns", "bpf", "keyctl", "add_key", "io_uring_setup", "perf_event_open", "kexec_load",
        "init_module", "open_by_handle_at", "userfaultfd", "reboot", "pivot_root", "clone3",
    }  # fmt: skip
    assert not allowed & refused
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
