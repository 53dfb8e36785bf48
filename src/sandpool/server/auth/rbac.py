"""RBAC authorization.

Decisions are cached by (user, groups, verb, resource, namespace), without the name of the object, so that a thousand
pods share one entry. Names matter only to rules with ``resourceNames``, which the entry holds. A change of a cluster
role or its binding clears the cache, a change in a namespace only invalidates what was decided in it: a tenant who
writes roles does not slow others down. Grants are collected per namespace on demand, so that creating one binding in
each of many namespaces does not cost their number squared.

Rules of a role are parsed when a user who is bound to it sends a request, and indexed by resource for that user.
A decision looks at the rules for its resource only. Of a user who is bound to more than ``MOST_RULES`` rules the rest
is ignored, which denies.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from sandpool.api.resource import Object
from sandpool.kube.errors import Forbidden
from sandpool.kube.selectors import LabelSelector
from sandpool.server.auth.groups import MASTERS
from sandpool.server.auth.rules import ALL, Rule
from sandpool.server.auth.service_accounts import USER_PREFIX
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

_CACHED = 65536
_CACHED_USERS = 1024
#: Rules of one user in one namespace that count. Parsing so many takes some hundredths of a second.
MOST_RULES = 2_000


class RuleSource(Protocol):
    """The current RBAC objects."""

    @property
    def version(self) -> int:
        """Increases with every change of a role or binding."""
        ...

    def take_changed(self) -> set[str]:
        """The namespaces of roles and bindings that have changed since the last call; empty for cluster-wide ones."""
        ...

    def cluster_roles(self) -> Iterable[Object]: ...

    def cluster_role_bindings(self) -> Iterable[Object]: ...

    def roles(self, namespace: str) -> Iterable[Object]: ...

    def role_bindings(self, namespace: str) -> Iterable[Object]: ...


class Decision(NamedTuple):
    allowed: bool
    reason: str = ""


_ALLOWED: Final = Decision(True)


class Authorizer(Protocol):
    def authorize(self, user: User, info: RequestInfo) -> Decision: ...

    def require(self, user: User, info: RequestInfo) -> None:
        """Raise ``Forbidden`` unless the user may do this."""
        ...


class _Role:
    """The rules of a role, parsed when they are needed first."""

    __slots__ = ("_rules", "_unparsed", "size", "version")

    def __init__(
        self, unparsed: Sequence[Mapping[str, Any]] = (), version: str = "", rules: tuple[Rule, ...] | None = None
    ) -> None:
        self.version = version
        self._unparsed = unparsed
        self._rules = rules
        self.size = len(unparsed) if rules is None else len(rules)

    @property
    def rules(self) -> tuple[Rule, ...]:
        if self._rules is None:
            self._rules = tuple(map(Rule.of, self._unparsed))
            self._unparsed = ()
        return self._rules


@dataclass(frozen=True, slots=True)
class Grant:
    """A binding as seen by one of its subjects: its role, or why there is none."""

    source: str  # 'RoleBinding "x/ns" of Role "y" to User "z"', for the reason of a decision
    role: _Role
    problem: str = ""


class _Holdings:
    """The rules of one user in one namespace, by the resource they are about. In each list their order is that of the
    bindings, with a number by which lists are merged."""

    __slots__ = ("_anything", "_by_resource", "_urls", "problems")

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._by_resource: dict[str, list[tuple[int, Rule, Grant]]] = {}
        self._anything: list[tuple[int, Rule, Grant]] = []
        self._urls: list[tuple[int, Rule, Grant]] = []
        self.problems: list[str] = []
        problems: dict[str, None] = {}
        number = 0
        for grant in grants:
            if grant.problem:
                problems[grant.problem] = None
            if number + grant.role.size > MOST_RULES:
                problems[f"more than {MOST_RULES} rules are bound to the user; the rest is ignored"] = None
                break
            for rule in grant.role.rules:
                number += 1
                self._add((number, rule, grant))
        self.problems = list(problems)

    def _add(self, held: tuple[int, Rule, Grant]) -> None:
        rule = held[1]
        if rule.urls:
            self._urls.append(held)
        resources = {resource.partition("/")[0] for resource in rule.resources}
        if ALL in resources:
            self._anything.append(held)
        else:
            for resource in resources:
                self._by_resource.setdefault(resource, []).append(held)

    def about(self, info: RequestInfo) -> Iterable[tuple[int, Rule, Grant]]:
        """The rules that may concern a request, in order."""
        if not info.is_resource:
            return self._urls
        found = self._by_resource.get(info.resource, ())
        return heapq.merge(found, self._anything, key=itemgetter(0)) if self._anything else found


# Grants by subject: "u:" and a user name, or "g:" and a group.
_Grants = dict[str, list[Grant]]


class _CachedDecision(NamedTuple):
    """A cached decision: the one for any name, and the names for which more is allowed."""

    decision: Decision
    named: dict[str, str]  # name -> reason
    generation: int = 0  # of the namespace


class RbacAuthorizer:
    def __init__(self, source: RuleSource) -> None:
        self._source = source
        self._version = -1
        self._cluster_roles: dict[str, tuple[Rule, ...]] | None = None
        self._grants: dict[str, _Grants] = {}  # by namespace; "" has the cluster-wide ones
        self._decisions: dict[tuple[object, ...], _CachedDecision] = {}
        self._holdings: dict[tuple[str, tuple[str, ...], str], tuple[int, _Holdings]] = {}
        self._generations: Counter[str] = Counter()  # changes per namespace
        self._parsed: dict[str, dict[str, _Role]] = {}  # by namespace and name

    def authorize(self, user: User, info: RequestInfo) -> Decision:
        if MASTERS in user.groups:
            return _ALLOWED
        self._refresh()
        if info.is_resource:
            key: tuple[object, ...] = (
                user.name,
                user.groups,
                info.verb,
                info.group,
                info.resource,
                info.subresource,
                info.namespace,
            )
        else:
            key = (user.name, user.groups, info.verb, info.path)
        cached = self._decisions.get(key)
        if cached is None or cached.generation != self._generations.get(info.namespace, 0):
            if len(self._decisions) >= _CACHED:
                self._decisions.clear()
            cached = self._decisions[key] = self._decide(user, info)
        if not cached.decision.allowed and info.name in cached.named:
            return Decision(True, cached.named[info.name])
        return cached.decision

    def require(self, user: User, info: RequestInfo) -> None:
        decision = self.authorize(user, info)
        if not decision.allowed:
            raise denied(user, info, decision.reason)

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """All rules of the user in the namespace, for SelfSubjectRulesReview and escalation checks."""
        self._refresh()
        held: list[Rule] = []
        for grant in self._grants_of(user, namespace):
            if len(held) + grant.role.size > MOST_RULES:
                break
            held += grant.role.rules
        return held

    def role_rules(self, role_ref: dict[str, Any], namespace: str) -> tuple[Rule, ...] | None:
        """The rules that a binding with this roleRef would grant in the namespace; None if the role does not exist."""
        self._refresh()
        if role_ref.get("kind") == "ClusterRole":
            return self._all_cluster_roles().get(role_ref.get("name", ""))
        for role in self._source.roles(namespace):
            if role["metadata"]["name"] == role_ref.get("name"):
                return _rules(role)
        return None

    def _refresh(self) -> None:
        if self._source.version != self._version:
            self._version = self._source.version
            changed = self._source.take_changed()
            if "" in changed:
                self._cluster_roles = None
                self._grants.clear()
                self._decisions.clear()
                self._holdings.clear()
                self._generations.clear()
            for namespace in changed - {""}:
                self._grants.pop(namespace, None)
                self._generations[namespace] += 1

    def _decide(self, user: User, info: RequestInfo) -> _CachedDecision:
        named: dict[str, str] = {}
        generation = self._generations.get(info.namespace, 0)
        holdings = self._holdings_of(user, info.namespace if info.is_resource else "")
        for _, rule, grant in holdings.about(info):
            if not rule.allows_some_name(info):
                continue
            reason = f"RBAC: allowed by {grant.source}"
            if not rule.names or not info.is_resource:
                return _CachedDecision(Decision(True, reason), {}, generation)
            for name in rule.names:
                named.setdefault(name, reason)
        return _CachedDecision(Decision(False, _explain(holdings.problems)), named, generation)

    def _holdings_of(self, user: User, namespace: str) -> _Holdings:
        key = (user.name, user.groups, namespace)
        generation = self._generations.get(namespace, 0)
        found = self._holdings.get(key)
        if found is None or found[0] != generation:
            if len(self._holdings) >= _CACHED_USERS:
                self._holdings.clear()
            found = self._holdings[key] = generation, _Holdings(self._grants_of(user, namespace))
        return found[1]

    def _grants_of(self, user: User, namespace: str) -> Iterator[Grant]:
        for scope in ("", namespace) if namespace else ("",):
            grants = self._grants.get(scope)
            if grants is None:
                grants = self._grants[scope] = self._collect(scope)
            yield from grants.get(f"u:{user.name}", ())
            for group in user.groups:
                yield from grants.get(f"g:{group}", ())

    def _collect(self, namespace: str) -> _Grants:
        """The grants of one namespace, or of the cluster scope, by subject."""
        cluster_roles = self._all_cluster_roles()
        roles: dict[str, _Role] = {}
        if namespace:
            bindings = self._source.role_bindings(namespace)
            roles = self._roles_of(namespace)
        else:
            bindings = self._source.cluster_role_bindings()
        grants: _Grants = {}
        for binding in bindings:
            role_ref = binding.get("roleRef") or {}
            kind, name = role_ref.get("kind", ""), role_ref.get("name", "")
            role = roles.get(name)
            if kind == "ClusterRole":
                role = _Role(rules=cluster_roles[name]) if name in cluster_roles else None
            problem = ""
            if role is None:
                problem = f'{kind.lower()}.rbac.authorization.k8s.io "{name}" not found'
            for subject in binding.get("subjects") or ():
                key, label = _subject(subject, namespace)
                if key:
                    binding_name = binding["metadata"]["name"]
                    place = (
                        f'RoleBinding "{binding_name}/{namespace}"'
                        if namespace
                        else (f'ClusterRoleBinding "{binding_name}"')
                    )
                    grant = Grant(f'{place} of {kind} "{name}" to {label}', role or _Role(), problem)
                    grants.setdefault(key, []).append(grant)
        return grants

    def _roles_of(self, namespace: str) -> dict[str, _Role]:
        """The roles of a namespace by name. Rules of a role that has not changed are not parsed again."""
        before = self._parsed.pop(namespace, {})
        found: dict[str, _Role] = {}
        for role in self._source.roles(namespace):
            metadata = role["metadata"]
            name, version = metadata["name"], metadata.get("resourceVersion", "")
            known = before.get(name)
            found[name] = (
                known if known and version and known.version == version else _Role(role.get("rules") or (), version)
            )
        self._parsed[namespace] = found
        return found

    def _all_cluster_roles(self) -> dict[str, tuple[Rule, ...]]:
        if self._cluster_roles is None:
            self._cluster_roles = resolve(list(self._source.cluster_roles()))
        return self._cluster_roles


def resolve(cluster_roles: Sequence[Object]) -> dict[str, tuple[Rule, ...]]:
    """Rules by role name. A role with an aggregationRule has the rules of the roles it selects, and none of its own."""
    by_name = {role["metadata"]["name"]: role for role in cluster_roles}
    resolved: dict[str, tuple[Rule, ...]] = {}

    def rules_of(name: str, seen: frozenset[str]) -> tuple[Rule, ...]:
        if name in resolved:
            return resolved[name]
        role = by_name[name]
        selectors = _selectors(role)
        if not selectors:
            resolved[name] = _rules(role)
            return resolved[name]
        collected: dict[Rule, None] = {}
        for other in cluster_roles:
            other_name = other["metadata"]["name"]
            if other_name not in seen and _selected(other, selectors):
                collected.update(dict.fromkeys(rules_of(other_name, seen | {other_name})))
        if len(seen) == 1:  # inside a cycle the result depends on the entry point: cache complete ones only
            resolved[name] = tuple(collected)
        return tuple(collected)

    for name in by_name:
        rules_of(name, frozenset({name}))
    return resolved


def denied(user: User, info: RequestInfo, reason: str = "") -> Forbidden:
    """The error for a denied request, in kube-apiserver's words."""
    if not info.is_resource:
        message = f'forbidden: User "{user.name}" cannot {info.verb} path "{info.path}"'
        return Forbidden(_escaped(message) + (f": {reason}" if reason else ""))
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    scope = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
    what = f'User "{user.name}" cannot {info.verb} resource "{resource}" in API group "{info.group}" {scope}'
    subject = f"{info.resource}.{info.group}" if info.group else info.resource
    if info.name:
        subject += f' "{info.name}"'
    details = {"name": info.name, "group": info.group, "kind": info.resource}
    return Forbidden(
        f"{subject} is forbidden: {_escaped(what)}" + (f": {reason}" if reason else ""),
        details={key: value for key, value in details.items() if value},
    )


