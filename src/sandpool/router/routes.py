"""HTTPRoutes: which requests to a Gateway lead to the router, and what a route is told about itself.

The one thing a route can lead to is the router, by the name of its Service. What a route asks for beyond the name of a
host and a path is not understood, and a route that is not understood is not followed in part: it says so and leads
nowhere.
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
    """``hostname`` restricts whom it is for, ``all_namespaces`` is whether routes of other namespaces may use it."""

    name: str
    port: int
    hostname: str = ""
    all_namespaces: bool = False


class Path(NamedTuple):
    text: str
    exact: bool = False

    def leads_to(self, path: str) -> bool:
        """A prefix is one of whole names: /a leads to /a/b and not to /ab. The path is a ``comparable`` one."""
        if self.exact:
            return path == self.text
        prefix = self.text.rstrip("/")
        return path == prefix or path.startswith(f"{prefix}/")


class ParentVerdict(NamedTuple):
    """On one of a route's references: whether it is accepted and why not, and whether what it leads to is there."""

    accepted: str  # the reason of the condition; empty: it is
    resolved: str
    message: str
    listeners: tuple[Listener, ...] = ()

    @property
    def leads(self) -> bool:
        return not self.accepted and not self.resolved


@dataclass(frozen=True, slots=True)
class Route:
    namespace: str
    name: str
    generation: int
    parents: tuple[Mapping[str, Any], ...]
    hostnames: tuple[str, ...]
    paths: tuple[Path, ...]
    not_understood: str
    strange_backend: str
    status: Mapping[str, Any]

    @classmethod
    def from_object(cls, route: Object) -> Route:
        spec, metadata = route["spec"], route["metadata"]
        rules = spec.get("rules") or [{}]
        matches = [match for rule in rules for match in rule.get("matches") or [{}]]
        backends = [backend for rule in rules for backend in rule.get("backendRefs") or [{}]]
        strange = next((backend for backend in backends if not _is_router(backend, metadata["namespace"])), None)
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata.get("generation") or 0,
            () if metadata.get("deletionTimestamp") else tuple(spec.get("parentRefs") or ()),
            tuple(str(name).lower() for name in spec.get("hostnames") or ()),
            tuple(_path(match) for match in matches),
            next(iter(_beyond(rules, matches)), ""),
            "" if strange is None else str(strange.get("name") or "nothing"),
            route.get("status") or {},
        )

    def judge(self, reference: Mapping[str, Any], listeners: Iterable[Listener]) -> ParentVerdict:
        """What is to be said of a reference to a Gateway that has these listeners."""
        section, port = reference.get("sectionName"), reference.get("port")
        namespace = self._gateway_namespace(reference)
        meant = [each for each in listeners if section in (None, each.name) and port in (None, each.port)]
        allowed = [each for each in meant if each.all_namespaces or namespace == self.namespace]
        shared = tuple(each for each in allowed if self._shares_a_name(each))
        strange = f"{self.strange_backend} is not the router; a route here leads to Service {SERVICE_NAME}:{PORT} only"
        resolved, message = ("BackendNotFound", strange) if self.strange_backend else ("", "")
        if self.not_understood:
            return ParentVerdict("UnsupportedValue", resolved, f"{self.not_understood} is not understood here")
        if not meant:
            return ParentVerdict("NoMatchingParent", resolved, "the gateway has no such listener")
        if not allowed:
            return ParentVerdict(
                "NotAllowedByListeners", resolved, "the listener takes routes of its own namespace only"
            )
        if not shared:
            return ParentVerdict("NoMatchingListenerHostname", resolved, "the listener is for other host names")
        return ParentVerdict("", resolved, message, shared)

    def admits(self, host: str, path: str) -> bool:
        return any(each.leads_to(path) for each in self.paths) and (
            not self.hostnames or any(_is_named(host, name) for name in self.hostnames)
        )

    def _gateway_namespace(self, reference: Mapping[str, Any]) -> str:
        return str(reference.get("namespace") or self.namespace)

    def _shares_a_name(self, listener: Listener) -> bool:
        wide = listener.hostname
        names = self.hostnames
        return not wide or not names or any(_is_named(name, wide) or _is_named(wide, name) for name in names)


def is_ours(reference: Mapping[str, Any]) -> bool:
    """Whether a route refers to a Gateway, and not to something else."""
    return (reference.get("group") or GROUP, reference.get("kind") or GATEWAY.kind) == (GROUP, GATEWAY.kind)


@dataclass(frozen=True, slots=True)
class PortRoutes:
    """What is let in at one port: by which listeners, and by which routes; ``None`` if no route asks for this port."""

    ways: tuple[tuple[Listener, Route], ...] | None = None

    def admits(self, host: str, path: str) -> bool:
        if self.ways is None:
            return True
        host = host.lower().rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host.lower()
        return any(
            (not listener.hostname or _is_named(host, listener.hostname)) and route.admits(host, path)
            for listener, route in self.ways
        )


def _is_named(host: str, name: str) -> bool:
    """``*.example.com`` is every name below, and not that one itself."""
    return host.endswith(name[1:]) and len(host) > len(name) - 1 if name.startswith("*.") else host == name


_UNDERSTOOD: Final = {"PathPrefix": False, "Exact": True}


#: What the Gateway API has no place for in the path of a route, besides dots.
_OUT_OF_PLACE: Final = re.compile(r"^(?!/)|//|%2f|%5c|\\", re.IGNORECASE)


def _path(match: Mapping[str, Any]) -> Path:
    path = match.get("path") or {}
    return Path(_text(path) or _value(path), _UNDERSTOOD.get(path.get("type") or "PathPrefix", True))


def _text(path: Mapping[str, Any]) -> str | None:
    """What paths of requests are compared with, None if no request can ask for it."""
    value = _value(path)
    try:
        return None if _OUT_OF_PLACE.search(value) else comparable(value)
    except RequestRejected:
        return None


def _value(path: Mapping[str, Any]) -> str:
    return str(path.get("value") or "/")


def _beyond(rules: Iterable[Mapping[str, Any]], matches: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for rule in rules:
        if rule.get("filters"):
            yield "a filter"
    for match in matches:
        for what in ("headers", "queryParams", "method"):
            if match.get(what):
                yield f"a match of {what}"
        if (kind := (match.get("path") or {}).get("type") or "PathPrefix") not in _UNDERSTOOD:
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
