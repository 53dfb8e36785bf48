from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpool.api import kinds
from sandpool.api.columns import from_printer_columns
from sandpool.api.resource import ResourceType
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.crds import crd, manifests
from sandpool.api.schema.shape import from_openapi, to_openapi

FILES = Path(__file__).parents[3] / "deploy" / "crds"


def schema(type: ResourceType, *path: str) -> dict[str, Any]:
    found: dict[str, Any] = crd(type)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["properties"][name] if "properties" in found else found["items"]["properties"][name]
    return found


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


def test_crd_files_are_up_to_date() -> None:
    expected = manifests()
    assert sorted(path.name for path in FILES.glob("*.yaml")) == sorted(expected)
    for name, text in expected.items():
        assert (FILES / name).read_text() == text, f"{name} is out of date: run make crds"


def test_crd_files_hold_the_manifests() -> None:
    name = "extensions.agents.x-k8s.io_sandboxclaims.yaml"
    assert yaml.load((FILES / name).read_bytes(), yaml.CSafeLoader) == crd(kinds.SANDBOX_CLAIM)


@pytest.mark.parametrize("type", kinds.SANDPOOL, ids=str)
def test_manifests_are_valid_custom_resource_definitions(type: ResourceType) -> None:
    admitted = compile_admission(shape_of(kinds.CUSTOM_RESOURCE_DEFINITION))(crd(type))
    assert admitted.unknown == []
    assert admitted.object["spec"] == crd(type)["spec"]


@pytest.mark.parametrize("type", kinds.SANDPOOL, ids=str)
def test_definitions_have_names_versions_and_subresources(type: ResourceType) -> None:
    spec = crd(type)["spec"]
    assert crd(type)["metadata"] == {"name": type.group_resource}
    assert spec["names"]["shortNames"] == list(type.short_names)
    assert spec["conversion"] == {"strategy": "None"}
    assert [version["name"] for version in spec["versions"]] == ["v1beta1"]
    assert set(spec["versions"][0].get("subresources", {})) == type.subresources


