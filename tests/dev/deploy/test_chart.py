"""The Helm chart, rendered by Go templates, equals the manifests; values have their effect."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dev.deploy.chart_values import FLAGS
from sandpool.api.kinds import API_SERVICE, API_SERVICES, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, SANDPOOL
from sandpool.api.resource import Object
from sandpool.cli.controller import controller as controller_command
from sandpool.install import apiserver, monitoring
from sandpool.install.flow import FLOW_SCHEMA
from sandpool.install.manifests import InstallOptions, controller, core, namespace
from sandpool.server.aggregated.storage_move import RECORD
from sandpool.testing.objects import new

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "sandpool"
RENDERER = Path(__file__).parent / "render.go"

Render = Callable[..., dict[str, Object]]


class Refused(Exception):
    """The chart cannot be rendered."""


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: charts cannot be rendered")
    program = tmp_path_factory.mktemp("render") / "render"
    environment = {**os.environ, "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", program, RENDERER], check=True, env=environment)
    return program


@pytest.fixture
def render(renderer: Path, tmp_path: Path) -> Render:
    def rendered(*, missing: str = "", cluster: Sequence[Object] = (), **changes: Any) -> dict[str, Object]:
        """The objects by kind, with these values laid over those of the chart. The cluster has all APIs but one.

        Raises ``Refused`` if the chart fails, because of what is in the cluster."""
        values = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), changes)
        (tmp_path / "values.json").write_text(json.dumps(values))
        templates = sorted((CHART / "templates").glob("*.yaml"))
        made = subprocess.run(
            [renderer, tmp_path / "values.json", *templates],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MISSING": missing, "CLUSTER": json.dumps(cluster)},
        )
        if made.returncode:
            raise Refused(made.stderr)
        objects = [each for each in yaml.safe_load_all(made.stdout) if each]
        if values["storage"] == "aggregated":  # it has several objects of some kinds
            return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}
        return {each["kind"]: each for each in objects}

    return rendered


def _merged(base: Object, changes: Object) -> Object:
    return {
        **base,
        **{
            key: _merged(base[key], each) if isinstance(each, dict) and base.get(key) else each
            for key, each in changes.items()
        },
    }


def without_empties(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_empties(each) for key, each in value.items() if each not in ({}, [])}
    return [without_empties(each) for each in value] if isinstance(value, list) else value


def kept(object: Object) -> Object:
    """An object as the chart has it: Helm does not delete some."""
    if object["kind"] not in ("Namespace", "APIService"):
        return object
    return {**object, "metadata": {**object["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}}


def test_default_values_render_the_manifests(render: Render) -> None:
    expected = {each["kind"]: kept(each) for each in [namespace(), *controller(InstallOptions())]}
    assert without_empties(render()) == without_empties(expected)


def test_aggregated_storage_renders_its_manifests_and_no_others(render: Render) -> None:
    expected = [namespace(), *core(InstallOptions(storage="aggregated"))]
    assert without_empties(render(storage="aggregated")) == without_empties(
        {f"{each['kind']}/{each['metadata']['name']}": kept(each) for each in expected}
    )


def test_storage_that_the_cluster_does_not_have_is_refused(render: Render) -> None:
    passed_on = apiserver.api_services()
    names = [each.group_resource for each in SANDPOOL]
    definitions = [new(CUSTOM_RESOURCE_DEFINITION, name) for name in names]
    # As kube-apiserver registers custom resources.
    local = [new(API_SERVICE, name, spec={"group": name.partition(".")[2]}) for name in API_SERVICES]
    assert render(cluster=[*definitions, *local])
    assert render(cluster=passed_on, storage="aggregated")
    delete = f"kubectl delete crd {' '.join(names)}"
    with pytest.raises(Refused, match=r"storage=aggregated. Leave its APIServices .*sandpool storage move --to crd`"):
        render(cluster=[*passed_on, *definitions])
    with pytest.raises(Refused, match=f"Leave its APIServices as they are. Delete the definitions: {delete}"):
        render(cluster=[*passed_on, *definitions], storage="aggregated")
    with pytest.raises(Refused, match=rf"may be custom resources: `sandpool storage move --to aggregated`.*{delete}"):
        render(cluster=[*local, *definitions], storage="aggregated")
    record = new(CONFIG_MAP, RECORD)
    record["metadata"]["namespace"] = "elsewhere"
    with pytest.raises(Refused, match="a move of the storage is under way"):
        render(cluster=[*local, *definitions, record], namespace={"create": True, "name": "elsewhere"})


def test_values_change_the_objects_of_the_aggregated_storage(render: Render) -> None:
    made = render(
        storage="aggregated",
        image={"repository": "example.com/sandpool", "tag": "9"},
        namespace={"create": False, "name": "elsewhere"},
        service={"name": "numbers"},
        apiserver={"volumeClaim": {"storageClassName": "fast"}},
        controller={"leaderElect": False, "leaderElectionNamespace": "votes", "kubeApiQps": 50},
    )
    workload = made["StatefulSet/agent-sandbox-apiserver"]
    (runs,) = workload["spec"]["template"]["spec"]["containers"]
    assert runs["image"] == "example.com/sandpool:9"
    assert runs["args"] == ["apiserver", "--kube-api-qps=50"], "it is always elected, where its Service is"
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    for name in ("v1beta1.agents.x-k8s.io", "v1beta1.extensions.agents.x-k8s.io"):
        assert made[f"APIService/{name}"]["spec"]["service"]["namespace"] == "elsewhere"
    assert made["Service/numbers"]["spec"]["selector"] == {"app": "agent-sandbox-apiserver"}
    placed = {kind: each["metadata"].get("namespace") for kind, each in made.items()}
    assert placed["Role/agent-sandbox-apiserver"] == "elsewhere"
    assert placed["RoleBinding/agent-sandbox-apiserver-extension-apiserver-authentication-reader"] == "kube-system"
    assert not any(each == "agent-sandbox-system" for each in placed.values())


def test_monitoring_values_render_the_manifests(render: Render) -> None:
    metrics = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    made = render(metrics=metrics)
    assert [made["ServiceMonitor"], made["PrometheusRule"]] == monitoring.objects()


def test_flow_schemas_are_left_out_where_the_cluster_has_none(render: Render) -> None:
    whole, made = render(), render(missing=FLOW_SCHEMA.api_version)
    assert whole.keys() - made.keys() == {"FlowSchema"}


def test_values_change_the_rendered_objects(render: Render) -> None:
    group = {"name": "mine", "rules": []}
    made = render(
        image={"repository": "example.com/sandpool", "tag": "9"},
        replicaCount=3,
        namespace={"create": False, "name": "elsewhere"},
        podLabels={"team": "agents"},
        podAnnotations={"note": "x"},
        tolerations=[{"operator": "Exists"}],
        service={"name": "numbers"},
        metrics={
            "serviceMonitor": {"enabled": True, "scrapeTimeout": "5s", "additionalLabels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "additionalGroups": [group]},
        },
        controller={
            "leaderElect": False,
            "leaderElectionNamespace": "votes",
            "enableWarmPoolEviction": False,
            "kubeApiQps": 50,
            "extraArgs": ["--log-level=debug"],
        },
    )
    assert "Namespace" not in made
    (rule,) = made["FlowSchema"]["spec"]["rules"]
    assert rule["subjects"][0]["serviceAccount"]["namespace"] == "elsewhere"
    assert rule["resourceRules"][0]["namespaces"] == ["votes"]
    pod = made["Deployment"]["spec"]["template"]
    assert made["Deployment"]["spec"]["replicas"] == 3
    assert pod["metadata"]["labels"]["team"] == "agents"
    assert pod["metadata"]["labels"]["app"] == "agent-sandbox-controller", "a value cannot break the selector"
    assert pod["metadata"]["annotations"] == {"note": "x"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["containers"][0]["image"] == "example.com/sandpool:9"
    assert pod["spec"]["containers"][0]["args"] == [
        "controller",
        "--leader-elect=false",
        "--leader-election-namespace=votes",
        "--kube-api-qps=50",
        "--enable-warm-pool-eviction=false",
        "--log-level=debug",
    ]
    assert made["Service"]["metadata"] == {**made["Service"]["metadata"], "name": "numbers", "namespace": "elsewhere"}
    assert made["Role"]["metadata"]["namespace"] == made["RoleBinding"]["metadata"]["namespace"] == "votes"
    assert made["RoleBinding"]["subjects"][0]["namespace"] == "elsewhere"
    assert made["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"
    assert made["ServiceMonitor"]["spec"]["namespaceSelector"] == {"matchNames": ["elsewhere"]}
    assert made["ServiceMonitor"]["spec"]["endpoints"] == [
        {"port": "metrics", "interval": "30s", "scrapeTimeout": "5s"}
    ]
    assert made["PrometheusRule"]["spec"]["groups"][-1] == group


def test_every_flag_of_the_chart_is_one_of_the_controller() -> None:
    known = {name for parameter in controller_command.params for name in parameter.opts}
    assert set(FLAGS.values()) <= known
    help_text = CliRunner().invoke(controller_command, ["--help"]).output
    assert all(re.search(rf"{flag}\b", help_text) for flag in FLAGS.values())
