"""The account that is installed for nodes may do what ``sandpool node`` does and no more, on a real Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.install import node
from sandpool.install.names import NAMESPACE
from sandpool.server.serving.pki import Authority
from tests.support.assets import Assets
from tests.support.control_plane import ControlPlane, kubelet_flags
from tests.support.kubectl import Kubectl, find_kubectls
from tests.support.node_command import SeparateNode
from tests.support.permissions import Use, permissions

pytestmark = [pytest.mark.kubernetes, pytest.mark.isolation]
USER: Final = f"system:serviceaccount:{NAMESPACE}:{node.ACCOUNT}"
# What is granted and not used when all goes well, and why it is granted all the same.
IN_RESERVE: Final = {
    ("persistentvolumes", "get"): "asked if a volume that was just made is there already",
    ("events", "patch"): "an Event is patched when the same thing happens again",
}
IMAGE: Final = "sandpool.local/python"
EVERYTHING: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "box"},
    "spec": {
        "nodeName": "apart",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "command": ["sleep", "infinity"],
                "env": [{"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "a"}}}],
                "volumeMounts": [{"name": "given", "mountPath": "/given"}],
            }
        ],
        "volumes": [
            {
                "name": "given",
                "projected": {
                    "sources": [
                        {"secret": {"name": "secrets"}},
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                    ]
                },
            }
        ],
    },
}
CLAIM: Final = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "disk"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
}


@pytest.fixture
def plane(kubernetes_assets: Assets, tmp_path: Path) -> Iterator[ControlPlane]:
    flags = kubelet_flags(Authority(tmp_path / "pki", SystemClock()))
    with ControlPlane(kubernetes_assets, fsync=False, audit=(USER,), apiserver_flags=flags) as plane:
        yield plane


def live(kubectl: Kubectl) -> None:
    """Everything a node does at some time or other."""
    kubectl("create", "configmap", "words", "--from-literal=a=word")
    kubectl("create", "secret", "generic", "secrets", "--from-literal=b=secret")
    kubectl("apply", "-f", "-", stdin=json.dumps(CLAIM))
    kubectl("apply", "-f", "-", stdin=json.dumps(EVERYTHING))
    kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")
    said = kubectl("exec", "box", "--", "sh", "-c", "echo $WORD; cat /given/b; test -s /given/token && echo token")
    assert said == "word\nsecrettoken\n"
    kubectl.until("wait", "--for=jsonpath={.spec.claimRef.name}=disk", "persistentvolume", "--all", "--timeout=1s")
    volume = kubectl("get", "persistentvolume", "-o", "name").strip()
    kubectl("delete", "persistentvolumeclaim", "disk", "--wait=false")
    for each in (volume, "persistentvolumeclaim/disk"):
        # The controller that would find them unused does not run here.
        kubectl("patch", each, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kubectl("wait", "--for=delete", volume, "--timeout=60s")
    kubectl("delete", "pod", "box")


def test_node_account_has_exactly_the_permissions_it_uses(plane: ControlPlane, tmp_path: Path) -> None:
    kubectl = Kubectl(list(find_kubectls().values())[-1], plane.kubeconfig, tmp_path / "cache")
    kubectl("create", "namespace", NAMESPACE)
    objects = node.objects()
    for each in objects:
        kubectl("apply", "-f", "-", "--namespace", each["metadata"].get("namespace", ""), stdin=json.dumps(each))
    token = kubectl("create", "token", node.ACCOUNT, "--namespace", NAMESPACE).strip()
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", node.ACCOUNT, token=token)
    granted = permissions(rule for each in objects for rule in each.get("rules") or ())
    (tmp_path / "node").mkdir()
    for number in range(2):  # the second time the Node is there already
        with SeparateNode(kubeconfig, tmp_path / "node", options=["--schedule=false"]):
            if number == 0:
                live(kubectl)
    use = Use(USER)
    use.note(plane.audit_log)
    assert use.forbidden == set()
    assert use.used - granted == set()
    assert granted - use.used == IN_RESERVE.keys()
