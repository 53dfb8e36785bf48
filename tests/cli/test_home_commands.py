"""The local home as its user meets it: started in the background, found, described, followed and stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from click.testing import CliRunner

from sandpool import __version__
from sandpool.cli.main import main
from sandpool.cli.start_request import preferred, preferred_port
from sandpool.home import contexts
from sandpool.home.discovery import Home, announced
from sandpool.home.process import ProcessIdentity
from tests.home.test_connection import kubeconfig
from tests.home.test_discovery import default_dir, home_in
from tests.support.other_user import NoOtherUser, other_user

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sandpool(tmp_path: Path) -> Iterator[Run]:
    """Runs a command as a user of its own; ends the home that is left."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "KUBE", "SUDO_"))}
    environ["HOME"] = str(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sandpool.cli.main", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )

    yield run
    run("down", "--ephemeral")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user without anything, for commands in this process."""
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"HOME": str(tmp_path)}


@pytest.fixture
def home(user: dict[str, str]) -> Iterator[Home]:
    described = home_in(default_dir(user))
    kubeconfig(described.kubeconfig, "sandpool", 3)
    with announced(described, user) as home:
        yield home


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_home_in_the_background_is_found_described_and_stopped(sandpool: Run, tmp_path: Path) -> None:
    options = ("--simulated-nodes", "2", "--port", "0", "--router-bind-address", "127.0.0.1:0", "--audit-log", "log")
    started = sandpool("up", "-d", "--metrics-bind-address", "0", "--data-dir", "data", *options)
    assert started.returncode == 0, started.stderr
    assert started.stderr.splitlines()[:2] == [
        "loading",
        f"starting the local home in the background, log in {tmp_path / 'data' / 'up.log'}",
    ]
    assert (tmp_path / "log").exists(), "paths of options are relative to where the user is"

    assert re.search(r"^home .*, up \d+s$", sandpool("status").stdout, re.MULTILINE)
    found = json.loads(sandpool("status", "-o", "json").stdout)
    assert f"is running, pid {found['home']['pid']}:" in started.stdout
    assert found["home"]["dataDir"] == str(tmp_path / "data")
    assert found["router"]["answers"] is True
    assert [node["name"] for node in found["nodes"]] == ["simulated-1", "simulated-2"]

    again = sandpool("up")
    assert again.returncode == 0
    assert f"pid {found['home']['pid']}:" in again.stdout and found["server"] in again.stdout
    different = sandpool("up", "--simulated-nodes", "3")
    assert different.returncode == 1
    assert "a home already runs without --simulated-nodes 3: pid " in different.stderr
    assert "Stop it first with" in different.stderr

    assert "is running, pid" in sandpool("logs").stdout
    stopped = sandpool("down")
    assert stopped.returncode == 0
    assert stopped.stdout.startswith(f"stopped the home with pid {found['home']['pid']}. Kept: all objects, volumes")
    last = sandpool("logs", "--data-dir", "data", "--tail", "1").stdout
    assert last == f"stopped. Kept: all objects, volumes and images in {tmp_path / 'data'}\n"
    assert sandpool("down").stdout == "no local home runs\n"
    nothing = sandpool("status")
    assert (nothing.returncode, nothing.stderr.splitlines()) == (
        1,
        [
            "Error: no local home runs and no cluster is configured: start a home with `sandpool up`, "
            "or set KUBECONFIG or create ~/.kube/config for a cluster"
        ],
    )


def test_context_shows_the_home_and_why(home: Home) -> None:
    shown = json.loads(invoke("context", "show", "-o", "json"))
    assert (shown["server"], shown["source"], shown["home"]) == ("http://127.0.0.1:3", "the local home", "local")
    assert invoke("context", "show", "--kubeconfig-path") == f"{home.kubeconfig}\n"


def test_context_use_chooses_a_cluster_and_goes_back(home: Home, user: dict[str, str]) -> None:
    default = kubeconfig(Path(user["HOME"]) / ".kube" / "config", "prod", 5)
    before = default.read_bytes()
    assert [(each["name"], each["used"]) for each in json.loads(invoke("context", "ls", "-o", "json"))["items"]] == [
        ("local", True),
        ("prod", False),
    ]
    assert invoke("context", "use", "prod") == "commands use prod, http://127.0.0.1:5\n"
    assert json.loads(invoke("context", "show", "-o", "json"))["server"] == "http://127.0.0.1:5"
    assert [line.split()[:2] for line in invoke("context", "ls").splitlines()[1:]] == [
        ["local", "https://127.0.0.1:6443"],
        ["*", "prod"],
    ]
    assert invoke("context", "ls", "-o", "name") == "context/local\ncontext/prod\n"
    invoke("context", "use", "--default")
    assert contexts.chosen(user) is None
    assert json.loads(invoke("context", "show", "-o", "json"))["home"] == "local"
    assert default.read_bytes() == before


def test_context_use_of_an_unknown_name_lists_the_known_ones(home: Home) -> None:
    result = CliRunner().invoke(main, ["context", "use", "nowhere"])
    assert (result.exit_code, result.output) == (1, "Error: there is no context nowhere; known: local\n")


def test_context_export_adds_to_a_kubeconfig_and_keeps_a_backup(home: Home, user: dict[str, str]) -> None:
    default = kubeconfig(Path(user["HOME"]) / ".kube" / "config", "prod", 5)
    before = default.read_bytes()
    invoke("context", "export", "--into", str(default))
    invoke("context", "export", "--into", str(default), "--use")
    merged = yaml.safe_load(default.read_text())
    assert merged["current-context"] == "sandpool"
    for kind in ("clusters", "users", "contexts"):
        assert [each["name"] for each in merged[kind]] == ["prod", "sandpool"]
    assert merged["clusters"][1]["cluster"]["server"] == "http://127.0.0.1:3"
    backups = [default.with_name("config.backup"), default.with_name("config.backup-2")]
    assert backups[0].read_bytes() == before
    assert yaml.safe_load(backups[1].read_text())["current-context"] == "prod"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (default, *backups))


def test_context_export_prints_the_kubeconfig_without_a_file(home: Home) -> None:
    assert invoke("context", "export") == home.kubeconfig.read_text()


def test_down_of_a_home_of_another_user_says_to_use_sudo(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("signal.pidfd_send_signal", refused)
    monkeypatch.setattr(ProcessIdentity, "owner", lambda self: 0)
    result = CliRunner().invoke(main, ["down"])
    assert result.exit_code == 1
    assert f"the home with pid {home.pid} belongs to root: run `sudo " in result.output


def test_logs_of_a_home_in_the_foreground_are_elsewhere(home: Home) -> None:
    result = CliRunner().invoke(main, ["logs"])
    assert result.exit_code == 1
    assert "runs in the foreground: its terminal or service manager has the log" in result.output


def test_logs_show_the_last_lines(user: dict[str, str]) -> None:
    result = CliRunner().invoke(main, ["logs"])
    assert result.exit_code == 1 and "no home was started in the background yet" in result.output
    default_dir(user).mkdir(parents=True)
    (default_dir(user) / "up.log").write_text("one\ntwo\nthree\n")
    assert invoke("logs") == "one\ntwo\nthree\n"
    assert invoke("logs", "--tail", "2") == "two\nthree\n"
    assert invoke("logs", "--tail", "0") == ""


def test_version_names_the_version_of_the_home_too(home: Home) -> None:
    found = json.loads(invoke("version", "-o", "json"))
    assert (found["sandpool"], found["home"]) == (__version__, "1.2.3")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    assert "_SANDPOOL_COMPLETE" in invoke("completion", shell)


def test_completion_offers_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from sandpool.cli.main import main; main(prog_name='sandpool')"],
        env={**os.environ, "_SANDPOOL_COMPLETE": "bash_complete", "COMP_WORDS": "sandpool sta", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["plain,status"], done.stderr


def test_a_taken_default_port_is_replaced_by_a_free_one() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert preferred_port("127.0.0.1", port) == 0
        assert preferred(f"127.0.0.1:{port}") == "127.0.0.1:0"
    assert preferred_port("127.0.0.1", port) == port
    assert preferred(f"127.0.0.1:{port}") == f"127.0.0.1:{port}"
    assert preferred("0") == "0"


def test_up_shows_the_options_that_matter_first() -> None:
    output = invoke("up", "--help")
    titles = ["Options", "API", "Node", "Router", "Dashboard", "Metrics, logs and traces", "Controller tuning"]
    sections = re.split(r"\n(?=[A-Z][A-Za-z, ]+:\n)", output)[1:]
    assert [each.partition(":")[0] for each in sections] == titles
    assert len(re.findall(r"^  -", sections[0], re.MULTILINE)) <= 11
    known = {option for each in main.get_command(click.Context(main), "up").params for option in each.opts}  # type: ignore[union-attr]
    assert {option for option in known if option not in output} == set()


def test_images_are_those_of_the_running_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def store(directory: Path) -> SimpleNamespace:
        opened.append(directory)
        return SimpleNamespace(names=dict)

    monkeypatch.setattr("sandpool.cli.image._store", store)
    invoke("image", "ls")
    assert opened == [home.data_dir]


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes a directory that the other user cannot read")
def test_files_of_a_home_of_root_need_sudo() -> None:
    with tempfile.TemporaryDirectory(prefix="sandpool-of-root-") as of_root:  # mode 0700, in a directory for all
        files_need_sudo(Path(of_root))


def files_need_sudo(of_root: Path) -> None:
    try:
        with other_user() as alice:
            done = subprocess.run(
                alice.command("-m", "sandpool.cli.main", "image", "ls", "--data-dir", of_root),
                env={"PATH": os.environ["PATH"], "HOME": str(alice.place)},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
    except NoOtherUser as why:
        pytest.skip(str(why))
    again = f"-m sandpool.cli.main image ls --data-dir {of_root}"
    expected = f"Error: {of_root} belongs to another user: run `sudo {alice.python} {again}`\n"
    assert (done.returncode, done.stderr) == (1, expected)
