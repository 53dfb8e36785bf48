from __future__ import annotations

from sandpool.server.openapi.v2 import document
from sandpool.server.resources import Resource


def test_one_document_has_everything(resources: list[Resource]) -> None:
    made = document(resources)
    assert made["swagger"] == "2.0"
    assert "/api/v1/namespaces/{namespace}/pods/{name}/log" in made["paths"]
    assert {"io.k8s.api.apps.v1.Deployment", "com.example.v1.Widget"} <= made["definitions"].keys()


def test_a_patch_lists_its_formats_and_parameters(resources: list[Resource]) -> None:
    patch = document(resources)["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert patch["consumes"] == [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ]
    body, *others = patch["parameters"]
    assert (body["in"], body["required"]) == ("body", True)
    assert [parameter["name"] for parameter in others] == ["dryRun", "fieldManager", "fieldValidation", "force"]
    assert patch["responses"]["200"]["schema"] == {"$ref": "#/definitions/com.example.v1.Widget"}


def test_references_keep_only_what_may_stand_beside_them(resources: list[Resource]) -> None:
    properties = document(resources)["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]
    assert properties["strategy"] == {
        "$ref": "#/definitions/io.k8s.api.apps.v1.DeploymentStrategy",
        "x-kubernetes-patch-strategy": "retainKeys",
    }
    assert properties["template"] == {"$ref": "#/definitions/io.k8s.api.core.v1.PodTemplateSpec"}


def test_where_the_dialect_cannot_say_it_the_type_is_left_open(resources: list[Resource]) -> None:
    definitions = document(resources)["definitions"]
    properties = definitions["com.example.v1.Widget"]["properties"]["spec"]["properties"]
    assert "type" not in properties["maybe"]
    assert properties["port"] == {"x-kubernetes-int-or-string": True}
    assert properties["free"] == {"x-kubernetes-preserve-unknown-fields": True}
    assert properties["size"] == {"type": "integer", "format": "int32", "minimum": 0}
    assert properties["labels"]["additionalProperties"] == {"type": "string"}
    assert definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] == {"type": "string"}
    assert definitions["com.example.v1.Widget"]["type"] == "object"
