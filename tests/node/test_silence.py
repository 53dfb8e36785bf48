"""A node that stops reporting while its pods run, and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandpool.bench.server_process import ServerProcess
from sandpool.testing.objects import pod
from tests.support.kubectl import Kubectl, find_kubectls
from tests.support.node_command import SeparateNode

KUBECTLS = find_kubectls()
pytestmark = [
    pytest.mark.long,
    pytest.mark.isolation,
    pytest.mark.skipif(not KUBECTLS, reason="no kubectl: install the Debian package kubectl"),
]
OPTIONS = ("--no-node", "--metrics-bind-address", "0", "--router-bind-address", "0")
CONTAINER = {"name": "main", "image": "sandpool.local/python", "command": ["sleep", "infinity"]}


def test_silent_node_and_its_pods_are_not_ready_until_it_is_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("node")
    with ServerProcess("up", options=OPTIONS, data_dir=tmp_path / "api") as server:
        kubectl = Kubectl(list(KUBECTLS.values())[-1], server.kubeconfig, tmp_path / "cache")

        def until(status: str, what: str) -> None:
            kubectl("wait", f"--for=condition=Ready={status}", what, "--timeout=180s")

        with SeparateNode(server.kubeconfig, own) as node:
            kubectl("apply", "-f", "-", stdin=json.dumps(pod("box", spec={"containers": [CONTAINER]})))
            until("True", "pod/box")
            node.process.pause()
            try:
                until("Unknown", "node/apart")
                until("False", "pod/box")
            finally:
                node.process.resume()
            until("True", "node/apart")
            until("True", "pod/box")
            kubectl("delete", "pod", "box")
