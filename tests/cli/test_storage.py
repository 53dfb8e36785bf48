"""``sandpool storage move`` as a person uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("server") as server:
        yield server


def move(server: ServerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(main, ("storage", "move", "--kubeconfig", str(server.kubeconfig), *arguments))


def test_dry_run_says_what_would_happen_and_changes_nothing(server: ServerProcess) -> None:
    where = ("--kubeconfig", str(server.kubeconfig))
    installed = CliRunner().invoke(main, ("install", *where, "--image", "example.com/sandpool:2"))
    assert installed.exit_code == 0, installed.output
    for _ in range(2):  # the first has changed nothing that the second would find
        tried = move(server, "--to", "aggregated", "--dry-run")
        assert tried.exit_code == 0, tried.output
        lines = tried.output.splitlines()
        assert lines[0].startswith("would move 0 sandboxtemplates, ")
        assert "statefulset.apps/agent-sandbox-apiserver would be configured" in lines
        assert "deployment.apps/agent-sandbox-controller would be deleted" in lines
        assert lines[-1].startswith("UIDs stay")
    there = move(server, "--to", "crd")
    assert (there.exit_code, there.output) == (0, "nothing to do: the storage is crd\n")


def test_unknown_storage_is_a_usage_error(server: ServerProcess) -> None:
    refused = move(server, "--to", "etcd")
    assert refused.exit_code == 2
    assert "'etcd' is not one of 'crd', 'aggregated'" in refused.output
