"""``sudo sandpool up``: root runs the home, and the user who called sudo uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.bench.child_process import Component
from tests.support.other_user import NoOtherUser, OtherUser, other_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes a process root")

# As root started by sudo: the account of the caller is one that this machine does not have.
_SUDO = """
import os, pwd, sys
uid = int(os.environ["SUDO_UID"])
account = pwd.struct_passwd(("alice", "x", uid, uid, "", sys.argv[1], ""))
real = pwd.getpwuid
pwd.getpwuid = lambda uid: account if uid == account.pw_uid else real(uid)
from sandpool.cli.main import main
main(sys.argv[2:], prog_name="sandpool")
"""


@pytest.fixture
def alice() -> Iterator[OtherUser]:
    try:
        with other_user() as found:
            yield found
    except NoOtherUser as why:
        pytest.skip(str(why))


@pytest.fixture
def up(alice: OtherUser, tmp_path: Path) -> Iterator[Component]:
    environ = {"HOME": str(tmp_path / "root"), "SUDO_UID": str(alice.uid), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    options = ("--port", "0", "--router-bind-address", "127.0.0.1:0", "--metrics-bind-address", "0")
    command: list[str | Path] = [
        *("env", *(f"{name}={value}" for name, value in environ.items())),
        *(sys.executable, "-c", _SUDO, alice.place, "up", "--simulated-nodes", "1", *options),
    ]
    component = Component("sudo sandpool up", command, tmp_path / "log")
    component.start()
    try:
        component.wait_for(" is running, pid ", 60.0)
        yield component
    finally:
        component.stop(30.0)


def as_alice(alice: OtherUser, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = () if arguments[0].startswith("-") else ("-m", "sandpool.cli.main")
    return subprocess.run(
        alice.command(*program, *arguments),
        env={"PATH": os.environ["PATH"], "HOME": str(alice.place)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_commands_of_the_user_who_called_sudo_find_the_home(up: Component, alice: OtherUser) -> None:
    kubeconfig = alice.place / ".local/share/sandpool/homes/sudo/kubeconfig"
    said = up.tail(100)
    assert f"export KUBECONFIG={kubeconfig}" in said
    for file in (kubeconfig, kubeconfig.with_name("router-token")):
        assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (alice.uid, 0o600)

    status = as_alice(alice, "status", "-o", "json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    assert found["home"]["kubeconfig"] == str(kubeconfig)
    assert [node["name"] for node in found["nodes"]] == ["simulated-1"]
    assert found["router"]["answers"] is True

    # Its socket for `sandpool run` is alice's too.
    socket = kubeconfig.with_name("run.sock")
    assert (socket.stat().st_uid, socket.stat().st_mode & 0o777) == (alice.uid, 0o600)
    program = "import os; from sandpool.cli.run_client import _connect; print(_connect(os.environ) is not None)"
    assert as_alice(alice, "-c", program).stdout == "True\n"
    run = as_alice(alice, "-m", "sandpool.cli.entry", "run", "--pool", "nope", "true")
    assert (run.returncode, run.stderr.splitlines()[0]) == (1, 'Error: there is no pool "nope" in namespace "default"')

    # It is root's to stop.
    refused = as_alice(alice, "down")
    assert refused.returncode == 1
    assert "belongs to root: run `sudo " in refused.stderr
    again = as_alice(alice, "up")
    assert again.returncode == 0
    assert f"pid {found['home']['pid']}:" in again.stdout

    os.kill(found["home"]["pid"], signal.SIGTERM)
    assert up.wait() == 0
    assert as_alice(alice, "status").returncode == 1
