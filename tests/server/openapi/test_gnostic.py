from __future__ import annotations

from collections import defaultdict
from typing import Any

import orjson

from sandpool.server.openapi.gnostic import encode
from sandpool.server.openapi.v2 import document
from sandpool.server.protobuf.wire import fields
from sandpool.server.resources import Resource


class Read:
    """A message, read field by field by number."""

    def __init__(self, data: Any) -> None:
        self.values: dict[int, list[Any]] = defaultdict(list)
        for number, _, value in fields(memoryview(data)):
            self.values[number].append(value)

    def one(self, *path: int) -> Read:
        number, *rest = path
        (value,) = self.values[number]
        return Read(value).one(*rest) if rest else Read(value)

    def text(self, number: int) -> str:
        (value,) = self.values[number]
        return bytes(value).decode()

    def texts(self, number: int) -> list[str]:
        return [bytes(value).decode() for value in self.values[number]]

    def named(self, number: int) -> dict[str, Read]:
        entries = [Read(value) for value in self.values[number]]
        return {entry.text(1): entry.one(2) for entry in entries}

    def extensions(self, number: int) -> dict[str, Any]:
        return {name: orjson.loads(value.text(2)) for name, value in self.named(number).items()}


def test_the_document_can_be_read_back_by_field_numbers(resources: list[Resource]) -> None:
    read = Read(encode(document(resources)))
    assert read.text(1) == "2.0"
    assert read.one(2).text(1) == "Sandpool"

    patch = read.one(8).named(2)["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"].one(8)
    assert patch.text(5) == "patchAppsV1NamespacedDeployment"
    assert "application/strategic-merge-patch+json" in patch.texts(7)
    assert patch.extensions(13)["x-kubernetes-group-version-kind"]["kind"] == "Deployment"
    body, *queries = [Read(value).one(1) for value in patch.values[8]]
    assert body.one(1, 5).text(1) == "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"
    assert [query.one(2, 3).text(4) for query in queries] == ["dryRun", "fieldManager", "fieldValidation", "force"]
    assert patch.one(9).named(1)["200"].one(1, 2, 1).text(1) == "#/definitions/io.k8s.api.apps.v1.Deployment"


def test_schemas_keep_types_properties_and_extensions(resources: list[Resource]) -> None:
    definitions = Read(encode(document(resources))).one(9).named(1)
    widget = definitions["com.example.v1.Widget"]
    assert (widget.one(22).text(1), widget.text(4)) == ("object", "A widget is ours.")
    assert widget.extensions(31)["x-kubernetes-group-version-kind"][0]["kind"] == "Widget"
    spec = widget.one(25).named(1)["spec"]
    assert spec.texts(19) == ["size"]
    properties = spec.one(25).named(1)
    assert properties["size"].text(2) == "int32"
    assert bytes(properties["size"].values[9][0]) == bytes(8)  # minimum 0
    assert properties["labels"].one(21, 1, 22).text(1) == "string"
    assert [orjson.loads(Read(value).text(2)) for value in properties["mode"].values[20]] == ["Fast", "Slow"]
    parts = properties["parts"]
    assert (parts.one(22).text(1), parts.one(23, 1, 22).text(1)) == ("array", "object")
    assert parts.extensions(31)["x-kubernetes-list-map-keys"] == ["name"]
