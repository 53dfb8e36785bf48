"""Reading with kubectl: get in its forms, describe, explain, discovery."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.support.kubectl import Kubectl

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  nodeName: n1
  containers:
  - {{name: main, image: "example.com/i:1"}}
"""


@pytest.fixture
def pods(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD.format(name="one") + "---" + POD.format(name="two"))


@pytest.mark.usefixtures("pods")
class TestGet:
    def test_get_prints_a_table(self, kubectl: Kubectl) -> None:
        head, one, two = kubectl("get", "pods").splitlines()
        assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
        assert one.split()[:4] == ["one", "0/1", "Pending", "0"]
        assert two.split()[0] == "two"

    def test_get_prints_a_wide_table(self, kubectl: Kubectl) -> None:
        head, row = kubectl("get", "pod", "one", "-o", "wide").splitlines()
        assert head.split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
        assert row.split()[6] == "n1"

    def test_get_prints_labels(self, kubectl: Kubectl) -> None:
        assert "app=one" in kubectl("get", "pods", "--show-labels")
        assert kubectl("get", "pods", "-L", "app", "--no-headers").split()[-1] == "two"

    def test_get_prints_all_namespaces(self, kubectl: Kubectl, namespace: str) -> None:
        rows = [line.split()[:2] for line in kubectl("get", "pods", "-A").splitlines()]
        assert rows[0] == ["NAMESPACE", "NAME"]
        assert [namespace, "one"] in rows

    def test_get_honours_selectors(self, kubectl: Kubectl) -> None:
        assert kubectl("get", "pods", "-l", "app in (two)", "-o", "name") == "pod/two\n"
        assert kubectl("get", "pods", "--field-selector=metadata.name=one", "-o", "name") == "pod/one\n"
        assert kubectl("get", "pods", "-l", "app=three") == ""

    def test_get_prints_json_and_yaml(self, kubectl: Kubectl) -> None:
        found = json.loads(kubectl("get", "pods", "-o", "json"))
        assert (found["kind"], [item["kind"] for item in found["items"]]) == ("List", ["Pod", "Pod"])
        assert yaml.safe_load(kubectl("get", "pod", "one", "-o", "yaml"))["metadata"]["name"] == "one"

    def test_get_evaluates_expressions(self, kubectl: Kubectl) -> None:
        assert kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}") == "one two"
        assert kubectl("get", "pod", "one", "-o", "go-template={{.spec.nodeName}}") == "n1"
        columns = "custom-columns=N:.metadata.name,I:.spec.containers[0].image"
        assert kubectl("get", "pod", "one", "-o", columns).split() == ["N", "I", "one", "example.com/i:1"]
        assert kubectl("get", "pods", "--sort-by=.metadata.name", "-o", "name") == "pod/one\npod/two\n"

    def test_get_reads_in_pages(self, kubectl: Kubectl) -> None:
        assert kubectl("get", "pods", "--chunk-size=1", "-o", "name") == "pod/one\npod/two\n"

    def test_get_all_lists_the_category(self, kubectl: Kubectl) -> None:
        assert "pod/one" in kubectl("get", "all")

    def test_get_reads_a_subresource(self, kubectl: Kubectl) -> None:
        assert "one" in kubectl("get", "pod", "one", "--subresource=status")

    def test_get_watches(self, kubectl: Kubectl) -> None:
        watch = kubectl.start("get", "pods", "-w")
        try:
            assert watch.stdout is not None
            names = [watch.stdout.readline().split()[0] for _ in range(3)]
            assert names == ["NAME", "one", "two"]
            kubectl("label", "pod", "two", "touched=yes")
            assert watch.stdout.readline().split()[0] == "two"
            kubectl("delete", "pod", "one", "--grace-period=0", "--force")
            assert watch.stdout.readline().split()[0] == "one"
        finally:
            watch.kill()
            watch.communicate()

    def test_get_watches_events(self, kubectl: Kubectl) -> None:
        watch = kubectl.start("get", "pods", "-w", "--output-watch-events", "-o", "name")
        try:
            assert watch.stdout is not None
            assert watch.stdout.readline() == "pod/one\n"
        finally:
            watch.kill()
            watch.communicate()

    def test_describe_shows_events(self, kubectl: Kubectl, namespace: str) -> None:
        uid = kubectl.json("get", "pod", "one")["metadata"]["uid"]
        event = f"""
apiVersion: v1
kind: Event
metadata: {{name: e}}
involvedObject: {{apiVersion: v1, kind: Pod, name: one, namespace: {namespace}, uid: {uid}}}
type: Warning
reason: Failed
message: It did not work.
"""
        kubectl("create", "-f", "-", stdin=event)
        shown = kubectl("describe", "pod", "one")
        assert [line.split() for line in shown.splitlines() if line.startswith(("Name:", "Namespace:", "Node:"))] == [
            ["Name:", "one"],
            ["Namespace:", namespace],
            ["Node:", "n1/"],
        ]
        assert "It did not work." in shown
        assert "It did not work." in kubectl("events")
        assert "It did not work." in kubectl("get", "events", "--field-selector=involvedObject.name=one")


