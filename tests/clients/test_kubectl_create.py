"""The typed create commands of kubectl, which recent versions send as protobuf."""

from __future__ import annotations

import base64

from tests.support.kubectl import Kubectl


def test_create_makes_a_namespace(kubectl: Kubectl, namespace: str) -> None:
    name = namespace + "-made"
    assert kubectl("create", "namespace", name) == f"namespace/{name} created\n"
    assert kubectl.json("get", "namespace", name)["status"] == {"phase": "Active"}
    assert "(AlreadyExists)" in kubectl.fails("create", "namespace", name)
    kubectl("delete", "namespace", name, "--wait=false")


def test_create_makes_a_config_map(kubectl: Kubectl) -> None:
    created = kubectl("create", "configmap", "c", "--from-literal=a=1", "--from-literal=b=ünï")
    assert created == "configmap/c created\n"
    assert kubectl.json("get", "configmap", "c")["data"] == {"a": "1", "b": "ünï"}


def test_create_makes_a_secret(kubectl: Kubectl) -> None:
    kubectl("create", "secret", "generic", "s", "--from-literal=password=hunter2", "--type=example.com/kind")
    found = kubectl.json("get", "secret", "s")
    assert base64.b64decode(found["data"]["password"]) == b"hunter2"
    assert found["type"] == "example.com/kind"


def test_create_makes_a_registry_secret(kubectl: Kubectl) -> None:
    kubectl(
        "create", "secret", "docker-registry", "r", "--docker-server=example.com", "--docker-username=u",
        "--docker-password=p",
    )  # fmt: skip
    assert kubectl.json("get", "secret", "r")["type"] == "kubernetes.io/dockerconfigjson"


def test_create_makes_a_service_account_and_its_token(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "serviceaccount", "robot")
    token = kubectl("create", "token", "robot").strip()
    assert token.count(".") == 2
    who = kubectl("auth", "whoami", f"--token={token}", "-o", "jsonpath={.status.userInfo.username}")
    assert who == f"system:serviceaccount:{namespace}:robot"


def test_create_makes_roles_and_bindings(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps,deployments.apps/scale")
    rules = kubectl.json("get", "role", "reader")["rules"]
    assert rules == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "list"]},
    ]
    kubectl("create", "rolebinding", "readers", "--role=reader", "--user=carol", f"--serviceaccount={namespace}:robot")
    subjects = kubectl.json("get", "rolebinding", "readers")["subjects"]
    assert {(each["kind"], each["name"]) for each in subjects} == {("User", "carol"), ("ServiceAccount", "robot")}


def test_create_makes_a_deployment_and_expose_a_service(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example.com/web:1", "--replicas=2", "--port=80")
    found = kubectl.json("get", "deployment", "web")
    assert found["spec"]["replicas"] == 2
    assert found["spec"]["selector"] == {"matchLabels": {"app": "web"}}
    kubectl("expose", "deployment", "web", "--port=8080", "--target-port=80")
    [port] = kubectl.json("get", "service", "web")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (8080, 80)


def test_run_makes_a_pod(kubectl: Kubectl) -> None:
    kubectl("run", "p", "--image=example.com/i:1", "--restart=Never", "--labels=a=b", "--env=K=v", "--", "sleep", "1")
    found = kubectl.json("get", "pod", "p")
    [container] = found["spec"]["containers"]
    assert container["args"] == ["sleep", "1"]
    assert (found["spec"]["restartPolicy"], found["metadata"]["labels"]) == ("Never", {"a": "b"})


def test_create_rejects_invalid_names(kubectl: Kubectl) -> None:
    message = kubectl.fails("create", "configmap", "Bad_Name")
    assert 'metadata.name: Invalid value: "Bad_Name"' in message