def _rules(role: Object) -> tuple[Rule, ...]:
    return tuple(Rule.of(rule) for rule in role.get("rules") or ())


def _selectors(role: Object) -> list[LabelSelector]:
    rule = role.get("aggregationRule") or {}
    selectors = (LabelSelector.from_object(selector) for selector in rule.get("clusterRoleSelectors") or ())
    return [selector for selector in selectors if selector is not None]


def _selected(role: Object, selectors: Iterable[LabelSelector]) -> bool:
    labels = role["metadata"].get("labels") or {}
    return any(selector.matches(labels) for selector in selectors)


def _subject(subject: dict[str, Any], binding_namespace: str) -> tuple[str, str]:
    """The key of the subject's grants, and its name in reasons. An empty key: the subject is invalid."""
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind == "User":
        return f"u:{name}", f'User "{name}"'
    if kind == "Group":
        return f"g:{name}", f'Group "{name}"'
    namespace = subject.get("namespace") or binding_namespace
    if kind == "ServiceAccount" and namespace:
        return f"u:{USER_PREFIX}{namespace}:{name}", f'ServiceAccount "{name}/{namespace}"'
    return "", ""


def _explain(problems: list[str]) -> str:
    if not problems:
        return ""
    return "RBAC: " + (problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")


def _escaped(message: str) -> str:
    """Escape HTML: names come from the client, and an error page must not execute them."""
    return message.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