def test_get_of_a_missing_object_is_not_found(kubectl: Kubectl) -> None:
    assert kubectl.fails("get", "pod", "missing") == 'Error from server (NotFound): pods "missing" not found\n'
    assert "the server doesn't have a resource type" in kubectl.fails("get", "nothings")
    assert kubectl("get", "pods") == ""


def test_get_prints_the_columns_of_the_sandbox_kinds(kubectl: Kubectl, sandbox_kinds: None) -> None:
    manifest = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxClaim
metadata: {name: mine}
spec:
  warmPoolRef: {name: python}
"""
    kubectl("apply", "-f", "-", stdin=manifest)
    status = {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Bound",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "sandbox": {"name": "python-x7"},
    }
    kubectl(
        "patch", "sandboxclaim", "mine", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )
    head, row = kubectl("get", "sandboxclaims").splitlines()
    assert head.split() == ["NAME", "READY", "SANDBOX", "REASON", "AGE"]
    assert row.split()[:4] == ["mine", "True", "python-x7", "Bound"]
    assert "python-x7" in kubectl("describe", "sandboxclaim", "mine")


def test_explain_describes_fields(kubectl: Kubectl, sandbox_kinds: None) -> None:
    shown = kubectl("explain", "pod.spec.containers.image")
    assert "KIND:       Pod" in shown
    assert "<string>" in shown
    assert "replicas\t<integer>" in kubectl("explain", "swp.spec")
    assert "containers" in kubectl("explain", "sandbox.spec.podTemplate.spec")
    assert 'field "nonsense" does not exist' in kubectl.fails("explain", "pod.nonsense")
    assert "containers" in kubectl("explain", "deployment", "--recursive")


def test_api_resources_lists_kinds(kubectl: Kubectl, sandbox_kinds: None) -> None:
    listed = kubectl("api-resources", "--no-headers")
    rows = {line.split()[0]: line.split() for line in listed.splitlines()}
    assert rows["pods"][1:] == ["po", "v1", "true", "Pod"]
    assert rows["sandboxwarmpools"][1:] == ["swp", "extensions.agents.x-k8s.io/v1beta1", "true", "SandboxWarmPool"]
    assert rows["namespaces"][3] == "false"
    group = kubectl("api-resources", "--api-group=extensions.agents.x-k8s.io", "-o", "name").split()
    assert sorted(group) == [
        "sandboxclaims.extensions.agents.x-k8s.io",
        "sandboxtemplates.extensions.agents.x-k8s.io",
        "sandboxwarmpools.extensions.agents.x-k8s.io",
    ]
    assert "pods" in kubectl("api-resources", "--verbs=deletecollection", "--namespaced", "-o", "name").split()


def test_api_versions_lists_versions(kubectl: Kubectl) -> None:
    versions = kubectl("api-versions").split()
    assert {"v1", "apps/v1", "apiextensions.k8s.io/v1", "events.k8s.io/v1"} <= set(versions)


def test_version_prints_the_server_version(kubectl: Kubectl) -> None:
    found = kubectl.json("version")
    assert found["serverVersion"]["major"] == "1"
    assert found["serverVersion"]["gitVersion"].startswith("v1.")


def test_raw_paths_are_served(kubectl: Kubectl) -> None:
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert "readyz check passed" in kubectl("get", "--raw", "/readyz?verbose")
    assert json.loads(kubectl("get", "--raw", "/api/v1/namespaces/default"))["kind"] == "Namespace"
