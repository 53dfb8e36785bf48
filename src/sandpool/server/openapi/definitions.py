"""The schema definitions of OpenAPI documents, before their references are written in OpenAPI's form.

Here a reference is the plain name of another definition. Built-in kinds come from the data of ``api.schema.core``,
which has references and no descriptions. Custom kinds come from the schema of their CRD, with its descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sandpool.api.resource import Object
from sandpool.api.schema import core
from sandpool.api.schema.shape import to_openapi
from sandpool.server.resources import Resource

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
OBJECT_META = _META + "ObjectMeta"
DELETE_OPTIONS = _META + "DeleteOptions"
PATCH = _META + "Patch"
STATUS = _META + "Status"
_LIST_META = _META + "ListMeta"

_GVK = "x-kubernetes-group-version-kind"


def definition_name(resource: Resource) -> str:
    if not resource.custom:
        return core.definition_of(resource.type)
    return _custom_name(resource, resource.type.kind)


def list_definition_name(resource: Resource) -> str:
    if not resource.custom:
        return core.definition_of(resource.type).removesuffix(resource.type.kind) + resource.type.list_kind
    return _custom_name(resource, resource.type.list_kind)


def definition_of_kind(group: str, version: str, kind: str) -> str | None:
    """The definition of a built-in kind; None for kinds that are not objects, such as the options of exec."""
    return _names_by_kind().get((group, version, kind))


def reachable(resources: Iterable[Resource], names: Iterable[str]) -> dict[str, Object]:
    """The definitions of the resources and of ``names``, and all that they reference."""
    known: Mapping[str, Mapping[str, Any]] = core.schemas()
    found: dict[str, Object] = {}
    pending = list(names)
    for resource in resources:
        if resource.custom:
            custom = _custom_definitions(resource)
            found |= custom
            pending += [name for schema in custom.values() for name in _references(schema)]
        else:
            pending += [definition_name(resource), list_definition_name(resource)]
    while pending:
        name = pending.pop()
        if name not in found and name in known:
            found[name] = dict(known[name])
            pending += _references(known[name])
    return dict(sorted(found.items()))


def map_schema(schema: Mapping[str, Any], change: Any) -> Object:
    """Return the schema with ``change`` applied to each schema directly inside it."""
    changed: Object = dict(schema)
    if "properties" in schema:
        changed["properties"] = {name: change(inner) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(key), Mapping):
            changed[key] = change(schema[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            changed[key] = [change(inner) for inner in schema[key]]
    return changed


def _references(schema: Mapping[str, Any]) -> list[str]:
    found = [schema["$ref"]] if "$ref" in schema else []

    def collect(inner: Mapping[str, Any]) -> Mapping[str, Any]:
        found.extend(_references(inner))
        return inner

    map_schema(schema, collect)
    return found


def _custom_name(resource: Resource, kind: str) -> str:
    """``com.example.v1.Widget`` for example.com/v1 Widget."""
    reversed_group = ".".join(reversed(resource.type.group.split(".")))
    return f"{reversed_group}.{resource.type.version}.{kind}"


def _custom_definitions(resource: Resource) -> dict[str, Object]:
    type = resource.type
    schema = to_openapi(resource.shape)
    head: Object = {
        "apiVersion": {"type": "string", "description": "Group and version of the API the object is written in."},
        "kind": {"type": "string", "description": "Kind of the object."},
    }
    metadata = {"$ref": OBJECT_META, "description": "Name, namespace, labels and whatever else every object has."}
    schema["properties"] = {**schema.get("properties", {}), **head, "metadata": metadata}
    schema[_GVK] = [{"group": type.group, "kind": type.kind, "version": type.version}]
    listing: Object = {
        "type": "object",
        "required": ["items"],
        "properties": {
            **head,
            "metadata": {"$ref": _LIST_META},
            "items": {"type": "array", "items": {"$ref": definition_name(resource)}},
        },
        _GVK: [{"group": type.group, "kind": type.list_kind, "version": type.version}],
    }
    return {definition_name(resource): schema, list_definition_name(resource): listing}


@cache
def _names_by_kind() -> dict[tuple[str, str, str], str]:
    return {
        (kind["group"], kind["version"], kind["kind"]): name
        for name, schema in core.schemas().items()
        for kind in schema.get(_GVK, ())
    }
