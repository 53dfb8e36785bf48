"""OpenAPI 3: an index, and one document per group version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from sandpool.api.resource import Object
from sandpool.kube.transport import JSON
from sandpool.server.openapi.definitions import map_schema, reachable
from sandpool.server.openapi.operations import Operation, operations
from sandpool.server.request.discovery import KUBERNETES_VERSION, group_order, version_order
from sandpool.server.request.messages import Response
from sandpool.server.resources import Resource

_CODES = {200: "OK", 201: "Created", 202: "Accepted"}
_NUMERIC_OR_TEXT = {"int-or-string": ("integer", "string"), "quantity": ("string", "number")}


@dataclass(frozen=True, slots=True)
class Document:
    encoded: bytes
    hash: str


def index(resources: Iterable[Resource]) -> Object:
    """``/openapi/v3``: the address of each document. The hash in it lets clients cache a document forever."""
    paths = {}
    for path, served in _by_path(resources).items():
        url = f"/openapi/v3/{path}?hash={_document(served).hash}"
        paths[path] = {"serverRelativeURL": url}
    return {"paths": paths}


def document(resources: Iterable[Resource], path: str) -> Document | None:
    """``/openapi/v3/<path>``, where path is api/v1 or apis/<group>/<version>; None if nothing is served there."""
    served = _by_path(resources).get(path)
    return _document(served) if served else None


def respond(resources: Iterable[Resource], path: str, content_hash: str = "") -> Response | None:
    """Answer ``/openapi/v3/<path>``; None if there is no such document.

    ``content_hash`` is the query parameter ``hash``, by which the index names one content of the document. What is
    served under that address never changes, so clients may keep it.
    """
    found = document(resources, path)
    if found is None:
        return None
    response = _tagged(found.encoded, found.hash)
    if content_hash == found.hash:
        response.headers.append(("Cache-Control", "public, immutable, max-age=31536000"))
    return response


def _tagged(encoded: bytes, content_hash: str) -> Response:
    return Response(encoded=encoded, content_type=JSON, headers=[("ETag", f'"{content_hash}"'), ("Vary", "Accept")])


def _by_path(resources: Iterable[Resource]) -> dict[str, tuple[Resource, ...]]:
    ordered = sorted(resources, key=lambda r: (group_order(r.type.group), version_order(r.type.version), r.type.plural))
    found: dict[str, list[Resource]] = {}
    for resource in ordered:
        found.setdefault(resource.type.base_path.lstrip("/"), []).append(resource)
    return {path: tuple(served) for path, served in found.items()}


# Resources are compared by identity and replaced when their definition changes, so a document is rebuilt only if one
# of its own resources changes.
@lru_cache(maxsize=128)
def _document(resources: tuple[Resource, ...]) -> Document:
    found = [operation for resource in resources for operation in operations(resource)]
    paths: dict[str, Object] = {}
    for operation in sorted(found, key=lambda operation: operation.path):
        item = paths.setdefault(operation.path, {})
        item[operation.method] = _operation(operation)
    for path, item in paths.items():
        item["parameters"] = [
            _parameter(name, "string", "path") for name in ("namespace", "name") if f"{{{name}}}" in path
        ]
        item["parameters"].append(_parameter("pretty", "string", "query"))
    names = {name for operation in found for name in (operation.body, operation.answer) if name}
    schemas = reachable(resources, names)
    encoded = orjson.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "Sandpool", "version": f"v{KUBERNETES_VERSION}"},
            "paths": paths,
            "components": {
                "schemas": {name: _schema(schema) for name, schema in schemas.items()},
                "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
            },
        }
    )
    return Document(encoded, hashlib.sha512(encoded).hexdigest().upper())


def _operation(operation: Operation) -> Object:
    group, version, kind = operation.kind
    rendered: Object = {
        "operationId": operation.id,
        "parameters": [_parameter(*parameter) for parameter in operation.parameters],
        "responses": {
            **{str(code): _response(code, operation) for code in operation.codes},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    }
    if operation.body:
        content = {media_type: {"schema": _reference(operation.body)} for media_type in operation.body_types}
        rendered["requestBody"] = {"content": content}
        if operation.body_required:
            rendered["requestBody"]["required"] = True
    return rendered


def _response(code: int, operation: Operation) -> Object:
    response: Object = {"description": _CODES[code]}
    if operation.answer:
        response["content"] = {JSON: {"schema": _reference(operation.answer)}}
    elif operation.action == "get":
        response["content"] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        response["content"] = {"*/*": {"schema": {"type": "string"}}}
    return response


def _parameter(name: str, type: str, place: str = "query") -> Object:
    parameter: Object = {"name": name, "in": place, "schema": {"type": type, "uniqueItems": True}}
    if place == "path":
        parameter["required"] = True
    return parameter


def _reference(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _schema(schema: Mapping[str, Any]) -> Object:
    rendered = map_schema(schema, _schema)
    for key in list(rendered):
        # Extensions of Sandpool about how Go decodes a field.
        if key.startswith("x-") and not key.startswith("x-kubernetes-"):
            del rendered[key]
    alternatives = _NUMERIC_OR_TEXT.get(rendered.get("format", ""))
    if rendered.get("x-kubernetes-int-or-string") and "anyOf" not in rendered:
        if alternatives:
            del rendered["x-kubernetes-int-or-string"]
            if rendered["format"] == "quantity":
                del rendered["format"]
            rendered["oneOf"] = [{"type": type} for type in alternatives]
        else:
            rendered["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "$ref" in rendered:
        reference = _reference(rendered.pop("$ref"))
        # OpenAPI 3.0 ignores keywords next to a reference, so they go around it.
        return {**rendered, "allOf": [reference]} if rendered else reference
    return rendered
