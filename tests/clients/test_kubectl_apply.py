"""kubectl apply, on both sides, and its relatives."""

from __future__ import annotations

from tests.support.kubectl import Kubectl

CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  labels: {team: red}
data:
  colour: red
  size: large
"""
UNMOUNTED = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata:
  name: unmounted
spec:
  podTemplate:
    spec:
      containers:
      - name: main
        image: example.com/image:1
        volumeMounts: []
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 1
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: web
        image: example.com/web:1
        env:
        - {name: A, value: "1"}
        - {name: B, value: "2"}
"""
POOL = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata:
  name: python
spec:
  podTemplate:
    spec:
      containers:
      - name: main
        image: example.com/python:3
---
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxWarmPool
metadata:
  name: python
spec:
  replicas: 2
  sandboxTemplateRef:
    name: python
"""


def test_apply_creates_changes_and_detects_no_change(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=CONFIG_MAP) == "configmap/settings created\n"
    assert kubectl("apply", "-f", "-", stdin=CONFIG_MAP) == "configmap/settings unchanged\n"
    changed = CONFIG_MAP.replace("  size: large\n", "  weight: heavy\n")
    assert kubectl("apply", "-f", "-", stdin=changed) == "configmap/settings configured\n"
    assert kubectl.json("get", "configmap", "settings")["data"] == {"colour": "red", "weight": "heavy"}


def test_apply_keeps_fields_of_others(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP)
    kubectl("label", "configmap", "settings", "owner=me")
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP.replace("team: red", "team: blue"))
    labels = kubectl.json("get", "configmap", "settings")["metadata"]["labels"]
    assert labels == {"team": "blue", "owner": "me"}


def test_apply_merges_lists_by_key(kubectl: Kubectl) -> None:
    """A strategic merge patch: items are changed and removed by name."""
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    changed = DEPLOYMENT.replace("web:1", "web:2").replace('        - {name: A, value: "1"}\n', "")
    assert kubectl("apply", "-f", "-", stdin=changed) == "deployment.apps/web configured\n"
    [container] = kubectl.json("get", "deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/web:2"
    assert container["env"] == [{"name": "B", "value": "2"}]


def test_apply_works_for_custom_kinds(kubectl: Kubectl, sandbox_kinds: None) -> None:
    """A JSON merge patch, for there is no other."""
    assert kubectl("apply", "-f", "-", stdin=POOL).splitlines() == [
        "sandboxtemplate.extensions.agents.x-k8s.io/python created",
        "sandboxwarmpool.extensions.agents.x-k8s.io/python created",
    ]
    assert "sandboxwarmpool.extensions.agents.x-k8s.io/python configured" in kubectl(
        "apply", "-f", "-", stdin=POOL.replace("replicas: 2", "replicas: 5")
    )
    assert kubectl.json("get", "swp", "python")["spec"] == {"replicas": 5, "sandboxTemplateRef": {"name": "python"}}


def test_apply_warns_of_a_volume_that_no_container_mounts(kubectl: Kubectl, sandbox_kinds: None, target: str) -> None:
    """The embedded API knows; a CustomResourceDefinition of Kubernetes cannot."""
    shown = ['Warning: volume "data" is mounted in no container'] if target == "sandpool" else []
    assert kubectl.warnings("apply", "-f", "-", stdin=UNMOUNTED) == shown
    assert kubectl.warnings("apply", "-f", "-", stdin=UNMOUNTED.replace("image:1", "image:2")) == shown
    mounted = UNMOUNTED.replace("volumeMounts: []", "volumeMounts: [{name: data, mountPath: /data}]")
    assert kubectl.warnings("apply", "-f", "-", stdin=mounted) == []


def test_server_side_apply_works(kubectl: Kubectl) -> None:
    applied = "configmap/settings serverside-applied\n"
    assert kubectl("apply", "--server-side", "-f", "-", stdin=CONFIG_MAP) == applied
    assert kubectl("apply", "--server-side", "-f", "-", stdin=CONFIG_MAP) == applied
    changed = CONFIG_MAP.replace("  size: large\n", "")
    assert kubectl("apply", "--server-side", "-f", "-", stdin=changed) == applied
    found = kubectl.json("get", "configmap", "settings", "--show-managed-fields")
    assert found["data"] == {"colour": "red"}
    assert [(each["manager"], each["operation"]) for each in found["metadata"]["managedFields"]] == [
        ("kubectl", "Apply")
    ]


def test_server_side_apply_reports_conflicts(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", stdin=CONFIG_MAP)
    changed = CONFIG_MAP.replace("colour: red", "colour: blue")
    message = kubectl.fails("apply", "--server-side", "-f", "-", stdin=changed)
    assert 'Apply failed with 1 conflict: conflict with "other": .data.colour' in message
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=changed)
    assert kubectl.json("get", "configmap", "settings")["data"]["colour"] == "blue"


def test_client_side_apply_migrates_to_server_side_apply(kubectl: Kubectl) -> None:
    """A client-side applier keeps its fields when it changes to server-side apply."""
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP)
    changed = CONFIG_MAP.replace("  size: large\n", "")
    kubectl("apply", "--server-side", "-f", "-", stdin=changed)
    assert kubectl.json("get", "configmap", "settings")["data"] == {"colour": "red"}


def test_apply_runs_dry(kubectl: Kubectl) -> None:
    assert kubectl("apply", "--dry-run=server", "-f", "-", stdin=CONFIG_MAP) == (
        "configmap/settings created (server dry run)\n"
    )
    assert "(NotFound)" in kubectl.fails("get", "configmap", "settings")
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP)
    changed = CONFIG_MAP.replace("red", "blue")
    assert "configured (server dry run)" in kubectl("apply", "--dry-run=server", "-f", "-", stdin=changed)
    assert kubectl.json("get", "configmap", "settings")["data"]["colour"] == "red"


def test_diff_shows_changes(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP)
    assert kubectl("diff", "-f", "-", stdin=CONFIG_MAP) == ""
    shown = kubectl.fails("diff", "-f", "-", stdin=CONFIG_MAP.replace("colour: red", "colour: blue"))
    assert "-  colour: red\n+  colour: blue\n" in shown


def test_apply_rejects_unknown_fields(kubectl: Kubectl) -> None:
    message = kubectl.fails("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas:", "replicsa:"))
    assert 'strict decoding error: unknown field "spec.replicsa"' in message
    kubectl("apply", "--validate=false", "-f", "-", stdin=DEPLOYMENT.replace("replicas:", "replicsa:"))


def test_apply_rejects_invalid_values(kubectl: Kubectl, sandbox_kinds: None) -> None:
    message = kubectl.fails("apply", "-f", "-", stdin=POOL.replace("replicas: 2", "replicas: -2"))
    assert 'The SandboxWarmPool "python" is invalid: ' in message
    assert "spec.replicas: Invalid value: -2: spec.replicas in body should be greater than or equal to 0" in message


def test_create_and_replace_work(kubectl: Kubectl) -> None:
    assert kubectl("create", "-f", "-", stdin=CONFIG_MAP) == "configmap/settings created\n"
    assert "(AlreadyExists)" in kubectl.fails("create", "-f", "-", stdin=CONFIG_MAP)
    changed = CONFIG_MAP.replace("  size: large\n", "")
    assert kubectl("replace", "-f", "-", stdin=changed) == "configmap/settings replaced\n"
    assert kubectl.json("get", "configmap", "settings")["data"] == {"colour": "red"}
    before = kubectl.json("get", "configmap", "settings")["metadata"]["uid"]
    kubectl("replace", "--force", "-f", "-", stdin=CONFIG_MAP)
    assert kubectl.json("get", "configmap", "settings")["metadata"]["uid"] != before


def test_create_generates_names(kubectl: Kubectl) -> None:
    wanted = CONFIG_MAP.replace("name: settings", "generateName: made-")
    assert kubectl("create", "-f", "-", stdin=wanted).startswith("configmap/made-")


def test_apply_prunes(kubectl: Kubectl) -> None:
    other = CONFIG_MAP.replace("settings", "other")
    kubectl("apply", "-f", "-", stdin=CONFIG_MAP + "---" + other)
    done = kubectl("apply", "--prune", "--prune-allowlist=core/v1/ConfigMap", "-l", "team=red", "-f", "-", stdin=other)
    assert "configmap/settings pruned" in done
    assert "(NotFound)" in kubectl.fails("get", "configmap", "settings")


def test_custom_resource_definition_is_applied_and_used(kubectl: Kubectl, namespace: str) -> None:
    group = f"{namespace}.example.com"
    crd = f"""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: crontabs.{group}