def test_pool_definition_has_scale_paths() -> None:
    assert crd(kinds.SANDBOX_WARM_POOL)["spec"]["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_definitions_have_printer_columns() -> None:
    def columns(type: ResourceType) -> list[tuple[str, str, str]]:
        version = crd(type)["spec"]["versions"][0]
        found = from_printer_columns(version.get("additionalPrinterColumns", []))
        return [(column.name, column.type, column.json_path) for column in found]

    ready = ".status.conditions[?(@.type=='Ready')]"
    age = ("Age", "date", ".metadata.creationTimestamp")
    assert columns(kinds.SANDBOX) == [
        ("Ready", "string", f"{ready}.status"),
        ("Reason", "string", f"{ready}.reason"),
        age,
    ]
    assert columns(kinds.SANDBOX_CLAIM) == [
        ("Ready", "string", f"{ready}.status"),
        ("Sandbox", "string", ".status.sandbox.name"),
        ("Reason", "string", f"{ready}.reason"),
        age,
    ]
    assert columns(kinds.SANDBOX_WARM_POOL) == [
        ("Ready", "integer", ".status.readyReplicas"),
        ("Desired", "integer", ".spec.replicas"),
        age,
    ]
    assert columns(kinds.SANDBOX_TEMPLATE) == []


@pytest.mark.parametrize("type", kinds.SANDPOOL, ids=str)
def test_schemas_are_structural(type: ResourceType) -> None:
    """kube-apiserver's requirements for structural schemas, as far as these schemas could violate them."""
    for path, node in nodes(schema(type)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not any(key.startswith(("x-zero", "x-go", "x-kubernetes-patch")) for key in node), path
        assert node.get("default") != {}, path
        if node.get("x-kubernetes-list-type") == "map":
            items = node["items"]
            for key in node["x-kubernetes-list-map-keys"]:
                assert key in items.get("required", []) or "default" in items["properties"][key], f"{path}[{key}]"


@pytest.mark.parametrize("type", kinds.SANDPOOL, ids=str)
def test_shapes_are_equivalent_to_schemas(type: ResourceType) -> None:
    def normal(node: Any) -> Any:
        """Normalise a schema: ignore the order of required fields, and drop explicit defaults."""
        if isinstance(node, dict):
            return {
                key: sorted(each) if key == "required" else normal(each)
                for key, each in node.items()
                if (key, each) != ("x-kubernetes-list-type", "atomic")
            }
        return node

    assert normal(to_openapi(from_openapi(schema(type)))) == normal(schema(type))


# The defaults a pod spec gets by being in a custom resource, and no others.
POD_DEFAULTS = {
    "protocol": "TCP",
    "service": "",
    "name": "",
    "optional": False,
    "fsType": "ext4",
    "readOnly": False,
    "iscsiInterface": "default",
    "keyring": "/etc/ceph/keyring",
    "pool": "rbd",
    "user": "admin",
    "storageMode": "ThinProvisioned",
}


def test_pod_specs_have_only_the_declared_defaults() -> None:
    found = {
        (path.rsplit(".", 1)[-1], node["default"])
        for path, node in nodes(schema(kinds.SANDBOX, "spec", "podTemplate", "spec"))
        if "default" in node
    }
    assert found == {*POD_DEFAULTS.items(), ("fsType", "xfs")}


def test_pod_specs_have_all_fields_and_no_validation() -> None:
    spec = schema(kinds.SANDBOX, "spec", "podTemplate", "spec")
    assert {"resources", "hostnameOverride", "schedulingGroup"} <= set(spec["properties"])
    assert len(spec["properties"]) == 42
    assert spec["required"] == ["containers"]
    assert not any("enum" in node for _, node in nodes(spec))
    env = schema(kinds.SANDBOX, "spec", "podTemplate", "spec", "containers", "env")
    assert (env["x-kubernetes-list-type"], env["x-kubernetes-list-map-keys"]) == ("map", ["name"])


def test_template_metadata_have_only_the_declared_fields() -> None:
    assert set(schema(kinds.SANDBOX, "spec", "podTemplate", "metadata")["properties"]) == {"labels", "annotations"}
    assert set(schema(kinds.SANDBOX, "spec", "volumeClaimTemplates", "metadata")["properties"]) == {
        "name",
        "labels",
        "annotations",
    }


def test_conditions_are_atomic_lists() -> None:
    conditions = schema(kinds.SANDBOX, "status", "conditions")
    assert "x-kubernetes-list-type" not in conditions
    item = conditions["items"]
    assert item["required"] == ["lastTransitionTime", "message", "reason", "status", "type"]
    assert item["properties"]["type"]["maxLength"] == 316
    assert item["properties"]["reason"] | {"description": ""} == {
        "type": "string",
        "description": "",
        "minLength": 1,
        "maxLength": 1024,
        "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    }
    assert item["properties"]["message"]["maxLength"] == 32768


@pytest.mark.parametrize(
    ("type", "path", "values", "default"),
    [
        (kinds.SANDBOX, "operatingMode", ["Running", "Suspended"], "Running"),
        (kinds.SANDBOX, "shutdownPolicy", ["Delete", "Retain"], "Retain"),
        (kinds.SANDBOX_TEMPLATE, "networkPolicyManagement", ["Managed", "Unmanaged"], "Managed"),
        (kinds.SANDBOX_TEMPLATE, "envVarsInjectionPolicy", ["Allowed", "Overrides", "Disallowed"], "Disallowed"),
        (kinds.SANDBOX_TEMPLATE, "volumeClaimTemplatesPolicy", ["Disallowed", "Allowed", "Overrides"], "Disallowed"),
        (kinds.SANDBOX_CLAIM, "lifecycle.shutdownPolicy", ["Delete", "DeleteForeground", "Retain"], "Retain"),
        (
            kinds.SANDBOX_WARM_POOL,
            "updateStrategy.type",
            ["Recreate", "OnReplenish", "RollingUpdate"],
            "OnReplenish",
        ),
    ],
)
def test_enums_have_values_and_default(type: ResourceType, path: str, values: list[str], default: str) -> None:
    field = schema(type, "spec", *path.split("."))
    assert field["enum"] == values
    assert field["default"] == default


def test_required_fields_are_declared() -> None:
    assert schema(kinds.SANDBOX, "spec")["required"] == ["podTemplate"]
    assert schema(kinds.SANDBOX_TEMPLATE, "spec")["required"] == ["podTemplate"]
    assert schema(kinds.SANDBOX_CLAIM, "spec")["required"] == ["warmPoolRef"]
    assert schema(kinds.SANDBOX_WARM_POOL, "spec")["required"] == ["sandboxTemplateRef"]
    assert schema(kinds.SANDBOX_CLAIM, "spec", "env")["items"]["required"] == ["name", "value"]


def test_pool_gets_its_defaults() -> None:
    admit = compile_admission(from_openapi(schema(kinds.SANDBOX_WARM_POOL)))
    admitted = admit({"spec": {"sandboxTemplateRef": {"name": "t"}, "updateStrategy": {}}})
    assert admitted.causes == []
    assert admitted.object["spec"] == {
        "sandboxTemplateRef": {"name": "t"},
        "updateStrategy": {"type": "OnReplenish"},
        "replicas": 1,
    }


@pytest.mark.parametrize(("value", "fine"), [(1, True), ("25%", True), ("0%", True), ("x", False), (-1, False)])
def test_rolling_update_bounds_are_numbers_or_percentages(value: Any, fine: bool) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": value, "maxUnavailable": value}}
    spec = {"sandboxTemplateRef": {"name": "t"}, "updateStrategy": strategy}
    admitted = compile_admission(from_openapi(schema(kinds.SANDBOX_WARM_POOL)))({"spec": spec})
    assert (admitted.causes == []) == fine


def test_lean_profile_accepts_any_pod_spec() -> None:
    lean = crd(kinds.SANDBOX, "lean")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    pod = {"anything": None, "containers": [{"image": 1, "ports": [{"containerPort": "x"}]}]}
    spec = {"podTemplate": {"spec": pod}, "operatingMode": "Running", "shutdownPolicy": "Retain"}
    given = {"spec": spec}
    admitted = compile_admission(from_openapi(lean))(given)
    assert admitted.object is given
    assert admitted.causes == []


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"containers": "x"},
        {"containers": []},
        {"containers": [1]},
        {"containers": [{}], "initContainers": 1},
        {"containers": [{}], "volumes": ["x"]},
        {"containers": [{"ports": 7}]},
        {"containers": [{"env": [7]}]},
    ],
)
def test_lean_profile_rejects_a_pod_spec_that_is_no_object(pod: Any) -> None:
    lean = crd(kinds.SANDBOX, "lean")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    admitted = compile_admission(from_openapi(lean))({"spec": {"podTemplate": {"spec": pod}}})
    assert admitted.causes != []


def test_volume_claim_templates_of_a_sandbox_are_immutable() -> None:
    admit = compile_admission(from_openapi(schema(kinds.SANDBOX)))
    pod = {"spec": {"containers": [{"name": "c"}]}}
    old = admit({"spec": {"podTemplate": pod, "volumeClaimTemplates": [{"spec": {}}]}})
    assert old.causes == []
    changed = admit({"spec": {"podTemplate": pod}}, old.object)
    assert [str(cause) for cause in changed.causes] == ["spec: Invalid value: volumeClaimTemplates is immutable"]


@pytest.mark.parametrize("kind", [kinds.SANDBOX, kinds.SANDBOX_TEMPLATE])
def test_pod_without_containers_is_rejected(kind: Any) -> None:
    admitted = compile_admission(from_openapi(schema(kind)))({"spec": {"podTemplate": {"spec": {"containers": []}}}})
    assert [cause.field for cause in admitted.causes] == ["spec.podTemplate.spec.containers"]
