"""``sandpool server`` as a process: it starts, says where, stops when told, and complains in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def run(*options: str, data_dir: Path | None = None) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "sandpool.cli.main",
            "server",
            "--data-dir",
            str(data_dir or tmp_path / "data"),
        ]
        if "--port" not in options:
            command += ["--port", "0"]
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def greeting(process: subprocess.Popen[str]) -> tuple[str, Path]:
    """The URL and the kubeconfig, from the one line the server says when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"serving (https://\S+)   export KUBECONFIG=(\S+)\n", line)
    assert found is not None, line + process.communicate()[1]
    return found[1], Path(found[2])


def fetch(kubeconfig: Path, path: str, token: str | None = None) -> Any:
    document = yaml.safe_load(kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    ca = subprocess.run(
        ["base64", "-d"], input=cluster["certificate-authority-data"], capture_output=True, text=True, check=True
    ).stdout
    request = urllib.request.Request(cluster["server"] + path)
    request.add_header("Authorization", f"Bearer {token or document['users'][0]['user']['token']}")
    with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=ca), timeout=20) as answer:
        return json.load(answer)


def refusal(process: subprocess.Popen[str]) -> str:
    """The complaint of a server that did not start."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert output == ""
    assert len(errors.splitlines()) == 1, errors
    return errors


def test_server_serves_and_stops(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text('bob-token,bob,2,"dev"\n')
    audit, kubeconfig = tmp_path / "audit.log", tmp_path / "my" / "config"
    process = start("--token-file", str(tokens), "--audit-log", str(audit), "--kubeconfig", str(kubeconfig))
    _, written = greeting(process)
    assert written == kubeconfig
    assert fetch(kubeconfig, "/api/v1/namespaces/default")["metadata"]["name"] == "default"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(kubeconfig, "/api/v1/namespaces/default", "bob-token")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fetch(kubeconfig, "/api/v1/namespaces/default", "wrong")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(entry.get("user"), entry["code"]) for entry in entries if entry.get("source") == "127.0.0.1"] == [
        ("sandpool-admin", 200),
        ("bob", 403),
        (None, 401),
    ]


def test_identity_survives_a_restart(start: Start, tmp_path: Path) -> None:
    process = start()
    _, kubeconfig = greeting(process)
    before = yaml.safe_load(kubeconfig.read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    greeting(start())
    after = yaml.safe_load(kubeconfig.read_text())
    assert after["users"] == before["users"]
    ca = "certificate-authority-data"
    assert after["clusters"][0]["cluster"][ca] == before["clusters"][0]["cluster"][ca]
    fetch(kubeconfig, "/version")


def test_second_server_on_a_data_directory_is_refused(start: Start) -> None:
    greeting(start())
    assert "another" in refusal(start())


def test_port_in_use_is_reported(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refusal(start("--port", str(port)))


def test_uncreatable_data_directory_is_reported(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Error: " in refusal(start(data_dir=tmp_path / "file" / "data"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_foreign_data_directory_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "Permission denied" in refusal(start(data_dir=tmp_path / "closed" / "data"))


def test_foreign_kubeconfig_is_not_overwritten(start: Start, tmp_path: Path) -> None:
    foreign = tmp_path / "config"
    foreign.write_text("mine")
    assert "was not written by sandpool" in refusal(start("--kubeconfig", str(foreign)))
    assert foreign.read_text() == "mine"


def test_malformed_token_file_is_reported(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("only-a-token\n")
    assert "tokens.csv, line 1" in refusal(start("--token-file", str(tokens)))


def test_unwritable_audit_log_is_reported(start: Start, tmp_path: Path) -> None:
    assert "No such file" in refusal(start("--audit-log", str(tmp_path / "missing" / "audit.log")))


def test_other_machines_are_served_only_with_host(start: Start) -> None:
    process = start("--host", "0.0.0.0", "--tls-san", "example.org")
    url, kubeconfig = greeting(process)
    assert url.startswith("https://127.0.0.1:")
    fetch(kubeconfig, "/version")
    process.send_signal(signal.SIGTERM)
    assert "reachable from other machines" in process.communicate(timeout=60)[1]
