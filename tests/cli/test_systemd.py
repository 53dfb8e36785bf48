"""The systemd unit of ``sandpool up``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool.cli.main import main
from sandpool.cli.systemd import unit


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_the_unit_runs_the_same_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--data-dir", "my data", "--simulated-nodes", "2"]
    result = CliRunner().invoke(main, ["up", *arguments, "--systemd-unit"])
    assert result.exit_code == 0, result.output
    found = lines(result.stdout)
    program = f"{sys.executable} -m sandpool.cli.main"
    assert found["ExecStart"] == f'{program} up --data-dir "my data" --simulated-nodes 2'
    assert found["WorkingDirectory"] == str(tmp_path)
    assert found["Type"] == "notify"
    assert not (tmp_path / "my data").exists()


def test_stopping_the_service_leaves_sandboxes_running() -> None:
    assert lines(unit([], Path("/"), is_root=True))["KillMode"] == "process"


def test_special_characters_mean_themselves() -> None:
    found = lines(unit(["--data-dir", 'a "$b" 100%'], Path("/tmp/50%"), is_root=True))
    assert found["ExecStart"].endswith(r'--data-dir "a \"$$b\" 100%%"')
    assert found["WorkingDirectory"] == "/tmp/50%%"


@pytest.mark.parametrize("is_root", [True, False], ids=["system", "user"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(is_root: bool, tmp_path: Path) -> None:
    file = tmp_path / "sandpool.service"
    file.write_text(unit(["--data-dir", "my $data"], tmp_path, is_root=is_root))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(() if is_root else ("--user",)), str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "sandpool" in line]) == (0, []), done.stderr
