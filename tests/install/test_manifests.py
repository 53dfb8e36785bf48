"""Installed objects need no privileges, have valid arguments, and have the names that clients use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from sandpool.api.kinds import SANDPOOL
from sandpool.api.resource import Object
from sandpool.cli.apiserver import apiserver as apiserver_command
from sandpool.cli.controller import controller as controller_command
from sandpool.cli.router import router as router_command
from sandpool.cli.tuning import LABEL_DOMAINS_FILE
from sandpool.controllers.preflight import LEASE_PERMISSION, OPTIONAL_PERMISSIONS, REQUIRED_PERMISSIONS
from sandpool.install.manifests import InstallOptions, controller, core, namespace, router
from sandpool.install.names import APISERVER_DATA

COMMANDS = {"apiserver": apiserver_command, "controller": controller_command, "router": router_command}
AGGREGATED = InstallOptions(storage="aggregated")


def every() -> list[Object]:
    return [namespace(), *controller(InstallOptions()), *router(InstallOptions())]


def deployments() -> list[Object]:
    return [each for each in every() if each["kind"] == "Deployment"]


def workloads() -> list[Object]:
    return [*deployments(), *(each for each in core(AGGREGATED) if each["kind"] == "StatefulSet")]


def container(deployment: Object) -> Object:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_installed_objects_have_the_names_clients_use() -> None:
    found = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in every()}
    assert {
        ("Namespace", "", "agent-sandbox-system"),
        ("Deployment", "agent-sandbox-system", "agent-sandbox-controller"),
        ("Service", "agent-sandbox-system", "agent-sandbox-controller"),
        ("ServiceAccount", "agent-sandbox-system", "agent-sandbox-controller"),
        ("ClusterRole", "", "agent-sandbox-controller"),
        ("Service", "agent-sandbox-system", "sandbox-router-svc"),
        ("Deployment", "agent-sandbox-system", "sandbox-router-deployment"),
    } <= found
    (service,) = [each for each in every() if each["metadata"]["name"] == "sandbox-router-svc"]
    assert [port["port"] for port in service["spec"]["ports"]] == [8080]


def test_config_map_of_label_domains_is_mounted_where_the_controller_reads_it() -> None:
    (deployment,) = [each for each in deployments() if each["metadata"]["name"] == "agent-sandbox-controller"]
    [volume] = deployment["spec"]["template"]["spec"]["volumes"]
    [mount] = container(deployment)["volumeMounts"]
    assert volume["configMap"] == {"name": "agent-sandbox-config", "optional": True}
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert Path(mount["mountPath"]) / "allowed-label-domains" == LABEL_DOMAINS_FILE


@pytest.mark.parametrize("deployment", workloads(), ids=lambda each: each["metadata"]["name"])
def test_pods_need_no_privilege(deployment: Object) -> None:
    pod = deployment["spec"]["template"]["spec"]
    security = container(deployment)["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(volume.keys() == {"name", "configMap"} for volume in pod.get("volumes", ())), "nothing of the host"


@pytest.mark.parametrize("deployment", workloads(), ids=lambda each: each["metadata"]["name"])
def test_containers_have_valid_arguments_and_listen_on_their_ports(deployment: Object) -> None:
    runs = container(deployment)
    name, *arguments = runs["args"]
    context: click.Context = COMMANDS[name].make_context(name, arguments)
    bound = {int(value.removeprefix(":")) for value in context.params.values() if _is_address(value)}
    bound |= {context.params["secure_port"]} if "secure_port" in context.params else set()
    ports = {each["name"]: each["containerPort"] for each in runs["ports"]}
    assert set(ports.values()) == bound
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert runs[probe]["httpGet"] == {"path": path, "port": "healthz"}
    assert f":{ports['healthz']}" == context.params["health_probe_bind_address"]


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(":")


@pytest.mark.parametrize("labels", [{"app": "agent-sandbox-controller"}, {"app": "sandbox-router"}])
def test_selectors_match_the_pods_of_the_deployment(labels: dict[str, str]) -> None:
    own = [each for each in every() if each["metadata"].get("labels", {}).get("app") == labels["app"]]
    (deployment,) = [each for each in own if each["kind"] == "Deployment"]
    assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    selectors = {each["kind"]: each["spec"] for each in own if "spec" in each}
    assert selectors["Deployment"]["selector"] == {"matchLabels": labels}
    assert selectors["Service"]["selector"] == labels
    assert selectors["PodDisruptionBudget"]["selector"] == {"matchLabels": labels}
    assert selectors["NetworkPolicy"]["podSelector"] == {"matchLabels": labels}


def test_roles_grant_what_the_controllers_need() -> None:
    granted = {
        (rule["apiGroups"][0], resource, verb)
        for each in controller(InstallOptions())
        if each["kind"] in ("ClusterRole", "Role")
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        (need.type.group, "/".join(filter(None, (need.type.plural, need.subresource))), verb)
        for need in (*REQUIRED_PERMISSIONS, *OPTIONAL_PERMISSIONS, LEASE_PERMISSION)
        for verb in need.verbs
    }
    assert not any("*" in part for rule in granted for part in rule)


def test_aggregated_storage_may_ask_about_users_publish_its_ca_and_move_besides() -> None:
    objects = core(AGGREGATED)
    rules = [rule for each in objects if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
    needed = [
        rule
        for each in controller(InstallOptions())
        if each["kind"] in ("ClusterRole", "Role")
        for rule in each["rules"]
    ]
    assert [rule for rule in rules if rule not in needed] == [
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": ["apiregistration.k8s.io"],
            "resources": ["apiservices"],
            "resourceNames": ["v1beta1.agents.x-k8s.io", "v1beta1.extensions.agents.x-k8s.io"],
            "verbs": ["list", "watch", "patch"],
        },
        {
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": ["customresourcedefinitions"],
            "resourceNames": [each.group_resource for each in SANDPOOL],
            "verbs": ["get"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["agent-sandbox-storage-move"],
            "verbs": ["list", "watch", "patch"],
        },
    ]
    bound = {each["roleRef"]["name"] for each in objects if each["kind"].endswith("Binding")}
    assert bound == {
        "agent-sandbox-apiserver",
        "system:auth-delegator",
        "extension-apiserver-authentication-reader",
    }


def test_aggregated_storage_is_one_process_with_a_volume_behind_its_service() -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in core(AGGREGATED)}
    workload = objects["StatefulSet", "agent-sandbox-apiserver"]["spec"]
    service = objects["Service", "agent-sandbox-apiserver"]["spec"]
    assert workload["replicas"] == 1
    assert workload["podManagementPolicy"] == "Parallel", "or an update would wait for a pod that is never ready"
    assert container({"spec": workload})["readinessProbe"]["periodSeconds"] == 1
    [claim] = workload["volumeClaimTemplates"]
    mounts = {each["name"]: each["mountPath"] for each in container({"spec": workload})["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == APISERVER_DATA
    assert workload["template"]["spec"]["securityContext"]["fsGroup"] == 65532
    assert service["selector"].items() <= workload["template"]["metadata"]["labels"].items()
    for name in ("v1beta1.agents.x-k8s.io", "v1beta1.extensions.agents.x-k8s.io"):
        spec = objects["APIService", name]["spec"]
        assert f"{spec['version']}.{spec['group']}" == name
        assert spec["service"]["port"] == service["ports"][0]["port"]
        assert "caBundle" not in spec, "the process publishes its own"
    assert not any(kind == "CustomResourceDefinition" for kind, _ in objects)
    monitored = objects["Service", "agent-sandbox-controller"]
    assert monitored["metadata"]["labels"]["app"] == "agent-sandbox-controller", "the ServiceMonitor selects it"
    assert monitored["spec"]["selector"] == service["selector"]
    chosen_class = core(InstallOptions(storage="aggregated", storage_class="fast"))
    (stateful,) = [each for each in chosen_class if each["kind"] == "StatefulSet"]
    assert stateful["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"


def test_network_policies_keep_sandboxes_from_metrics_and_health() -> None:
    expected = {
        "agent-sandbox-controller": {"internal": {8080, 8081}, "public": set()},
        "sandbox-router": {"internal": {9090, 8081}, "public": {8080}},
        "agent-sandbox-apiserver": {"internal": {8080, 8081}, "public": {6443}},
    }
    found = {}
    for each in [*every(), *core(AGGREGATED)]:
        if each["kind"] != "NetworkPolicy":
            continue
        ports: dict[str, set[int]] = {"internal": set(), "public": set()}
        for rule in each["spec"]["ingress"]:
            kind = "internal" if "from" in rule else "public"
            ports[kind] |= {port["port"] for port in rule["ports"]}
            for peer in rule.get("from", ()):
                (expression,) = peer["podSelector"]["matchExpressions"]
                assert expression == {"key": "agents.x-k8s.io/sandbox-name-hash", "operator": "DoesNotExist"}
        found[each["metadata"]["name"]] = ports
    assert found == expected
