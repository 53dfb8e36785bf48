"""Roles that grant exactly the permissions which the controllers and the router declare.

Binding a role requires every permission in it, or the verb ``bind``, so only a cluster administrator can install.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    POD,
    ROLE,
    ROLE_BINDING,
    SANDBOX,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.controllers.preflight import LEASE_PERMISSION, OPTIONAL_PERMISSIONS, REQUIRED_PERMISSIONS, Permission
from sandpool.install.names import LEASE
from sandpool.install.workload import manifest

# The router watches sandboxes and pods, and reviews its clients' tokens at the API server.
ROUTER_NEEDS: Final = (
    Permission(SANDBOX, ("list", "watch")),
    Permission(POD, ("list", "watch")),
    Permission(TOKEN_REVIEW, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEW, ("create",)),
)


def rules(needs: Iterable[Permission]) -> list[Object]:
    """RBAC rules, one for all resources of a group with the same verbs."""
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for need in needs:
        resource = f"{need.type.plural}/{need.subresource}" if need.subresource else need.type.plural
        grouped.setdefault((need.type.group, need.verbs), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
        for (group, verbs), resources in grouped.items()
    ]


def controller_rules() -> list[Object]:
    return rules((*REQUIRED_PERMISSIONS, *OPTIONAL_PERMISSIONS))


def lease_rules() -> list[Object]:
    """Rules for the leader lease. ``resourceNames`` cannot restrict ``create``, so that verb has its own rule."""
    (rule,) = rules((LEASE_PERMISSION,))
    named = [verb for verb in LEASE_PERMISSION.verbs if verb != "create"]
    return [{**rule, "verbs": ["create"]}, {**rule, "resourceNames": [LEASE], "verbs": named}]


def cluster_role(name: str, namespace: str, labels: Object, granted: list[Object], account: str) -> list[Object]:
    return [
        manifest(CLUSTER_ROLE, name, labels=labels, rules=granted),
        cluster_role_binding(name, namespace, labels, name, account),
    ]


def cluster_role_binding(name: str, namespace: str, labels: Object, role: str, account: str) -> Object:
    return manifest(CLUSTER_ROLE_BINDING, name, labels=labels, **bound(CLUSTER_ROLE, role, account, namespace))


def role(name: str, namespace: str, labels: Object, granted: list[Object], account: str) -> list[Object]:
    return [
        manifest(ROLE, name, namespace, labels, rules=granted),
        manifest(ROLE_BINDING, name, namespace, labels, **bound(ROLE, name, account, namespace)),
    ]


def bound(type: ResourceType, name: str, account: str, namespace: str) -> Object:
    """The fields with which a binding gives a role to a service account."""
    return {
        "roleRef": {"apiGroup": type.group, "kind": type.kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
