"""``sandpool trace`` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from sandpool.cli.main import main
from sandpool.explain.request import AuditedRequest, who
from sandpool.home.discovery import Home, announced
from sandpool.home.process import ProcessIdentity
from tests.explain.audit_lines import ours, passed

LOG = [
    ours(0, "create", "sandboxes", "box", owner="SandboxWarmPool/pool", code=201),
    ours(1000, "create", "sandboxclaims", "mine", code=201, userAgent="kubectl/v1.36 (linux/amd64)"),
    ours(1001, "get", "sandboxclaims", "mine"),
    ours(1010.25, "patch", "sandboxes", "box", owner="SandboxClaim/mine", ready="True"),
    ours(1020, "patch", "sandboxclaims/status", "mine", ready="True", readyReason="DependenciesReady"),
]
TABLE = """\
STEP  DELTA MS  TOOK MS  METHOD  RESOURCE                   RESULT  WHO                        WHY
   1       0.0      2.5  create  sandboxes/box                 201  sandpool-admin (sandpool)  member of pool pool created
   2    1000.0      2.5  create  sandboxclaims/mine            201  sandpool-admin (kubectl)   claim created
   3      10.2      2.5  patch   sandboxes/box                 200  sandpool-admin (sandpool)  adopted for claim mine
   4       9.8      2.5  patch   sandboxclaims/mine/status     200  sandpool-admin (sandpool)  Ready=True
"""  # noqa: E501 - as wide as it is printed


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(LOG))
    return path


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ("trace", *arguments), env=environ)


@pytest.mark.parametrize("subject", [("claim", "mine"), ("sandbox", "box")])
def test_timeline_is_printed_as_a_table(log: Path, subject: tuple[str, str]) -> None:
    told = run(*subject, "-n", "ns", "--writes", "--audit-log", str(log))
    assert (told.exit_code, told.output) == (0, TABLE)


def test_log_of_the_running_home_and_namespace_of_its_context_are_the_defaults(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    context = {"cluster": "home", "user": "me", "namespace": "ns"}
    config.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "home", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "me", "user": {}}],
                "contexts": [{"name": "home", "context": context}],
                "current-context": "home",
            }
        )
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    home = Home(
        name="",
        process=ProcessIdentity.current(),
        url="https://127.0.0.1:1",
        kubeconfig=config,
        router_url=None,
        router_token_file=None,
        metrics_url=None,
        data_dir=tmp_path / "data",
        log=None,
        node="",
        settings={},
        version="1",
        started=datetime(2026, 1, 2, tzinfo=UTC),
    )
    with announced(home):
        refused = run("claim", "mine")
        assert refused.exit_code == 2
        assert "sandpool up -d --audit-log" in refused.output
    with announced(replace(home, audit_log=log)):
        assert run("claim", "mine", "--writes").output == TABLE


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_timeline_is_a_document_for_programs(log: Path, output: str, read: Callable[[str], Any]) -> None:
    steps = read(run("claim", "mine", "-n", "ns", "--writes", "--audit-log", str(log), "-o", output).output)["steps"]
    assert [(each["step"], each["method"], each["result"]) for each in steps] == [
        (1, "create", 201),
        (2, "create", 201),
        (3, "patch", 200),
        (4, "patch", 200),
    ]
    assert steps[1]["deltaMs"] == 1000.0
    assert steps[3]["why"] == "Ready=True"


def test_reads_are_shown_unless_writes_only(log: Path) -> None:
    told = run("claim", "mine", "-n", "ns", SANDPOOL_AUDIT_LOG=str(log))
    assert told.output.count("read") == 1


WITH_PASSES = """\
STEP  DELTA MS  TOOK MS  METHOD     RESOURCE                   RESULT  WHO                        WHY
   1       0.0      2.5  create     sandboxes/box                 201  sandpool-admin (sandpool)  member of pool pool created
   2    1000.0      2.5  create     sandboxclaims/mine            201  sandpool-admin (kubectl)   claim created
   3       1.0      2.5  get        sandboxclaims/mine            200  sandpool-admin (sandpool)  read
   4       1.0      1.5  reconcile  sandboxclaims/mine          error  controller sandboxclaim    failed, will be retried: no answer
   5       6.0      1.5  reconcile  sandboxclaims/mine             ok  controller sandboxclaim    done until the next change
   6       2.2      2.5  patch      sandboxes/box                 200  sandpool-admin (sandpool)  adopted for claim mine
   7       9.8      2.5  patch      sandboxclaims/mine/status     200  sandpool-admin (sandpool)  Ready=True
