"""The escalation check on roles and bindings: a user may only grant permissions that the user holds."""

from __future__ import annotations

from sandpool.api.kinds import CLUSTER_ROLE_BINDING, ROLE_BINDING
from sandpool.api.resource import Object
from sandpool.kube.errors import not_found
from sandpool.server.auth.groups import MASTERS
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.auth.rules import ALL, Rule, TooManyPermissions, missing, quoted
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

_GROUP = "rbac.authorization.k8s.io"
_PLURALS = {"Role": "roles", "ClusterRole": "clusterroles"}
_EVERYTHING = (Rule((ALL,), (ALL,), (ALL,)), Rule((ALL,), urls=(ALL,)))
# Metadata that grants nothing; the garbage collector changes it.
_HARMLESS = frozenset({"finalizers", "ownerReferences", "managedFields", "resourceVersion"})


def escalation(user: User, obj: Object, authorizer: RbacAuthorizer, old: Object | None = None) -> list[str]:
    """Explain why the user may not write this role or binding, as lines of a message; empty if the user may.

    Raises ``NotFound`` for a binding to a role that does not exist: its permissions are unknown.
    """
    if MASTERS in user.groups or (old is not None and _grants_the_same(obj, old)):
        return []
    if obj["kind"] in _PLURALS:
        return _role_escalation(user, obj, authorizer, old)
    return _binding_escalation(user, obj, authorizer)


def _role_escalation(user: User, role: Object, authorizer: RbacAuthorizer, old: Object | None) -> list[str]:
    kind, metadata = role["kind"], role["metadata"]
    namespace = metadata.get("namespace", "") if kind == "Role" else ""
    name = metadata.get("name", "") if old is not None else ""  # on create, Kubernetes asks for all names
    if _may(user, "escalate", kind, name, namespace, authorizer):
        return []
    held = authorizer.rules_for(user, namespace)
    problems = _not_held(user, held, tuple(Rule.of(rule) for rule in role.get("rules") or ()))
    if not problems and (_aggregates(role) or (old is not None and _aggregates(old))) and missing(held, _EVERYTHING):
        return ["must have cluster-admin privileges to use the aggregationRule"]
    return problems


def _binding_escalation(user: User, binding: Object, authorizer: RbacAuthorizer) -> list[str]:
    role_ref = binding.get("roleRef") or {}
    local = binding["kind"] == "RoleBinding"
    namespace = binding["metadata"].get("namespace", "") if local else ""
    kind, name = role_ref.get("kind", ""), role_ref.get("name", "")
    if kind in _PLURALS and _may(user, "bind", kind, name, namespace, authorizer):
        return []
    rules = authorizer.role_rules(role_ref, namespace)
    if rules is None:
        # Kubernetes names the binding's resource here, not the role's.
        raise not_found(ROLE_BINDING if local else CLUSTER_ROLE_BINDING, name)
    return _not_held(user, authorizer.rules_for(user, namespace), rules)


def _may(user: User, verb: str, kind: str, name: str, namespace: str, authorizer: RbacAuthorizer) -> bool:
    info = RequestInfo("", verb, True, _GROUP, "v1", _PLURALS[kind], namespace=namespace, name=name)
    return authorizer.authorize(user, info).allowed


def _not_held(user: User, held: list[Rule], granted: tuple[Rule, ...]) -> list[str]:
    try:
        lacking = missing(held, granted)
    except TooManyPermissions:
        return [
            "the rules stand for more permissions than the server compares with those of the user: "
            "use fewer values per rule, or wildcards"
        ]
    if not lacking:
        return []
    groups = quoted(user.groups)
    return [
        f'user "{user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently held:',
        *sorted(str(rule) for rule in lacking),
    ]


def _aggregates(role: Object) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _grants_the_same(new: Object, old: Object) -> bool:
    def essence(obj: Object) -> Object:
        metadata = {key: value for key, value in obj["metadata"].items() if key not in _HARMLESS}
        return {**obj, "metadata": metadata}

    return essence(new) == essence(old)
