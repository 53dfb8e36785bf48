"""``sandpool up --e2b``: the endpoint beside the home, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main
from tests.cli.test_up import NODE
from tests.support.children import children_of
from tests.support.private_network import e2b_variables

OPTIONS = (*NODE, "--e2b", "--e2b-bind-address", "127.0.0.1:0")
MODULE = "sandpool.e2b"
WITHIN = 60.0


def variables(server: ServerProcess) -> dict[str, str]:
    """What a shell has after the printed line."""
    names = ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN", "E2B_API_KEY")
    show = "; ".join(f'printf "%s\\n" "${name}"' for name in names)
    shown = subprocess.run(
        ["sh", "-c", f"{e2b_variables(server)}; {show}"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    return dict(zip(names, shown.stdout.decode().splitlines(), strict=True))


def listed(found: dict[str, str]) -> Any:
    """The sandboxes that a program with these variables sees."""
    request = urllib.request.Request(
        f"{found['E2B_API_URL']}/v2/sandboxes", headers={"X-API-Key": found["E2B_API_KEY"]}
    )
    with urllib.request.urlopen(request, timeout=WITHIN) as answer:
        return json.loads(answer.read())


def test_the_printed_line_leads_to_an_endpoint_that_the_first_client_starts(tmp_path: Path) -> None:
    with ServerProcess("up", options=OPTIONS, user_home=tmp_path) as server:
        found = variables(server)
        assert not children_of(server.process.pid, MODULE)
        assert listed(found) == []
        (started,) = children_of(server.process.pid, MODULE)
        key = server.kubeconfig.with_name("e2b-key")
        assert key.read_text() == found["E2B_API_KEY"]
        assert key.stat().st_mode & 0o077 == 0
        assert found["E2B_API_KEY"] not in started
        assert found["E2B_API_KEY"] not in server.process.tail(1000)
        assert found["E2B_DOMAIN"] == "localhost:" + found["E2B_SANDBOX_URL"].rpartition(":")[2]
        # A pool for clients that name no template was made.
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        status = CliRunner(env=environ).invoke(main, ["pool", "ls", "--kubeconfig", str(server.kubeconfig)])
        assert "python" in status.output
        with pytest.raises(urllib.error.HTTPError, match="401"):
            listed({**found, "E2B_API_KEY": "e2b_guess"})


def test_an_endpoint_that_is_killed_comes_back_with_the_same_key() -> None:
    with ServerProcess("up", options=OPTIONS) as server:
        found = variables(server)
        listed(found)
        (pid,) = children_of(server.process.pid, MODULE).values()
        os.kill(pid, signal.SIGKILL)
        assert listed(found) == [], "the connection waits in the socket for the next process"
        assert list(children_of(server.process.pid, MODULE).values()) != [pid]


def test_the_key_stays_until_it_is_revoked() -> None:
    with ServerProcess("up", options=OPTIONS) as server:
        first = variables(server)["E2B_API_KEY"]
        server.restart()
        assert variables(server)["E2B_API_KEY"] == first
        assert listed(variables(server)) == []
        keys = ["--kubeconfig", str(server.kubeconfig)]
        row = CliRunner().invoke(main, ["e2b", "key", "list", *keys]).stdout.splitlines()[1]
        assert CliRunner().invoke(main, ["e2b", "key", "revoke", row.split()[0], *keys]).exit_code == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            listed(variables(server))
        server.restart()
        assert variables(server)["E2B_API_KEY"] != first
        assert listed(variables(server)) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [("0", "an address is needed"), ("0.0.0.0:0", "on this machine alone"), ("x", "is not an address")],
)
def test_addresses_that_make_no_sense_are_refused(tmp_path: Path, address: str, said: str) -> None:
    words = ["up", "--data-dir", str(tmp_path), "--no-node", "--port", "0", "--router-bind-address", "0", "--unlisted"]
    words += ["--metrics-bind-address", "0", "--dashboard-bind-address", "0", "--e2b", "--e2b-bind-address", address]
    result = CliRunner().invoke(main, words)
    assert result.exit_code != 0
    assert said in result.output
