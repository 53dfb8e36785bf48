"""HTTPRoutes: which requests to a Gateway are admitted, and the status of each route.

The only backend that a route can have is the router, by the name of its Service. Routes match by host name and path. A
route that uses any other feature is not applied in part: it is not accepted, and its status names the feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.router.destination import RequestRejected
from sandpool.router.gateway_api import GATEWAY, GROUP
from sandpool.router.paths import comparable
from sandpool.router.registration import NAMESPACES, PORT, SERVICE_NAME


class Listener(NamedTuple):
    """A listener of a Gateway. It serves requests for ``hostname``, empty: all; routes of other namespaces may attach
    to it if ``all_namespaces``."""

    name: str
    port: int
    hostname: str = ""
    all_namespaces: bool = False


class PathMatch(NamedTuple):
    text: str
    exact: bool = False

    def matches(self, path: str) -> bool:
        """A prefix matches whole segments: /a matches /a/b and not /ab. The path is a ``comparable`` one."""
        if self.exact:
            return path == self.text
        prefix = self.text.rstrip("/")
        return path == prefix or path.startswith(f"{prefix}/")


class ParentVerdict(NamedTuple):
    """Status of a route towards one parent. ``accepted`` and ``resolved`` are the reasons why the conditions Accepted
    and ResolvedRefs are False, empty if they are True."""

    accepted: str
    resolved: str
    message: str
    listeners: tuple[Listener, ...] = ()

    @property
    def is_effective(self) -> bool:
        return not self.accepted and not self.resolved


@dataclass(frozen=True, slots=True)
class Route:
    namespace: str
    name: str
    generation: int
    parents: tuple[Mapping[str, Any], ...]
    hostnames: tuple[str, ...]
    paths: tuple[PathMatch, ...]
    unsupported: str  # the first unsupported feature, empty if there is none
    unknown_backend: str
    status: Mapping[str, Any]

    @classmethod
    def from_object(cls, route: Object) -> Route:
        spec, metadata = route["spec"], route["metadata"]
        rules = spec.get("rules") or [{}]
        matches = [match for rule in rules for match in rule.get("matches") or [{}]]
        backends = [backend for rule in rules for backend in rule.get("backendRefs") or [{}]]
        unknown = next((backend for backend in backends if not _is_router(backend, metadata["namespace"])), None)
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("generation") or 0,
            () if metadata.get("deletionTimestamp") else tuple(spec.get("parentRefs") or ()),
            tuple(str(name).lower() for name in spec.get("hostnames") or ()),
            tuple(_path(match) for match in matches),
            next(iter(_unsupported(rules, matches)), ""),
            "" if unknown is None else str(unknown.get("name") or "nothing"),
            route.get("status") or {},
        )

    @classmethod
    def of_paths(cls, hostnames: Iterable[str], paths: Iterable[Iterable[Any]]) -> Route:
        """Return a route that only admits requests: it has no name, parents or status."""
        return cls("", "", 0, (), tuple(hostnames), tuple(PathMatch(*path) for path in paths), "", "", {})

    def judge(self, reference: Mapping[str, Any], listeners: Iterable[Listener]) -> ParentVerdict:
        """Return the status towards a Gateway with these listeners."""
        section, port = reference.get("sectionName"), reference.get("port")
        namespace = self._gateway_namespace(reference)
        named = [each for each in listeners if section in (None, each.name) and port in (None, each.port)]
        allowed = [each for each in named if each.all_namespaces or namespace == self.namespace]
        shared = tuple(each for each in allowed if self._shares_hostname(each))
        not_router = f"{self.unknown_backend} is not the router; the only backend is Service {SERVICE_NAME}:{PORT}"
        resolved, message = ("BackendNotFound", not_router) if self.unknown_backend else ("", "")
        if self.unsupported:
            return ParentVerdict("UnsupportedValue", resolved, f"{self.unsupported} is not supported")
        if not named:
            return ParentVerdict("NoMatchingParent", resolved, "the gateway has no such listener")
        if not allowed:
            text = "the listener accepts routes of its own namespace only"
            return ParentVerdict("NotAllowedByListeners", resolved, text)
        if not shared:
            return ParentVerdict("NoMatchingListenerHostname", resolved, "the listener is for other host names")
        return ParentVerdict("", resolved, message, shared)

    def admits(self, host: str, path: str) -> bool:
        return any(each.matches(path) for each in self.paths) and (
            not self.hostnames or any(_matches_hostname(host, name) for name in self.hostnames)
        )

    def _gateway_namespace(self, reference: Mapping[str, Any]) -> str:
        return str(reference.get("namespace") or self.namespace)

    def _shares_hostname(self, listener: Listener) -> bool:
        own, names = listener.hostname, self.hostnames
        if not own or not names:
            return True
        return any(_matches_hostname(name, own) or _matches_hostname(own, name) for name in names)


def is_gateway(reference: Mapping[str, Any]) -> bool:
    """Whether a parent reference is to a Gateway and not to an object of another kind."""
    return (reference.get("group") or GROUP, reference.get("kind") or GATEWAY.kind) == (GROUP, GATEWAY.kind)


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """Routes that are attached to one port, with their listeners. If no route names the port (None), all are
    admitted."""

    routes: tuple[tuple[Listener, Route], ...] | None = None

    def admits(self, host: str, path: str) -> bool:
        if self.routes is None:
            return True
        host = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.lower()
        return any(
            (not listener.hostname or _matches_hostname(host, listener.hostname)) and route.admits(host, path)
            for listener, route in self.routes
        )

    def to_json(self) -> Any:
        """Return what ``from_json`` makes equivalent routes of: names and paths, and no status."""
        if self.routes is None:
            return None
        return [[listener.hostname, route.hostnames, route.paths] for listener, route in self.routes]

    @classmethod
    def from_json(cls, given: Any) -> PortRoutes:
        if given is None:
            return cls(None)
        return cls(tuple((Listener("", 0, name), Route.of_paths(hosts, paths)) for name, hosts, paths in given))


def _matches_hostname(host: str, name: str) -> bool:
    """``*.example.com`` matches every name below it and not example.com itself."""
    return host.endswith(name[1:]) and len(host) > len(name) - 1 if name.startswith("*.") else host == name


_PATH_TYPES: Final = {"PathPrefix": False, "Exact": True}


#: Not valid in the path of a route, besides dot segments (Gateway API, HTTPPathMatch).
_INVALID_PATH: Final = re.compile(r"^(?!/)|//|%2f|%5c|\\", re.IGNORECASE)


def _path(match: Mapping[str, Any]) -> PathMatch:
    path = match.get("path") or {}
    return PathMatch(_text(path) or _value(path), _PATH_TYPES.get(path.get("type") or "PathPrefix", True))


def _text(path: Mapping[str, Any]) -> str | None:
    """Return the path that requests are compared with, None if no request can match it."""
    value = _value(path)
    try:
        return None if _INVALID_PATH.search(value) else comparable(value)
    except RequestRejected:
        return None


def _value(path: Mapping[str, Any]) -> str:
    return str(path.get("value") or "/")


def _unsupported(rules: Iterable[Mapping[str, Any]], matches: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for rule in rules:
        if rule.get("filters"):
            yield "a filter"
    for match in matches:
        for field in ("headers", "queryParams", "method"):
            if match.get(field):
                yield f"a match of {field}"
        if (kind := (match.get("path") or {}).get("type") or "PathPrefix") not in _PATH_TYPES:
            yield f"a path of type {kind}"
        elif _text(match.get("path") or {}) is None:
            yield f"the path {match['path']['value']}"


def _is_router(backend: Mapping[str, Any], namespace: str) -> bool:
    return (
        not backend.get("group")
        and (backend.get("kind") or "Service") == "Service"
        and backend.get("name") == SERVICE_NAME
        and (backend.get("namespace") or namespace) in NAMESPACES
        and backend.get("port") in (None, PORT)
        and not backend.get("filters")
    )
