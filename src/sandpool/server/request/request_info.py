"""Request attributes: verb, resource and name, parsed from method, path and query. Authorization decides on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from sandpool.kube.errors import BadRequest
from sandpool.kube.selectors import FieldSelector
from sandpool.kube.transport import Target
from sandpool.server.names import path_segment

_COLLECTION_VERBS = {"POST": "create", "GET": "list", "HEAD": "list", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
# After the name of a namespace these are its subresources; anything else is a resource in the namespace.
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


@dataclass(frozen=True, slots=True)
class RequestInfo:
    path: str
    verb: str  # get, list, watch, create, update, patch, delete, deletecollection; the method for other paths
    is_resource: bool = False
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""  # of the object; for list and watch the one that a field selector asks for
    rest: tuple[str, ...] = ()  # path segments after the subresource, for proxies


_VERBS = {"POST": "create", "PATCH": "patch"}
_AMBIGUOUS = frozenset({"namespaces", "watch"})


def of_target(method: str, path: str, target: Target | None) -> RequestInfo | None:
    """``parse`` for a create or patch whose target is known; None if it is not, or is that of another path, or if these
    words mean something else in a path."""
    if target is None or target.path != path or method not in _VERBS or target.type.plural in _AMBIGUOUS:
        return None
    type = target.type
    return RequestInfo(
        path,
        _VERBS[method],
        True,
        type.group,
        type.version,
        type.plural,
        target.subresource,
        target.namespace if type.namespaced else "",
        target.name,
    )


def truthy(text: str | None) -> bool:
    """Parse a boolean query parameter like Kubernetes: present, even without a value, and neither 0 nor false."""
    return text is not None and text != "0" and text.lower() != "false"


def _selected_name(query: Mapping[str, str]) -> str:
    """The only name that a list or watch asks for, so that a user with permission for that object may do it.

    As in Kubernetes, this is not for ``deletecollection``, nor for the deprecated form of a watch."""
    text = query.get("fieldSelector")
    if not text:
        return ""
    try:
        name = FieldSelector.parse(text).requires_exact("metadata.name") or ""
    except BadRequest:  # which the verb tells the user, if it may be used
        return ""
    return "" if path_segment(name) else name


def parse(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    segments = path.strip("/").split("/")
    if "%" in path:
        segments = [unquote(segment) for segment in segments]
    verb = method.lower()
    match segments:
        case ["api", version, first, *rest]:
            group = ""
        case ["apis", group, version, first, *rest]:
            pass
        case _:
            return RequestInfo(path, verb)
    watching = False
    if first == "watch" and rest:  # the deprecated form of ?watch=true
        watching = True
        first, *rest = rest
    namespace = ""
    if first == "namespaces" and rest:
        namespace = rest[0]
        if len(rest) > 1 and rest[1] not in _NAMESPACE_SUBRESOURCES:
            first, rest = rest[1], rest[2:]
    name = rest[0] if rest else ""
    subresource = rest[1] if len(rest) > 1 else ""
    verbs = _OBJECT_VERBS if name else _COLLECTION_VERBS
    verb = verbs.get(method, verb)
    if verb == "list" and not watching:
        name = _selected_name(query)
    if verb in ("list", "get") and (watching or (verb == "list" and truthy(query.get("watch")))):
        verb = "watch"
    return RequestInfo(path, verb, True, group, version, first, subresource, namespace, name, tuple(rest[2:]))
