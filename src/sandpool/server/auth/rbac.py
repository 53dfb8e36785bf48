"""RBAC authorization.

Decisions are cached by (user, groups, verb, resource, namespace), without the name of the object, so that a thousand
pods share one entry. Names matter only to rules with ``resourceNames``, which the entry holds. Any change of an RBAC
object clears the cache. Grants are collected per namespace on demand, so that creating one binding in each of many
namespaces does not cost their number squared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sandpool.api.resource import Object
from sandpool.kube.errors import Forbidden
from sandpool.kube.selectors import LabelSelector
from sandpool.server.auth.groups import MASTERS
from sandpool.server.auth.rules import Rule
from sandpool.server.auth.service_accounts import USER_PREFIX
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

_CACHED = 65536


class RuleSource(Protocol):
    """The current RBAC objects."""

    @property
    def version(self) -> int:
        """Increases with every change of a role or binding."""
        ...

    def cluster_roles(self) -> Iterable[Object]: ...

    def cluster_role_bindings(self) -> Iterable[Object]: ...

    def roles(self, namespace: str) -> Iterable[Object]: ...

    def role_bindings(self, namespace: str) -> Iterable[Object]: ...


class Decision(NamedTuple):
    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    def authorize(self, user: User, info: RequestInfo) -> Decision: ...

    def require(self, user: User, info: RequestInfo) -> None:
        """Raise ``Forbidden`` unless the user may do this."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A binding as seen by one of its subjects: the rules of its role, or why there are none."""

    source: str  # 'RoleBinding "x/ns" of Role "y" to User "z"', for the reason of a decision
    rules: tuple[Rule, ...]
    problem: str = ""


# Grants by subject: "u:" and a user name, or "g:" and a group.
_Grants = dict[str, list[Grant]]


class _CachedDecision(NamedTuple):
    """A cached decision: the one for any name, and the names for which more is allowed."""

    decision: Decision
    named: dict[str, str]  # name -> reason


class RbacAuthorizer:
    def __init__(self, source: RuleSource) -> None:
        self._source = source
        self._version = -1
        self._cluster_roles: dict[str, tuple[Rule, ...]] | None = None
        self._grants: dict[str, _Grants] = {}  # by namespace; "" has the cluster-wide ones
        self._decisions: dict[tuple[object, ...], _CachedDecision] = {}

    def authorize(self, user: User, info: RequestInfo) -> Decision:
        if MASTERS in user.groups:
            return Decision(True)
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
        if cached is None:
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
        return [rule for grant in self._grants_of(user, namespace) for rule in grant.rules]

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
            self._cluster_roles = None
            self._grants.clear()
            self._decisions.clear()

    def _decide(self, user: User, info: RequestInfo) -> _CachedDecision:
        named: dict[str, str] = {}
        problems: list[str] = []
        for grant in self._grants_of(user, info.namespace if info.is_resource else ""):
            if grant.problem and grant.problem not in problems:
                problems.append(grant.problem)
            for rule in grant.rules:
                if not rule.allows_some_name(info):
                    continue
                reason = f"RBAC: allowed by {grant.source}"
                if not rule.names or not info.is_resource:
                    return _CachedDecision(Decision(True, reason), {})
                for name in rule.names:
                    named.setdefault(name, reason)
        return _CachedDecision(Decision(False, _explain(problems)), named)

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
        roles: dict[str, tuple[Rule, ...]] = {}
        if namespace:
            bindings = self._source.role_bindings(namespace)
            roles = {role["metadata"]["name"]: _rules(role) for role in self._source.roles(namespace)}
        else:
            bindings = self._source.cluster_role_bindings()
        grants: _Grants = {}
        for binding in bindings:
            role_ref = binding.get("roleRef") or {}
            kind, name = role_ref.get("kind", ""), role_ref.get("name", "")
            rules = cluster_roles.get(name) if kind == "ClusterRole" else roles.get(name)
            problem = ""
            if rules is None:
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
                    grant = Grant(f'{place} of {kind} "{name}" to {label}', rules or (), problem)
                    grants.setdefault(key, []).append(grant)
        return grants

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
