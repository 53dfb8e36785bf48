"""The operations on a resource, path by path.

kubectl reads this part of an OpenAPI document to learn which parameters and patch formats a server supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandpool.api.kinds import subresource
from sandpool.kube.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH
from sandpool.server.openapi.definitions import (
    DELETE_OPTIONS,
    PATCH,
    STATUS,
    definition_name,
    definition_of_kind,
    list_definition_name,
)
from sandpool.server.resources import Resource

Parameter = tuple[str, str]  # name, type

_WRITE: tuple[Parameter, ...] = (("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"))
_APPLY: tuple[Parameter, ...] = (*_WRITE, ("force", "boolean"))
_DELETE: tuple[Parameter, ...] = (
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
)
_SELECT: tuple[Parameter, ...] = (
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("timeoutSeconds", "integer"),
)
_LIST: tuple[Parameter, ...] = (
    *_SELECT,
    ("allowWatchBookmarks", "boolean"),
    ("sendInitialEvents", "boolean"),
    ("watch", "boolean"),
)
_STREAMS: tuple[Parameter, ...] = (
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
)
_LOG: tuple[Parameter, ...] = (
    ("container", "string"),
    ("follow", "boolean"),
    ("limitBytes", "integer"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
)
# Query parameters of the subresources that are connections or plain text.
_CONNECTIONS: dict[str, tuple[Parameter, ...]] = {
    "attach": _STREAMS,
    "exec": (("command", "string"), *_STREAMS),
    "log": _LOG,
    "portforward": (("ports", "integer"),),
    "proxy": (("path", "string"),),
}
_METHODS = {"get": "get", "update": "put", "patch": "patch", "create": "post", "delete": "delete"}
_WORDS = {"get": "read", "put": "replace", "patch": "patch", "post": "create", "delete": "delete"}


@dataclass(frozen=True, slots=True)
class Operation:
    path: str
    method: str
    action: str  # x-kubernetes-action
    id: str
    kind: tuple[str, str, str]  # group, version, kind the operation exchanges
    parameters: tuple[Parameter, ...] = ()
    body: str = ""  # definition
    body_required: bool = True
    body_types: tuple[str, ...] = ("*/*",)
    answer: str = ""  # definition; empty for text and connections
    codes: tuple[int, ...] = (200,)


def operations(resource: Resource) -> Iterator[Operation]:
    """All operations on a resource and its subresources."""
    type = resource.type
    kind = (type.group, type.version, type.kind)
    name, list_name = definition_name(resource), list_definition_name(resource)
    collection = type.base_path + ("/namespaces/{namespace}" if type.namespaced else "") + f"/{type.plural}"
    item = collection + "/{name}"
    ids = _Identifiers(resource)

    if "list" in type.verbs:
        yield Operation(collection, "get", "list", ids.of("list"), kind, _LIST, answer=list_name)
        if type.namespaced:
            everywhere = f"{type.base_path}/{type.plural}"
            yield Operation(everywhere, "get", "list", ids.of_all("list"), kind, _LIST, answer=list_name)
    if "create" in type.verbs:
        codes = (200, 201, 202)
        yield Operation(collection, "post", "post", ids.of("create"), kind, _WRITE, name, answer=name, codes=codes)
    if "deletecollection" in type.verbs:
        parameters = (*_DELETE, *_SELECT)
        identifier = ids.of("delete", what="Collection")
        yield Operation(
            collection, "delete", "deletecollection", identifier, kind, parameters, DELETE_OPTIONS, False, answer=STATUS
        )
    for verb in type.verbs:
        if verb not in ("create", "list", "watch", "deletecollection"):
            yield _of_one(resource, verb, item, ids.of(_WORDS[_METHODS[verb]]), kind, name)
    for sub in sorted(type.subresources):
        yield from _of_subresource(resource, sub, f"{item}/{sub}", ids)


def _of_one(
    resource: Resource, verb: str, path: str, identifier: str, kind: tuple[str, str, str], name: str
) -> Operation:
    """Get, update, patch or delete of one object with the definition ``name``."""
    method = _METHODS[verb]
    match verb:
        case "patch":
            types: tuple[str, ...] = (APPLY_PATCH, JSON_PATCH, MERGE_PATCH)
            if not resource.custom:
                types = (*types, STRATEGIC_MERGE_PATCH)
            return Operation(
                path, method, method, identifier, kind, _APPLY, PATCH, body_types=types, answer=name, codes=(200, 201)
            )
        case "update":
            return Operation(path, method, method, identifier, kind, _WRITE, name, answer=name, codes=(200, 201))
        case "delete":
            codes = (200, 202)
            return Operation(
                path, method, method, identifier, kind, _DELETE, DELETE_OPTIONS, False, answer=STATUS, codes=codes
            )
    return Operation(path, method, method, identifier, kind, answer=name)


def _of_subresource(resource: Resource, sub: str, path: str, ids: _Identifiers) -> Iterator[Operation]:
    type = resource.type
    described = subresource(type, sub)
    kind = (
        (described.group, described.version, described.kind)
        if described.kind
        else (type.group, type.version, type.kind)
    )
    if sub in _CONNECTIONS:
        for verb in described.verbs:
            method = _METHODS[verb]
            action = "get" if sub == "log" else "connect"
            identifier = ids.of("read", sub) if sub == "log" else ids.of("connect", sub, method.capitalize())
            yield Operation(path, method, action, identifier, kind, _CONNECTIONS[sub])
        return
    name = definition_of_kind(*kind) if described.kind else definition_name(resource)
    for verb in described.verbs:
        identifier = ids.of(_WORDS[_METHODS[verb]], sub)
        if verb == "create":
            yield Operation(
                path, "post", "post", identifier, kind, _WRITE, name or "", answer=name or "", codes=(200, 201, 202)
            )
        else:
            yield _of_one(resource, verb, path, identifier, kind, name or "")


class _Identifiers:
    """Operation ids such as readAppsV1NamespacedDeploymentScale, from which client generators make function names."""

    def __init__(self, resource: Resource) -> None:
        type = resource.type
        group = (type.group or "core").removesuffix(".k8s.io")
        parts = [part[:1].upper() + part[1:] for part in (*group.split("."), type.version)]
        self._version = "".join(parts)
        self._kind = type.kind
        self._scope = "Namespaced" if type.namespaced else ""

    def of(self, verb: str, sub: str = "", what: str = "") -> str:
        return f"{verb}{self._version}{what}{self._scope}{self._kind}{sub.capitalize()}"

    def of_all(self, verb: str) -> str:
        return f"{verb}{self._version}{self._kind}ForAllNamespaces"
