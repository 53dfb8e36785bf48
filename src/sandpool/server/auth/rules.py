"""Policy rules of RBAC roles: what a rule allows, and whether some rules cover another.

Every answer is a few set lookups per rule. A rule stands for the product of its verbs, groups, resources and names, so
a role of a few kilobytes can stand for billions of permissions. Nothing here enumerates that product without a bound:
the work runs on the event loop, and any namespace admin may write a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandpool.server.request.request_info import RequestInfo

ALL: Final = "*"
#: Comparisons of one permission with one held rule that ``missing`` makes before it gives up; about 20 ms.
MOST_COMPARISONS: Final = 50_000
#: Missing permissions that ``missing`` reports before it stops looking for more.
MOST_REPORTED: Final = 500


class TooManyPermissions(Exception):
    """The granted rules multiply to more permissions than can be compared with the held ones."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule. Either resources or URLs are set; an empty ``names`` means any name."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    _verbs: frozenset[str] = field(init=False, repr=False, compare=False)
    _groups: frozenset[str] = field(init=False, repr=False, compare=False)
    _resources: frozenset[str] = field(init=False, repr=False, compare=False)
    _names: frozenset[str] = field(init=False, repr=False, compare=False)
    _urls: frozenset[str] = field(init=False, repr=False, compare=False)
    _url_prefixes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("verbs", "groups", "resources", "names", "urls"):
            object.__setattr__(self, f"_{name}", frozenset(getattr(self, name)))
        prefixes = tuple(url.rstrip(ALL) for url in self.urls if url.endswith(ALL))
        object.__setattr__(self, "_url_prefixes", prefixes)

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> Rule:
        def distinct(values: Iterable[str] | None) -> tuple[str, ...]:
            return tuple(dict.fromkeys(values or ()))

        return cls(
            distinct(rule.get("verbs")),
            distinct(rule.get("apiGroups")),
            distinct(rule.get("resources")),
            distinct(rule.get("resourceNames")),
            distinct(rule.get("nonResourceURLs")),
        )

    def allows_some_name(self, info: RequestInfo) -> bool:
        """Whether the rule allows this request, leaving aside which names the rule is limited to."""
        if info.verb not in self._verbs and ALL not in self._verbs:
            return False
        if not info.is_resource:
            return self._has_url(info.path)
        if info.group not in self._groups and ALL not in self._groups:
            return False
        return self._has_resource(info.resource, info.subresource)

    def includes(self, other: Rule) -> bool:
        """Whether this rule alone allows everything that ``other`` allows. Costs the size of ``other``."""
        if ALL not in self._verbs and not self._verbs >= other._verbs:
            return False
        if other.urls:
            return all(self._has_url(url) for url in other.urls)
        if ALL not in self._groups and not self._groups >= other._groups:
            return False
        if self.names and not (other.names and self._names >= other._names):
            return False
        return self._resources >= other._resources or all(
            self._has_resource(*_split(resource)) for resource in other.resources
        )

    def verbs_on(self, group: str, resource: str, name: str) -> frozenset[str]:
        """The verbs that the rule allows on one resource. ``name`` is empty for any name."""
        if group not in self._groups and ALL not in self._groups:
            return frozenset()
        if self.names and name not in self._names:
            return frozenset()
        return self._verbs if self._has_resource(*_split(resource)) else frozenset()

    def verbs_on_url(self, url: str) -> frozenset[str]:
        return self._verbs if self._has_url(url) else frozenset()

    def _has_resource(self, resource: str, subresource: str) -> bool:
        patterns = self._resources
        if ALL in patterns:
            return True
        if not subresource:
            return resource in patterns
        return f"{resource}/{subresource}" in patterns or f"*/{subresource}" in patterns

    def _has_url(self, path: str) -> bool:
        return path in self._urls or path.startswith(self._url_prefixes)

    def __str__(self) -> str:
        """Kubernetes' short form, as its messages about escalation show it."""
        parts = [
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.urls),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        ]
        return "{" + ", ".join(f"{name}:{quoted(values)}" for name, values in parts if values) + "}"


def missing(held: Iterable[Rule], granted: Iterable[Rule]) -> list[Rule]:
    """List what ``granted`` allows and ``held`` does not, with the verbs of one resource put together.

    Stops after ``MOST_REPORTED`` findings. Raises ``TooManyPermissions`` after ``MOST_COMPARISONS``.
    """
    held = list(held)
    left = MOST_COMPARISONS
    verbs: dict[Rule, dict[str, None]] = {}
    for rule in granted:
        left -= len(held)
        if any(own.includes(rule) for own in held):
            continue
        for permission, lacking in _lacking(held, rule):
            left -= len(held) + 1
            if left < 0:
                raise TooManyPermissions
            if lacking:
                verbs.setdefault(permission, {}).update(dict.fromkeys(lacking))
                if len(verbs) >= MOST_REPORTED:
                    return _with_verbs(verbs)
    return _with_verbs(verbs)


def _lacking(held: list[Rule], rule: Rule) -> Iterator[tuple[Rule, list[str]]]:
    """Yield each single resource, or URL and verb, of a rule with the verbs that no held rule allows on it."""
    for group in rule.groups:
        for resource in rule.resources:
            for name in rule.names or ("",):
                allowed = frozenset[str]().union(*(own.verbs_on(group, resource, name) for own in held))
                lacking = [] if ALL in allowed else [verb for verb in rule.verbs if verb not in allowed]
                yield Rule((), (group,), (resource,), (name,) if name else ()), lacking
    for url in rule.urls:
        allowed = frozenset[str]().union(*(own.verbs_on_url(url) for own in held))
        for verb in rule.verbs:
            # Kubernetes reports every verb of a URL apart.
            yield Rule((verb,), urls=(url,)), [] if verb in allowed or ALL in allowed else [verb]


def _with_verbs(verbs: Mapping[Rule, Iterable[str]]) -> list[Rule]:
    return [Rule(tuple(words), key.groups, key.resources, key.names, key.urls) for key, words in verbs.items()]


def quoted(values: Iterable[str]) -> str:
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource
