"""OpenAPI 2, all in one document: what kubectl before 1.29 validates and explains with.

The dialect cannot say what version 3 can: there is no nullable and no choice between types. Where a schema of ours
needs that, the document leaves the type open, because a client that checks too little loses nothing (the server
checks again) and one that checks too much refuses good objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sandpool.api.resource import Object
from sandpool.kube.transport import JSON
from sandpool.server.openapi.definitions import map_schema, reachable
from sandpool.server.openapi.operations import Operation, operations, path_parameters
from sandpool.server.request.discovery import KUBERNETES_VERSION
from sandpool.server.resources import Resource

_CODES = {200: "OK", 201: "Created", 202: "Accepted"}
_UNKNOWN_TO_V2 = ("allOf", "anyOf", "oneOf", "not", "nullable", "default", "x-kubernetes-validations")
_SHAPE = ("type", "properties", "required", "items", "additionalProperties")
# What may stand beside a reference without changing what it means.
_BESIDE_REFERENCE = (
    "description",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
)


def document(resources: Iterable[Resource]) -> Object:
    resources = tuple(resources)
    found = [operation for resource in resources for operation in operations(resource)]
    paths: dict[str, Object] = {}
    for operation in sorted(found, key=lambda operation: operation.path):
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    for path, item in paths.items():
        item["parameters"] = [_parameter(*parameter) for parameter in path_parameters(path)]
    names = {name for operation in found for name in (operation.body, operation.answer) if name}
    return {
        "swagger": "2.0",
        "info": {"title": "Sandpool", "version": f"v{KUBERNETES_VERSION}"},
        "paths": paths,
        "definitions": {name: _schema(schema) for name, schema in reachable(resources, names).items()},
        "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
        "security": [{"BearerToken": []}],
    }


def _operation(operation: Operation) -> Object:
    group, version, kind = operation.kind
    parameters = [_parameter(*parameter) for parameter in operation.parameters]
    if operation.body:
        body: Object = {"name": "body", "in": "body", "schema": _reference(operation.body)}
        if operation.body_required:
            body["required"] = True
        parameters.insert(0, body)
    schema = _reference(operation.answer) if operation.answer else {"type": "string"}
    responses: Object = {str(code): {"description": _CODES[code], "schema": schema} for code in operation.codes}
    return {
        "operationId": operation.id,
        "consumes": list(operation.body_types),
        "produces": [JSON if operation.answer else "*/*"],
        "parameters": parameters,
        "responses": {**responses, "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    }


def _parameter(name: str, type: str, place: str = "query") -> Object:
    parameter: Object = {"name": name, "in": place, "type": type, "uniqueItems": True}
    if place == "path":
        parameter["required"] = True
    return parameter


def _reference(name: str) -> Object:
    return {"$ref": f"#/definitions/{name}"}


def _schema(schema: Mapping[str, Any]) -> Object:
    if "$ref" in schema:
        beside = {key: schema[key] for key in _BESIDE_REFERENCE if key in schema}
        return {**_reference(schema["$ref"]), **beside}
    kept: Object = {
        key: value
        for key, value in schema.items()
        if key not in _UNKNOWN_TO_V2 and (not key.startswith("x-") or key.startswith("x-kubernetes-"))
    }
    if schema.get("format") == "quantity":
        return {"type": "string"}
    if schema.get("format") == "int-or-string":
        return {"type": "string", "format": "int-or-string"}
    open_ended = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "nullable")
    if any(schema.get(key) for key in open_ended) and "x-kubernetes-group-version-kind" not in schema:
        for key in _SHAPE:
            kept.pop(key, None)
    return map_schema(kept, _schema)
