"""Granting: only what one has, or may hand out explicitly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandpool.kube.errors import NotFound
from sandpool.server.auth.escalation import escalation
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.request.messages import User

if TYPE_CHECKING:
    from tests.server.auth.conftest import Policy

BOB = User("bob", ("dev", "system:authenticated"))
GROUP = "rbac.authorization.k8s.io"
GET_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}


def role(*rules: dict[str, Any], kind: str = "ClusterRole", **more: Any) -> dict[str, Any]:
    metadata = {"name": "new", **({"namespace": "ns"} if kind == "Role" else {})}
    return {"kind": kind, "metadata": metadata, "rules": list(rules), **more}


def binding(name: str, *, kind: str = "ClusterRoleBinding", to: str = "ClusterRole") -> dict[str, Any]:
    metadata = {"name": "new", **({"namespace": "ns"} if kind == "RoleBinding" else {})}
    return {"kind": kind, "metadata": metadata, "roleRef": {"apiGroup": GROUP, "kind": to, "name": name}}


@pytest.fixture(autouse=True)
def bob_reads_pods(policy: Policy) -> None:
    policy.role("reader", GET_PODS)
    policy.bind("reader", "user:bob")
    policy.role(
        "everything",
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    )


def test_held_permissions_can_be_granted(authorizer: RbacAuthorizer) -> None:
    assert escalation(BOB, role(GET_PODS), authorizer) == []
    assert escalation(BOB, role(GET_PODS, kind="Role"), authorizer) == []
    assert escalation(BOB, binding("reader"), authorizer) == []
    assert escalation(BOB, binding("reader", kind="RoleBinding"), authorizer) == []


def test_missing_permissions_cannot_be_granted(authorizer: RbacAuthorizer) -> None:
    wanted = role(
        {"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "secrets"], "resourceNames": ["a"]},
        {"verbs": ["get"], "nonResourceURLs": ["/metrics"]},
    )
    assert escalation(BOB, wanted, authorizer) == [
        'user "bob" (groups=["dev" "system:authenticated"]) is attempting to grant RBAC permissions not currently '
        "held:",
        '{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["list"]}',
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get" "list"]}',
        '{APIGroups:["apps"], Resources:["pods"], ResourceNames:["a"], Verbs:["get" "list"]}',
        '{APIGroups:["apps"], Resources:["secrets"], ResourceNames:["a"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/metrics"], Verbs:["get"]}',
    ]
    assert escalation(BOB, binding("everything"), authorizer)[1:] == [
        '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}',
        '{NonResourceURLs:["*"], Verbs:["*"]}',
    ]


def test_system_masters_can_grant_everything(authorizer: RbacAuthorizer) -> None:
    assert escalation(User("root", ("system:masters",)), binding("everything"), authorizer) == []
    assert escalation(User("root", ("system:masters",)), binding("nope"), authorizer) == []


def test_permissions_of_a_namespace_count_only_there(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.bind("everything", "user:carol", namespace="ns")
    carol = User("carol")
    assert escalation(carol, role(GET_PODS, kind="Role"), authorizer) == []
    assert escalation(carol, role(GET_PODS), authorizer) != []
    assert escalation(carol, binding("reader", kind="RoleBinding"), authorizer) == []
    assert escalation(carol, binding("reader"), authorizer) != []


def test_escalate_and_bind_allow_granting(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("granter", {"verbs": ["escalate"], "apiGroups": [GROUP], "resources": ["clusterroles"]})
    policy.bind("granter", "user:bob")
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    assert escalation(BOB, role(everything), authorizer) == []
    assert escalation(BOB, role(everything, kind="Role"), authorizer) != []
    assert escalation(BOB, binding("everything"), authorizer) != []
    policy.role(
        "binder",
        {"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["everything"]},
    )
    policy.bind("binder", "user:bob")
    assert escalation(BOB, binding("everything"), authorizer) == []
    policy.role("writer", {"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]})
    assert escalation(BOB, binding("writer"), authorizer) != [], "only the role that is named"


def test_aggregation_rule_needs_all_permissions(policy: Policy, authorizer: RbacAuthorizer) -> None:
    wanted = role(aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    message = ["must have cluster-admin privileges to use the aggregationRule"]
    assert escalation(BOB, wanted, authorizer) == message
    assert escalation(BOB, role(), authorizer, wanted) == message, "to take one away as well"
    policy.bind("everything", "user:bob")
    assert escalation(BOB, wanted, authorizer) == []


def test_binding_an_unknown_role_is_not_found(authorizer: RbacAuthorizer) -> None:
    with pytest.raises(NotFound, match=r'clusterrolebindings\.rbac\.authorization\.k8s\.io "nope" not found'):
        escalation(BOB, binding("nope"), authorizer)
    with pytest.raises(NotFound, match=r"^rolebindings\.rbac"):
        escalation(BOB, binding("nope", kind="RoleBinding", to="Role"), authorizer)


def test_local_role_can_be_bound(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("local", GET_PODS, namespace="ns")
    assert escalation(BOB, binding("local", kind="RoleBinding", to="Role"), authorizer) == []


def test_update_without_new_permissions_is_not_checked(authorizer: RbacAuthorizer) -> None:
    old = binding("everything")
    collected = {**old, "metadata": {**old["metadata"], "finalizers": ["x"], "ownerReferences": []}}
    assert escalation(BOB, collected, authorizer, old) == []
    labelled = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert escalation(BOB, labelled, authorizer, old) != []


def test_small_role_with_billions_of_permissions_is_rejected(policy: Policy, authorizer: RbacAuthorizer) -> None:
    words = [f"w{number}" for number in range(1000)]
    policy.role("almost", {"verbs": words, "apiGroups": words, "resources": words, "resourceNames": words[:-1]})
    policy.bind("almost", "user:bob")
    large = {"verbs": words, "apiGroups": words, "resources": words, "resourceNames": words}
    assert "more permissions than the server compares" in escalation(BOB, role(large), authorizer)[0]