spec:
  group: {group}
  scope: Namespaced
  names: {{plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct-{namespace}]}}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: When to do what.
            required: [schedule]
            properties:
              schedule: {{type: string, pattern: '^(\\S+ ){{4}}\\S+$', description: As cron wants it.}}
              replicas: {{type: integer, default: 1}}
          status:
            type: object
            properties:
              replicas: {{type: integer}}
    subresources:
      status: {{}}
      scale: {{specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {{name: Schedule, type: string, jsonPath: .spec.schedule}}
    - {{name: Replicas, type: integer, jsonPath: .spec.replicas}}
"""
    instance = f"""
apiVersion: {group}/v1
kind: CronTab
metadata:
  name: nightly
spec:
  schedule: 0 3 * * *
"""
    kubectl("apply", "-f", "-", stdin=crd)
    kubectl("wait", "--for=condition=Established", f"crd/crontabs.{group}")
    assert kubectl("apply", "-f", "-", stdin=instance) == f"crontab.{group}/nightly created\n"
    assert kubectl("get", f"ct-{namespace}").split() == [
        "NAME", "SCHEDULE", "REPLICAS", "nightly", "0", "3", "*", "*", "*", "1",
    ]  # fmt: skip
    message = kubectl.fails("apply", "-f", "-", stdin=instance.replace("0 3 * * *", "never"))
    assert "spec.schedule in body should match" in message
    assert "scaled" in kubectl("scale", f"crontabs.{group}/nightly", "--replicas=4")
    assert kubectl("get", f"crontabs.{group}", "nightly", "-o", "jsonpath={.spec.replicas}") == "4"
    assert "As cron wants it." in kubectl("explain", f"crontabs.{group}.spec.schedule")
    kubectl("delete", "crd", f"crontabs.{group}")
    assert "the server doesn't have a resource type" in kubectl.fails("get", f"crontabs.{group}")
