"""Changing, waiting, deleting and asking for rights with kubectl."""

from __future__ import annotations

import json

import pytest

from tests.support.kubectl import Kubectl

WITHIN = "--timeout=60s"


@pytest.fixture
def settings(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=colour=red")


@pytest.fixture
def web(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example.com/web:1")


@pytest.mark.usefixtures("settings")
def test_label_adds_and_overwrites(kubectl: Kubectl) -> None:
    assert kubectl("label", "configmap", "settings", "team=red") == "configmap/settings labeled\n"
    assert "already has a value (red), and --overwrite is false" in kubectl.fails(
        "label", "configmap", "settings", "team=blue"
    )
    kubectl("label", "configmap", "settings", "team=blue", "--overwrite")
    assert kubectl("get", "configmap", "-l", "team=blue", "-o", "name") == "configmap/settings\n"
    assert kubectl("label", "configmap", "settings", "team-") == "configmap/settings unlabeled\n"
    assert "labels" not in kubectl.json("get", "configmap", "settings")["metadata"]


@pytest.mark.usefixtures("settings")
def test_annotate_adds_an_annotation(kubectl: Kubectl) -> None:
    assert kubectl("annotate", "configmap", "settings", "note=a b c") == "configmap/settings annotated\n"
    assert kubectl.json("get", "configmap", "settings")["metadata"]["annotations"] == {"note": "a b c"}
    kubectl("annotate", "configmap", "settings", "note-")


@pytest.mark.usefixtures("web")
@pytest.mark.parametrize(
    ("type", "patch"),
    [
        ("strategic", {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "i:2"}]}}}}),
        ("merge", {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "i:2"}]}}}}),
        ("json", [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "i:2"}]),
    ],
)
def test_patch_of_every_type_is_applied(kubectl: Kubectl, type: str, patch: object) -> None:
    assert kubectl("patch", "deployment", "web", f"--type={type}", "-p", json.dumps(patch)) == (
        "deployment.apps/web patched\n"
    )
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..image}") == "i:2"
    assert "patched (no change)" in kubectl("patch", "deployment", "web", f"--type={type}", "-p", json.dumps(patch))


@pytest.mark.usefixtures("web")
def test_patch_changes_the_status(kubectl: Kubectl) -> None:
    kubectl(
        "patch", "deployment", "web", "--subresource=status", "--type=merge", "-p",
        '{"status":{"replicas":1,"readyReplicas":1,"availableReplicas":1,"updatedReplicas":1}}',
    )  # fmt: skip
    assert kubectl("get", "deployment", "web", "--no-headers").split()[:4] == ["web", "1/1", "1", "1"]


@pytest.mark.usefixtures("web")
def test_set_image_changes_the_image(kubectl: Kubectl) -> None:
    kubectl("set", "image", "deployment/web", "web=example.com/web:3")
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..image}") == "example.com/web:3"
    kubectl("set", "env", "deployment/web", "K=v")
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={..env[0].value}") == "v"


@pytest.mark.usefixtures("web")
def test_scale_changes_replicas(kubectl: Kubectl) -> None:
    assert kubectl("scale", "deployment", "web", "--replicas=3") == "deployment.apps/web scaled\n"
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "error: Expected replicas to be 1, was 3" in kubectl.fails(
        "scale", "deployment", "web", "--current-replicas=1", "--replicas=5"
    )


def test_scale_changes_the_size_of_a_pool(kubectl: Kubectl, sandbox_kinds: None) -> None:
    manifest = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata: {name: python}
spec:
  sandboxTemplateRef: {name: python}
