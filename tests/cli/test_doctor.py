"""``sandpool doctor``: the machine and the home."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool import __version__
from sandpool.cli import doctor
from sandpool.cli.main import main
from sandpool.home.discovery import announced
from sandpool.node.diagnosis import Finding, Level
from tests.home.test_discovery import default_dir, home_in


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "KUBECONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "examine", lambda directory, with_root: iter([Finding("kernel", Level.OK, "Linux")]))
    return {"HOME": str(tmp_path)}


def examined() -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(main, ["doctor", "-o", "json"])
    document = json.loads(result.output)
    assert document["ok"] is (result.exit_code == 0)
    return result.exit_code, {each["name"]: each for each in document["findings"]}


def test_a_healthy_machine_without_a_home_is_no_problem(user: dict[str, str]) -> None:
    code, found = examined()
    assert code == 0
    assert found["home"]["level"] == "note"
    assert {"port 6443", "port 6490", "port 6491"} <= set(found)


def test_a_taken_port_is_a_warning(user: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "_PORTS", {"router": port})
        code, found = examined()
    assert code == 0
    assert found[f"port {port}"]["level"] == "warning"


def test_a_problem_is_shown_with_what_to_do_and_a_status(user: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Finding("nft", Level.PROBLEM, "not installed", "apt-get install nftables")
    monkeypatch.setattr(doctor, "examine", lambda directory, with_root: iter([problem]))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    first, advice, *_, last = result.output.splitlines()
    assert first.split() == ["problem", "nft", "not", "installed"]
    assert advice.strip() == "-> apt-get install nftables"
    assert last.startswith("sandboxes cannot run here yet; problems: 1")
    assert "\x1b" not in result.output, "colours are for terminals"


def test_a_home_that_does_not_answer_is_a_problem(user: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api:
        home = replace(
            home_in(default_dir(user)),
            url=f"https://127.0.0.1:{api.getsockname()[1]}",
            router_url="http://127.0.0.1:1",
            version=__version__,
        )
        with announced(home, user):
            code, found = examined()
    assert code == 1
    assert found["home"]["level"] == "ok"
    assert found["API"]["level"] == "ok"
    assert found["router"]["level"] == "problem"
    assert found["router"]["advice"] == "see `sandpool logs`"


def test_a_home_of_another_version_is_a_warning(user: dict[str, str]) -> None:
    with announced(replace(home_in(default_dir(user)), router_url=None), user):
        _, found = examined()
    assert found["home"]["level"] == "warning"
    assert "has version 1.2.3" in found["home"]["found"]
