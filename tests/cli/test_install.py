"""``sandpool install`` and ``sandpool uninstall`` as a person uses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main
from sandpool.install import node


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("server") as server:
        yield server


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_install_and_uninstall_succeed(server: ServerProcess) -> None:
    where = ("--kubeconfig", str(server.kubeconfig))
    tried = run("install", *where, "--dry-run", "--router")
    assert tried.exit_code == 0, tried.output
    assert "deployment.apps/sandbox-router-deployment created (dry run)" in tried.output
    assert "installed" not in tried.output

    installed = run("install", *where, "--image", "example.com/sandpool:2", "--replicas", "1", "--nodes")
    assert installed.exit_code == 0, installed.output
    assert installed.output.splitlines()[-1] == (
        "installed; to see it start: kubectl -n agent-sandbox-system rollout status deployment/agent-sandbox-controller"
    )
    assert "sandboxes.agents.x-k8s.io unchanged" in installed.output, "which profile it is stays as it was"
    assert "clusterrole.rbac.authorization.k8s.io/sandpool-node created" in installed.output
    again = run("install", *where)
    assert "deployment.apps/agent-sandbox-controller configured" in again.output

    for profile, became in (("lean", "configured"), ("full", "configured"), ("full", "unchanged")):
        switched = run("install", *where, "--profile", profile, "--force")
        assert f"sandboxes.agents.x-k8s.io {became}" in switched.output

    removed = run("uninstall", *where)
    assert removed.exit_code == 0, removed.output
    assert removed.output.splitlines()[-1] == "uninstalled"
    assert removed.output.count("/sandpool-node deleted") == len(node.objects()), "also what is in other namespaces"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("install", "--kubeconfig", "/nowhere/config"), 1, "cannot read the kubeconfig /nowhere/config"),
        (("install", "--profile", "thin"), 2, "'thin' is not one of 'full', 'lean'"),
        (("install", "--replicas", "0"), 2, "0 is not in the range"),
        (("uninstall", "--keep-kinds", "--with-claims"), 2, "choose one"),
    ],
)
def test_conflicting_options_are_rejected(arguments: tuple[str, ...], code: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert said in result.output


def test_unreachable_cluster_is_reported(server: ServerProcess, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig.read_text().replace(server.url, "https://127.0.0.1:1"))
    result = run("install", "--kubeconfig", str(config))
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output


def test_missing_context_is_reported(server: ServerProcess) -> None:
    result = run("install", "--kubeconfig", str(server.kubeconfig), "--context", "missing")
    assert result.exit_code == 1
    assert "missing" in result.output
