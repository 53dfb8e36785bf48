"""Commands that talk to a cluster, and the local home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool.cli.main import main
from sandpool.home.discovery import announced
from tests.home.test_discovery import home_in


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_installation_into_the_local_home_is_refused(command: str, tmp_path: Path) -> None:
    with announced(home_in(tmp_path / "data"), os.environ) as home:
        for arguments in ([command], [command, "--kubeconfig", str(home.kubeconfig)]):
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 1
            assert result.output == (
                "Error: https://127.0.0.1:6443 is the local home, which needs no installation; "
                "name a Kubernetes cluster with --kubeconfig or --context\n"
            )
