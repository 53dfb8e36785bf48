"""OpenAPI v3: what kubectl needs to validate, explain and apply."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, POD, SANDBOX, SANDBOX_WARM_POOL
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.testing.waiting import until
from tests.support.api_access import Raw
from tests.support.api_objects import custom_type, definition
from tests.support.custom_kinds import install


async def document(raw: Raw, type: ResourceType) -> Any:
    """The document of a kind's group and version, through the index as clients go."""

    async def indexed() -> Any:
        index = (await raw("GET", "/openapi/v3")).json()["paths"]
        return index.get(type.base_path.removeprefix("/"))

    entry = await until(indexed)
    answer = await raw("GET", entry["serverRelativeURL"])
    assert answer.status == 200
    assert answer.content_type == "application/json"
    return answer.json()


def schema_of(found: Any, type: ResourceType) -> Any:
    """The schema that says it is of this kind, as kubectl finds it."""
    wanted = {"group": type.group, "version": type.version, "kind": type.kind}
    return next(
        schema
        for schema in found["components"]["schemas"].values()
        if wanted in schema.get("x-kubernetes-group-version-kind", [])
    )


def resolve(found: Any, schema: Any) -> Any:
    """Follow references, also those wrapped in an allOf to carry a description or a default."""
    while "$ref" in schema or "allOf" in schema:
        if "allOf" in schema:
            schema = schema["allOf"][0]
        else:
            schema = found["components"]["schemas"][schema["$ref"].removeprefix("#/components/schemas/")]
    return schema


def field(found: Any, schema: Any, path: str) -> Any:
    for name in path.split("."):
        schema = resolve(found, schema)
        schema = schema["items"] if name == "[]" else schema["properties"][name]
    return resolve(found, schema) | {key: value for key, value in schema.items() if key.startswith("x-")}


async def test_index_lists_the_documents(raw: Raw) -> None:
    answer = await raw("GET", "/openapi/v3")
    index = answer.json()["paths"]
    assert {
        "api/v1",
        "apis/apps/v1",
        "apis/apiextensions.k8s.io/v1",
        "apis/rbac.authorization.k8s.io/v1",
    } <= index.keys()
    assert index["api/v1"]["serverRelativeURL"].startswith("/openapi/v3/api/v1?hash=")


async def test_document_has_info_paths_and_components(raw: Raw) -> None:
    found = await document(raw, CONFIG_MAP)
    assert found["openapi"].startswith("3.0")
    assert {"info", "paths", "components"} <= found.keys()


async def test_every_reference_resolves(raw: Raw) -> None:
    found = await document(raw, CONFIG_MAP)
    schemas = found["components"]["schemas"]
    pending, seen = [schema_of(found, POD), schema_of(found, CONFIG_MAP)], set()
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                pending.append(schemas[reference.removeprefix("#/components/schemas/")])
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    assert len(seen) > 50


@pytest.mark.parametrize("type", [CONFIG_MAP, DEPLOYMENT, SANDBOX], ids=str)
async def test_patch_operations_declare_field_validation(raw: Raw, sandbox_kinds: None, type: ResourceType) -> None:
    """kubectl looks for this parameter to decide whether the server validates; without it, it refuses to apply."""
    found = await document(raw, type)
    path = f"{type.base_path}/namespaces/{{namespace}}/{type.plural}/{{name}}"
    patch = found["paths"][path]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": type.group,
        "version": type.version,
        "kind": type.kind,
    }
    assert {"fieldValidation", "fieldManager", "dryRun", "force"} <= {each["name"] for each in patch["parameters"]}
    assert {"application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"} <= patch[
        "requestBody"
    ]["content"].keys()


async def test_only_built_in_kinds_have_strategic_patches(raw: Raw, sandbox_kinds: None) -> None:
    for type, has in ((CONFIG_MAP, True), (SANDBOX, False)):
        found = await document(raw, type)
        path = f"{type.base_path}/namespaces/{{namespace}}/{type.plural}/{{name}}"
        content = found["paths"][path]["patch"]["requestBody"]["content"]
        assert ("application/strategic-merge-patch+json" in content) is has


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec.containers", {"type": "array"}),
        ("spec.containers", {"x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge"}),
        ("spec.containers", {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        ("spec.containers.[].image", {"type": "string"}),
        ("spec.containers.[].ports.[].containerPort", {"type": "integer", "format": "int32"}),
        ("spec.nodeSelector", {"type": "object", "x-kubernetes-map-type": "atomic"}),
        ("metadata.labels", {"type": "object"}),
        ("metadata.ownerReferences", {"x-kubernetes-patch-merge-key": "uid"}),
        ("status.phase", {"type": "string"}),
    ],
)
async def test_schema_of_a_pod_has_types_and_list_keys(raw: Raw, path: str, expected: dict[str, Any]) -> None:
    found = await document(raw, POD)
    schema = field(found, schema_of(found, POD), path)
    assert {key: schema.get(key) for key in expected} == expected


async def test_required_fields_are_listed(raw: Raw) -> None:
    found = await document(raw, POD)
    assert "containers" in field(found, schema_of(found, POD), "spec")["required"]
    assert field(found, schema_of(found, POD), "spec.containers.[]")["required"] == ["name"]


async def test_schema_of_the_sandbox_kinds_is_served(raw: Raw, sandbox_kinds: None) -> None:
    found = await document(raw, SANDBOX_WARM_POOL)
    replicas = field(found, schema_of(found, SANDBOX_WARM_POOL), "spec.replicas")
    assert (replicas["type"], replicas["default"], replicas["minimum"]) == ("integer", 1, 0)
    found = await document(raw, SANDBOX)
    assert field(found, schema_of(found, SANDBOX), "spec.podTemplate.spec.containers.[].image")["type"] == "string"


async def test_schema_of_a_custom_kind_is_served(raw: Raw, client: Client, namespace: str) -> None:
    type = custom_type(f"{namespace}.example.com")
    spec = {"type": "object", "description": "All of it.", "properties": {"n": {"type": "integer", "minimum": 1}}}
    await install(client, definition(type, {"type": "object", "properties": {"spec": spec}}))
    found = await document(raw, type)
    schema = schema_of(found, type)
    assert field(found, schema, "spec")["description"] == "All of it."
    assert field(found, schema, "spec.n") == {"type": "integer", "minimum": 1}
    assert {"apiVersion", "kind", "metadata"} <= schema["properties"].keys()


async def test_unchanged_document_is_not_modified(raw: Raw) -> None:
    answer = await raw("GET", "/openapi/v3/apis/apps/v1")
    again = await raw("GET", "/openapi/v3/apis/apps/v1", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status == 304


async def test_unknown_document_is_not_found(raw: Raw) -> None:
    assert (await raw("GET", "/openapi/v3/apis/nowhere.example.com/v1")).status == 404
