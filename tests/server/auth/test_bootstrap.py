"""The default roles of a cluster and their permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.server.auth.bootstrap import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from sandpool.server.auth.groups import ANONYMOUS
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import parse

if TYPE_CHECKING:
    from tests.server.auth.conftest import Policy

ORDINARY_USER = User("any-user", ("system:authenticated",))


@pytest.fixture(autouse=True)
def booted(policy: Policy) -> None:
    for obj in (*CLUSTER_ROLES, *CLUSTER_ROLE_BINDINGS):
        policy.include(obj)


def may(authorizer: RbacAuthorizer, user: User, method: str, path: str) -> bool:
    return authorizer.authorize(user, parse(method, path, {})).allowed


def test_bindings_refer_to_roles_that_exist() -> None:
    names = {role["metadata"]["name"] for role in CLUSTER_ROLES}
    assert len(names) == len(CLUSTER_ROLES)
    assert {binding["roleRef"]["name"] for binding in CLUSTER_ROLE_BINDINGS} <= names


@pytest.mark.parametrize(
    ("user", "method", "path", "allowed"),
    [
        (ANONYMOUS, "GET", "/healthz", True),
        (ANONYMOUS, "GET", "/version", True),
        (ANONYMOUS, "GET", "/api", False),
        (ORDINARY_USER, "GET", "/apis/apps/v1", True),
        (ORDINARY_USER, "GET", "/openapi/v3", True),
        (ORDINARY_USER, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", True),
        (ORDINARY_USER, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", True),
        (ORDINARY_USER, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", False),
        (ORDINARY_USER, "GET", "/api/v1/namespaces", False),
        (ORDINARY_USER, "GET", "/metrics", False),
    ],
)
def test_authenticated_users_can_discover(
    authorizer: RbacAuthorizer, user: User, method: str, path: str, allowed: bool
) -> None:
    assert may(authorizer, user, method, path) is allowed


@pytest.mark.parametrize(
    ("method", "path", "roles"),
    [
        ("GET", "/api/v1/namespaces/ns/pods", "view edit admin cluster-admin"),
        ("GET", "/api/v1/namespaces/ns/pods/p/log", "view edit admin cluster-admin"),
        ("GET", "/api/v1/namespaces/ns/secrets", "edit admin cluster-admin"),
        ("POST", "/api/v1/namespaces/ns/pods", "edit admin cluster-admin"),
        ("POST", "/api/v1/namespaces/ns/serviceaccounts/x/token", "edit admin cluster-admin"),
        ("PATCH", "/apis/apps/v1/namespaces/ns/deployments/d/scale", "edit admin cluster-admin"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "edit admin cluster-admin"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles", "admin cluster-admin"),
        ("DELETE", "/api/v1/namespaces/ns", "cluster-admin"),
        ("PUT", "/apis/example.org/v1/namespaces/ns/things/t", "cluster-admin"),
    ],
)
def test_default_roles_grant_in_a_namespace(
    policy: Policy, authorizer: RbacAuthorizer, method: str, path: str, roles: str
) -> None:
    for role in ("view", "edit", "admin", "cluster-admin"):
        policy.bind(role, f"user:{role}", namespace="ns")
    allowed = [role for role in ("view", "edit", "admin", "cluster-admin") if may(authorizer, User(role), method, path)]
    assert allowed == roles.split()


def test_default_roles_are_aggregated(policy: Policy, authorizer: RbacAuthorizer) -> None:
    extension = policy.role("extension", {"verbs": ["get"], "apiGroups": ["example.org"], "resources": ["things"]})
    policy.label(extension, **{"rbac.authorization.k8s.io/aggregate-to-view": "true"})
    policy.bind("admin", "user:ann", namespace="ns")
    assert may(authorizer, User("ann"), "GET", "/apis/example.org/v1/namespaces/ns/things/t")