"""  # noqa: E501 - as wide as it is printed
CONTROLLER_LOG = [
    b"Defaulted container\n",
    b'{"time":"2026-01-01T00:00:00Z","level":"info","logger":"l","message":"leading mine"}\n',
    passed(1002, "sandboxclaim", "mine", problem="no answer"),
    passed(1008, "sandboxclaim", "mine"),
]


def test_reconciles_are_read_from_a_controller_log(log: Path, tmp_path: Path) -> None:
    (tmp_path / "controller.log").write_bytes(b"".join(CONTROLLER_LOG))
    controller = ("--controller-log", str(tmp_path / "controller.log"))
    told = run("claim", "mine", "-n", "ns", "--audit-log", str(log), *controller)
    assert (told.exit_code, told.output) == (0, WITH_PASSES)
    assert run("claim", "mine", "-n", "ns", "--writes", "--audit-log", str(log), *controller).output == TABLE


def test_reconciles_are_read_from_the_audit_log(log: Path) -> None:
    log.write_bytes(b"".join([*CONTROLLER_LOG[2:], *LOG]))
    assert run("claim", "mine", "-n", "ns", "--audit-log", str(log)).output == WITH_PASSES


def test_controller_log_without_reconciles_is_reported(log: Path, tmp_path: Path) -> None:
    (tmp_path / "controller.log").write_bytes(b"".join(CONTROLLER_LOG[:2]))
    told = run(
        "claim", "mine", "-n", "ns", "--audit-log", str(log), "--controller-log", str(tmp_path / "controller.log")
    )
    assert told.exit_code == 0
    assert "run the controller with --pass-log" in told.stderr


def test_claim_without_a_sandbox_in_the_log_is_explained(log: Path) -> None:
    log.write_bytes(b"".join(LOG[:3]))
    told = run("claim", "mine", "-n", "ns", "--audit-log", str(log))
    assert told.exit_code == 0
    assert "note: the log shows no sandbox of this claim" in told.stderr
    assert "note" not in told.stdout


def test_rotated_files_are_read(log: Path) -> None:
    for number, lines in enumerate((LOG[3:], LOG[1:3], LOG[:1])):
        log.with_name(f"audit.log.{number}" if number else "audit.log").write_bytes(b"".join(lines))
    assert run("claim", "mine", "-n", "ns", "--writes", "--audit-log", str(log)).output == TABLE


def test_several_logs_are_merged(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    log.write_bytes(b"".join(LOG[::2]))
    other.write_bytes(b"".join(LOG[1::2]))
    told = run("claim", "mine", "-n", "ns", "--writes", "--audit-log", str(log), "--audit-log", str(other))
    assert told.output == TABLE


def test_errors_say_what_to_do(log: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no log\n")
    for arguments, code, said in (
        (("claim", "mine"), 2, "name an audit log with --audit-log: no home runs that could have one"),
        (
            ("claim", "mine", "--audit-log", str(tmp_path / "none")),
            1,
            "`sandpool up --audit-log FILE` writes an audit log",
        ),
        (("claim", "mine", "--audit-log", str(tmp_path / "notes")), 1, "notes: line 1 is not a line of an audit log"),
        (("claim", "mine", "--audit-log", str(log)), 1, 'concerns claim "mine" in namespace "default"'),
        (("sandbox", "mine", "-n", "ns", "--audit-log", str(log)), 1, 'concerns sandbox "mine" in namespace "ns"'),
    ):
        told = run(*arguments)
        assert told.exit_code == code
        assert said in told.output, told.output


@pytest.mark.parametrize(
    ("user", "agent", "name"),
    [
        ("system:serviceaccount:agent-sandbox-system:controller", "sandpool/1.0", "controller (sandpool)"),
        ("system:node:n1", "kubelet/v1.36 (linux/amd64)", "system:node:n1 (kubelet)"),
        ("alice", "", "alice"),
    ],
)
def test_caller_is_named_by_user_or_agent(user: str, agent: str, name: str) -> None:
    assert who(AuditedRequest(user, "get", "pods", "", "ns", "p", 200, agent)) == name
