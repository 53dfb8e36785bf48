"""The timeline of a claim on a real Kubernetes: kube-apiserver's audit log, and what the controllers noted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool.cli.main import main
from tests.support.deployment_process import Deployed
from tests.support.installed_cluster import Cluster
from tests.support.persistent_clients import PersistentClients

pytestmark = pytest.mark.kubernetes


async def test_calls_and_reconciles_are_one_timeline(
    cluster: Cluster, clients: PersistentClients, tmp_path: Path
) -> None:
    passes = tmp_path / "passes.log"
    async with Deployed(cluster, tmp_path, options=[f"--pass-log={passes}"]) as deployed:
        await deployed.leading()
        await clients.filled()
        await clients.claim(["mine"])
        await clients.served(1)
        await clients.filled()
    arguments = ("trace", "claim", "mine", "-n", clients.namespace)
    logs = ("--audit-log", str(cluster.plane.audit_log), "--controller-log", str(passes))
    told = CliRunner().invoke(main, (*arguments, *logs))
    assert told.exit_code == 0, told.output
    rows = [line.split()[3:6] for line in told.stdout.splitlines()[1:]]
    begun = rows.index(["reconcile", "sandboxclaims/mine", "ok"])
    assert begun < rows.index(["patch", "sandboxclaims/mine/status", "200"])
