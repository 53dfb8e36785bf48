"""Policy rules of RBAC roles: what one allows, and whether some rules contain another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandpool.server.request.request_info import RequestInfo

ALL = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule. Either resources or URLs are set; no names means any name."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> Rule:
        return cls(
            tuple(rule.get("verbs") or ()),
            tuple(rule.get("apiGroups") or ()),
            tuple(rule.get("resources") or ()),
            tuple(rule.get("resourceNames") or ()),
            tuple(rule.get("nonResourceURLs") or ()),
        )

    def allows_some_name(self, info: RequestInfo) -> bool:
        """Whether the rule allows this, leaving aside which names it is limited to."""
        if ALL not in self.verbs and info.verb not in self.verbs:
            return False
        if not info.is_resource:
            return any(_url_matches(url, info.path) for url in self.urls)
        if ALL not in self.groups and info.group not in self.groups:
            return False
        return any(_resource_matches(resource, info.resource, info.subresource) for resource in self.resources)

    def covers(self, atom: Rule) -> bool:
        """Whether this rule alone allows everything ``atom``, a rule with one value in each place, allows."""
        if ALL not in self.verbs and atom.verbs[0] not in self.verbs:
            return False
        if atom.urls:
            return any(_url_matches(url, atom.urls[0]) for url in self.urls)
        if ALL not in self.groups and atom.groups[0] not in self.groups:
            return False
        if self.names and (not atom.names or atom.names[0] not in self.names):
            return False
        plural, _, subresource = atom.resources[0].partition("/")
        return any(_resource_matches(resource, plural, subresource) for resource in self.resources)

    def atoms(self) -> Iterator[Rule]:
        """The rule as rules with a single verb, group, resource, name or URL each."""
        for group in self.groups:
            for resource in self.resources:
                for verb in self.verbs:
                    for name in self.names or ("",):
                        yield Rule((verb,), (group,), (resource,), (name,) if name else ())
        for url in self.urls:
            for verb in self.verbs:
                yield Rule((verb,), urls=(url,))

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
    """What ``granted`` allows and ``held`` does not, with the verbs of one thing put together."""
    held = list(held)
    verbs: dict[Rule, list[str]] = {}
    for rule in granted:
        for atom in rule.atoms():
            if not any(own.covers(atom) for own in held):
                # Kubernetes leaves URL rules apart; only resource rules are put together.
                key = atom if atom.urls else Rule((), atom.groups, atom.resources, atom.names)
                found = verbs.setdefault(key, [])
                if atom.verbs[0] not in found:
                    found.append(atom.verbs[0])
    return [Rule(tuple(words), key.groups, key.resources, key.names, key.urls) for key, words in verbs.items()]


def quoted(values: Iterable[str]) -> str:
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _resource_matches(pattern: str, resource: str, subresource: str) -> bool:
    if pattern == ALL:
        return True
    if not subresource:
        return pattern == resource
    return pattern in (f"{resource}/{subresource}", f"*/{subresource}")


def _url_matches(pattern: str, path: str) -> bool:
    if pattern in (ALL, path):
        return True
    return pattern.endswith(ALL) and path.startswith(pattern.rstrip(ALL))