"""
    kubectl("apply", "-f", "-", stdin=manifest)
    assert "python scaled" in kubectl("scale", "swp", "python", "--replicas=7")
    assert kubectl("get", "swp", "python", "--no-headers").split()[:2] == ["python", "7"]


# Waiting


@pytest.mark.usefixtures("web")
def test_wait_returns_on_a_condition(kubectl: Kubectl) -> None:
    waiting = kubectl.start("wait", "deployment/web", "--for=condition=Available", WITHIN)
    condition = {"type": "Available", "status": "True", "reason": "Enough", "message": ""}
    patch = json.dumps({"status": {"conditions": [condition]}})
    kubectl("patch", "deployment", "web", "--subresource=status", "--type=merge", "-p", patch)
    output, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, output) == (0, "deployment.apps/web condition met\n")
    kubectl("wait", "deployment/web", "--for=condition=Available", WITHIN)


@pytest.mark.usefixtures("settings")
def test_wait_returns_on_a_value(kubectl: Kubectl) -> None:
    waiting = kubectl.start("wait", "configmap/settings", "--for=jsonpath={.data.colour}=blue", WITHIN)
    kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"colour":"blue"}}')
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0


@pytest.mark.usefixtures("settings")
def test_wait_returns_on_deletion(kubectl: Kubectl) -> None:
    waiting = kubectl.start("wait", "configmap/settings", "--for=delete", WITHIN)
    kubectl("delete", "configmap", "settings", "--wait=false")
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0


@pytest.mark.usefixtures("settings")
def test_wait_times_out(kubectl: Kubectl) -> None:
    message = kubectl.fails("wait", "configmap/settings", "--for=jsonpath={.data.colour}=blue", "--timeout=1s")
    assert "timed out waiting for the condition" in message


# Deleting


def family(kubectl: Kubectl) -> None:
    """A Deployment and a ReplicaSet that it owns, without a controller."""
    kubectl("create", "deployment", "owner", "--image=i")
    owner = kubectl.json("get", "deployment", "owner")
    reference = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    child = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "child", "ownerReferences": [reference]},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(child))


@pytest.mark.parametrize("mode", ["background", "foreground"])
def test_delete_cascades_to_dependents(kubectl: Kubectl, mode: str) -> None:
    family(kubectl)
    assert kubectl("delete", "deployment", "owner", f"--cascade={mode}", WITHIN).startswith(
        'deployment.apps "owner" deleted'
    )
    kubectl("wait", "configmap/child", "--for=delete", WITHIN)
    assert "(NotFound)" in kubectl.fails("get", "deployment", "owner")


def test_delete_orphans_dependents(kubectl: Kubectl) -> None:
    family(kubectl)
    kubectl("delete", "deployment", "owner", "--cascade=orphan", WITHIN)
    child = kubectl.json("get", "configmap", "child")
    assert "ownerReferences" not in child["metadata"]


def test_delete_works_on_a_selection(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c"):
        kubectl("create", "configmap", name)
    kubectl("label", "configmap", "a", "b", "kind=x")
    kubectl("delete", "configmap", "-l", "kind=x")
    assert kubectl("get", "configmap", "c", "-o", "name") == "configmap/c\n"
    kubectl("delete", "configmap", "c", "missing", "--ignore-not-found")
    kubectl("create", "configmap", "d")
    kubectl("delete", "configmaps", "--all")
    assert "(NotFound)" in kubectl.fails("delete", "configmap", "d")


def test_delete_of_a_pod_has_a_grace_period(kubectl: Kubectl) -> None:
    kubectl("run", "p", "--image=i", "--overrides", '{"spec":{"nodeName":"n1"}}')
    kubectl("delete", "pod", "p", "--wait=false")
    assert kubectl("get", "pod", "p", "--no-headers").split()[2] == "Terminating"
    kubectl("delete", "pod", "p", "--grace-period=0", "--force", WITHIN)
    assert "(NotFound)" in kubectl.fails("get", "pod", "p")


def test_delete_of_a_namespace_deletes_its_objects(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "configmap", "c")
    kubectl("delete", "namespace", namespace, WITHIN)
    assert "(NotFound)" in kubectl.fails("get", "namespace", namespace)
    assert f'namespaces "{namespace}" not found' in kubectl.fails("create", "configmap", "c")


# Rights


def test_auth_can_i_answers(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods").strip().endswith("yes")
    assert kubectl("auth", "can-i", "*", "*", "--all-namespaces").strip().endswith("yes")
    assert kubectl.fails("auth", "can-i", "create", "pods", "--as=carol").strip().endswith("no")
    assert kubectl("auth", "can-i", "get", "/version", "--as=carol").strip().endswith("yes")
    assert "selfsubjectaccessreviews" in kubectl("auth", "can-i", "--list", "--as=carol")


def test_auth_whoami_answers(kubectl: Kubectl) -> None:
    assert "system:masters" in kubectl("auth", "whoami")


def test_impersonation_is_honoured(kubectl: Kubectl, namespace: str) -> None:
    message = kubectl.fails("get", "pods", "--as=carol")
    assert (
        'Error from server (Forbidden): pods is forbidden: User "carol" cannot list resource "pods" in API group "" '
        f'in the namespace "{namespace}"'
    ) in message
    kubectl("create", "rolebinding", "carol", "--clusterrole=view", "--user=carol")
    kubectl.until("get", "pods", "--as=carol")
    assert 'User "carol" cannot create resource' in kubectl.fails("create", "configmap", "c", "--as=carol")
