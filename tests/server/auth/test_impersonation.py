"""Impersonation: which user a request acts as, and which permissions that needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.kube.errors import BadRequest, Forbidden
from sandpool.server.auth.impersonation import impersonate
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.request.messages import User

if TYPE_CHECKING:
    from tests.server.auth.conftest import Policy

ROOT = User("root", ("system:masters",))
BOB = User("bob")
USER, GROUP, UID = "impersonate-user", "impersonate-group", "impersonate-uid"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(USER, "jane")], User("jane", ("system:authenticated",))),
        ([(USER, "jane"), (GROUP, "a"), (GROUP, "b")], User("jane", ("a", "b", "system:authenticated"))),
        ([(USER, "jane"), (GROUP, "system:authenticated")], User("jane", ("system:authenticated",))),
        ([(USER, "jane"), (GROUP, "system:unauthenticated")], User("jane", ("system:unauthenticated",))),
        ([(USER, "system:anonymous")], User("system:anonymous", ("system:unauthenticated",))),
        (
            [(USER, "system:serviceaccount:ns:robot")],
            User(
                "system:serviceaccount:ns:robot",
                ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"),
            ),
        ),
        (
            [(USER, "jane"), (UID, "1"), ("impersonate-extra-acme.com%2fscope", "x"), ("impersonate-extra-a", "y")],
            User("jane", ("system:authenticated",), "1", {"acme.com/scope": ("x",), "a": ("y",)}),
        ),
    ],
)
def test_impersonation_headers_give_the_user(
    authorizer: RbacAuthorizer, headers: list[tuple[str, str]], expected: User
) -> None:
    assert impersonate(ROOT, headers, authorizer) == expected


def test_impersonation_needs_a_user(authorizer: RbacAuthorizer) -> None:
    with pytest.raises(BadRequest, match="without impersonating a user name"):
        impersonate(ROOT, [(GROUP, "x")], authorizer)
    assert impersonate(ROOT, [(USER, "")], authorizer) is ROOT


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            [(USER, "jane")],
            'users "jane" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster '
            "scope",
        ),
        (
            [(USER, "system:serviceaccount:ns:robot")],
            'serviceaccounts "robot" is forbidden: User "bob" cannot impersonate resource "serviceaccounts" in API '
            'group "" in the namespace "ns"',
        ),
        (
            [(USER, "ann"), (GROUP, "system:masters")],
            'groups "system:masters" is forbidden: User "bob" cannot impersonate resource "groups" in API group "" at '
            "the cluster scope",
        ),
        (
            [(USER, "ann"), (UID, "1")],
            'uids.authentication.k8s.io "1" is forbidden: User "bob" cannot impersonate resource "uids" in API group '
            '"authentication.k8s.io" at the cluster scope',
        ),
        (
            [(USER, "ann"), ("impersonate-extra-a", "y")],
            'userextras.authentication.k8s.io "y" is forbidden: User "bob" cannot impersonate resource "userextras/a" '
            'in API group "authentication.k8s.io" at the cluster scope',
        ),
    ],
)
def test_each_impersonated_attribute_needs_permission(
    policy: Policy, authorizer: RbacAuthorizer, headers: list[tuple[str, str]], message: str
) -> None:
    policy.role(
        "as-ann", {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["ann"]}
    )
    policy.bind("as-ann", "user:bob")
    with pytest.raises(Forbidden) as refusal:
        impersonate(BOB, headers, authorizer)
    assert refusal.value.message == message
    assert impersonate(BOB, [(USER, "ann")], authorizer).name == "ann"
