from __future__ import annotations

from typing import Any

import orjson

from sandpool.api.kinds import BUILT_IN
from sandpool.api.schema import core
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.openapi.v3 import document, index, respond
from sandpool.server.resources import Resource


def load(resources: list[Resource], path: str) -> dict[str, Any]:
    found = document(resources, path)
    assert found is not None
    decoded: dict[str, Any] = orjson.loads(found.encoded)
    return decoded


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_index_has_a_document_for_each_group_version(resources: list[Resource]) -> None:
    paths = index(resources)["paths"]
    assert list(paths) == ["api/v1", "apis/apps/v1", "apis/authorization.k8s.io/v1", "apis/example.com/v1"]
    found = document(resources, "apis/apps/v1")
    assert found is not None
    assert paths["apis/apps/v1"]["serverRelativeURL"] == f"/openapi/v3/apis/apps/v1?hash={found.hash}"
    assert document(resources, "apis/nope/v1") is None
    assert document(resources, "") is None


def test_document_changes_only_with_its_own_resources(resources: list[Resource], widget: Resource) -> None:
    before = index(resources)["paths"]
    fewer = [resource for resource in resources if resource is not widget]
    assert index(fewer)["paths"] == {path: entry for path, entry in before.items() if "example.com" not in path}
    assert document(resources, "api/v1") is document(fewer, "api/v1")


def test_every_reference_of_every_built_in_document_resolves() -> None:
    def shape_source(type: Any) -> Any:
        return lambda: core.shape_of(type)

    served = [Resource(type, shape_source(type), KindStrategy()) for type in BUILT_IN]
    for path in index(served)["paths"]:
        loaded = load(served, path)
        defined = {f"#/components/schemas/{name}" for name in loaded["components"]["schemas"]}
        assert references(loaded) <= defined, path


def test_only_extensions_of_kubernetes_are_published(resources: list[Resource]) -> None:
    text = orjson.dumps(load(resources, "apis/apps/v1")).decode()
    assert '"x-zero"' not in text
    assert '"x-go-' not in text


def test_document_has_what_kubectl_apply_needs(resources: list[Resource]) -> None:
    loaded = load(resources, "apis/apps/v1")
    patch = loaded["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert patch["x-kubernetes-action"] == "patch"
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    schemas = loaded["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert (containers["x-kubernetes-patch-merge-key"], containers["x-kubernetes-list-type"]) == ("name", "map")
    strategy = schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["strategy"]
    assert strategy == {
        "default": {},
        "allOf": [{"$ref": "#/components/schemas/io.k8s.api.apps.v1.DeploymentStrategy"}],
        "x-kubernetes-patch-strategy": "retainKeys",
    }
    assert schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"] == {
        "oneOf": [{"type": "string"}, {"type": "number"}]
    }
    assert schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] == {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    }


def test_document_has_what_kubectl_explain_needs(resources: list[Resource]) -> None:
    schema = load(resources, "apis/example.com/v1")["components"]["schemas"]["com.example.v1.Widget"]
    assert schema["description"] == "A widget is ours."
    spec = schema["properties"]["spec"]
    assert spec["required"] == ["size"]
    assert spec["properties"]["size"] == {"type": "integer", "format": "int32", "default": 1, "minimum": 0}
    assert spec["properties"]["port"] == {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    }
    assert spec["properties"]["parts"]["x-kubernetes-list-map-keys"] == ["name"]
    metadata = schema["properties"]["metadata"]
    assert metadata["allOf"] == [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]


def test_document_requested_by_its_hash_is_immutable(resources: list[Resource]) -> None:
    url = index(resources)["paths"]["apis/example.com/v1"]["serverRelativeURL"]
    content_hash = url.partition("?hash=")[2]
    response = respond(resources, "apis/example.com/v1", content_hash)
    assert response is not None
    headers = dict(response.headers)
    assert headers["ETag"] == f'"{content_hash}"'
    assert "immutable" in headers["Cache-Control"]
    plain = respond(resources, "apis/example.com/v1")
    assert plain is not None
    assert "Cache-Control" not in dict(plain.headers)
    assert respond(resources, "apis/example.com/v9") is None
