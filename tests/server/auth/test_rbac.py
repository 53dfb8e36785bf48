"""Decisions from RBAC objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandpool.kube.errors import Forbidden
from sandpool.server.auth.rbac import RbacAuthorizer, denied
from sandpool.server.auth.rules import Rule
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo, parse

if TYPE_CHECKING:
    from tests.server.auth.conftest import Policy

BOB = User("bob", ("dev", "system:authenticated"))
ROBOT = User("system:serviceaccount:ns:robot", ("system:serviceaccounts", "system:serviceaccounts:ns"))
GET_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
READ_PODS = {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]}


def may(authorizer: RbacAuthorizer, user: User, method: str, path: str) -> bool:
    return authorizer.authorize(user, parse(method, path, {})).allowed


def test_nothing_is_allowed_by_default(authorizer: RbacAuthorizer) -> None:
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/p")


def test_system_masters_are_allowed_everything(authorizer: RbacAuthorizer) -> None:
    decision = authorizer.authorize(User("x", ("system:masters",)), parse("DELETE", "/api/v1/nodes", {}))
    assert decision == (True, "")


@pytest.mark.parametrize("subject", ["user:bob", "group:dev"])
def test_cluster_role_bindings_hold_in_all_namespaces(policy: Policy, authorizer: RbacAuthorizer, subject: str) -> None:
    policy.role("reader", READ_PODS)
    policy.bind("reader", "user:other", subject)
    assert may(authorizer, BOB, "GET", "/api/v1/pods")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/p")
    assert not may(authorizer, BOB, "DELETE", "/api/v1/namespaces/ns/pods/p")
    assert not may(authorizer, User("eve"), "GET", "/api/v1/pods")


@pytest.mark.parametrize("local", [True, False])
def test_role_bindings_hold_in_their_namespace(policy: Policy, authorizer: RbacAuthorizer, local: bool) -> None:
    policy.role("reader", READ_PODS, namespace="ns" if local else "")
    policy.bind("reader", "user:bob", namespace="ns", local_role=local)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/other/pods")
    assert not may(authorizer, BOB, "GET", "/api/v1/pods")


def test_role_of_another_namespace_does_not_count(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("reader", READ_PODS, namespace="other")
    policy.bind("reader", "user:bob", namespace="ns", local_role=True)
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/other/pods")


@pytest.mark.parametrize("subject", ["sa:ns/robot", "sa:robot", "group:system:serviceaccounts:ns"])
def test_service_accounts_are_bound_by_name_and_group(policy: Policy, authorizer: RbacAuthorizer, subject: str) -> None:
    policy.role("reader", READ_PODS)
    policy.bind("reader", subject, namespace="ns")
    assert may(authorizer, ROBOT, "GET", "/api/v1/namespaces/ns/pods")
    assert not may(authorizer, User("system:serviceaccount:other:robot"), "GET", "/api/v1/namespaces/ns/pods")


def test_resource_names_limit_a_rule(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("one", {**READ_PODS, "resourceNames": ["p", "q"]})
    policy.bind("one", "user:bob")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/p")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/q")
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/r")
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")


def test_non_resource_urls_are_allowed_by_prefix(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("urls", {"verbs": ["get"], "nonResourceURLs": ["/metrics", "/logs/*"], "resourceNames": ["ignored"]})
    policy.bind("urls", "group:dev")
    assert may(authorizer, BOB, "GET", "/metrics")
    assert may(authorizer, BOB, "GET", "/logs/a")
    assert not may(authorizer, BOB, "POST", "/metrics")
    assert not may(authorizer, BOB, "GET", "/healthz")


def test_reasons_name_binding_role_and_subject(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("reader", READ_PODS)
    policy.bind("reader", "group:dev")
    policy.bind("reader", "sa:robot", namespace="ns")
    info = parse("GET", "/api/v1/namespaces/ns/pods", {})
    assert authorizer.authorize(BOB, info).reason == (
        'RBAC: allowed by ClusterRoleBinding "reader-binding" of ClusterRole "reader" to Group "dev"'
    )
    assert authorizer.authorize(ROBOT, info).reason == (
        'RBAC: allowed by RoleBinding "reader-binding/ns" of ClusterRole "reader" to ServiceAccount "robot/ns"'
    )


def test_every_policy_change_is_effective(policy: Policy, authorizer: RbacAuthorizer) -> None:
    path = "/api/v1/namespaces/ns/pods/p"
    assert not may(authorizer, BOB, "GET", path)
    policy.bind("reader", "user:bob")
    assert not may(authorizer, BOB, "GET", path)
    role = policy.role("reader", GET_PODS)
    assert may(authorizer, BOB, "GET", path)
    role["rules"] = []
    policy.change("")
    assert not may(authorizer, BOB, "GET", path)


def test_decisions_are_cached_without_the_name(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("reader", READ_PODS)
    policy.bind("reader", "user:bob")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/p")
    before = policy.reads
    for number in range(100):
        assert may(authorizer, BOB, "GET", f"/api/v1/namespaces/ns/pods/{number}")
    assert policy.reads == before
    assert len(authorizer._decisions) == 1


def test_changed_namespace_invalidates_only_itself(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("reader", READ_PODS)
    for number in range(50):
        policy.bind("reader", "user:bob", namespace=f"ns-{number}")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns-7/pods")
    assert policy.reads <= 4


def test_change_of_a_role_in_a_namespace_keeps_the_decisions_of_others(
    policy: Policy, authorizer: RbacAuthorizer
) -> None:
    for namespace in ("ns", "other"):
        policy.role("reader", READ_PODS, namespace=namespace)
        policy.bind("reader", "user:bob", namespace=namespace, local_role=True)
        assert may(authorizer, BOB, "GET", f"/api/v1/namespaces/{namespace}/pods")
    before = policy.reads
    policy.role("more", GET_PODS, namespace="other")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")
    assert policy.reads == before
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/other/pods")
    assert policy.reads > before


def test_rules_are_parsed_for_the_users_they_are_bound_to(
    policy: Policy, authorizer: RbacAuthorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []

    def count(rule: Any, real: Any = Rule.of) -> Rule:
        parsed.append(rule)
        return real(rule)  # type: ignore[no-any-return]

    monkeypatch.setattr(Rule, "of", count)
    policy.role("large", *({**GET_PODS, "resources": [f"r{i}"]} for i in range(500)), namespace="ns")
    policy.bind("large", "user:mallory", namespace="ns", local_role=True)
    policy.role("reader", READ_PODS, namespace="ns")
    policy.bind("reader", "user:bob", namespace="ns", local_role=True)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")
    assert len(parsed) == 1


def test_roles_that_have_not_changed_are_not_parsed_again(
    policy: Policy, authorizer: RbacAuthorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = policy.role("large", *({**GET_PODS, "resources": [f"r{i}"]} for i in range(500)), namespace="ns")
    large["metadata"]["resourceVersion"] = "1"
    policy.bind("large", "user:bob", namespace="ns", local_role=True)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/r1/x")
    parsed = []

    def count(rule: Any, real: Any = Rule.of) -> Rule:
        parsed.append(rule)
        return real(rule)  # type: ignore[no-any-return]

    monkeypatch.setattr(Rule, "of", count)
    policy.role("small", GET_PODS, namespace="ns")
    policy.bind("small", "user:bob", namespace="ns", local_role=True)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods/x")
    assert len(parsed) == 1
    large["rules"], large["metadata"]["resourceVersion"] = [], "2"
    policy.change("ns")
    assert not may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/r1/x")


def test_decision_looks_at_the_rules_of_its_resource_only(
    policy: Policy, authorizer: RbacAuthorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        policy.role(f"role-{number}", {**GET_PODS, "resources": [f"r{number}", f"r{number}/log"]}, namespace="ns")
        policy.bind(f"role-{number}", "user:bob", namespace="ns", local_role=True)
    policy.role("last", {"verbs": ["list"], "apiGroups": ["*"], "resources": ["*"]})
    policy.bind("last", "user:bob")
    looked: list[Rule] = []

    def count(self: Rule, info: RequestInfo, real: Any = Rule.allows_some_name) -> bool:
        looked.append(self)
        return real(self, info)  # type: ignore[no-any-return]

    monkeypatch.setattr(Rule, "allows_some_name", count)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/r7/x")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/r8/x/log")
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/r9")
    assert not may(authorizer, BOB, "DELETE", "/api/v1/namespaces/ns/r9/x")
    assert len(looked) <= 8


def test_rules_beyond_the_limit_are_ignored(
    policy: Policy, authorizer: RbacAuthorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandpool.server.auth.rbac.MOST_RULES", 3)
    policy.role("first", READ_PODS, namespace="ns")
    policy.role("second", *[{**READ_PODS, "resources": ["secrets"]}] * 3, namespace="ns")
    for role in ("first", "second"):
        policy.bind(role, "user:bob", namespace="ns", local_role=True)
    assert may(authorizer, BOB, "GET", "/api/v1/namespaces/ns/pods")
    decision = authorizer.authorize(BOB, parse("GET", "/api/v1/namespaces/ns/secrets", {}))
    assert not decision.allowed
    assert "more than 3 rules" in decision.reason
    assert len(authorizer.rules_for(BOB, "ns")) == 1


def test_decision_cache_is_bounded(policy: Policy, authorizer: RbacAuthorizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.server.auth.rbac._CACHED", 10)
    for number in range(100):
        may(authorizer, BOB, "GET", f"/x{number}")
    assert len(authorizer._decisions) <= 10


# -- aggregation -------------------------------------------------------------------------------------------------------


def aggregate(label: str) -> dict[str, Any]:
    return {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}}


def test_aggregated_role_has_the_selected_rules(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("sum", **aggregate("to-sum"))
    policy.bind("sum", "user:bob")
    assert not may(authorizer, BOB, "GET", "/api/v1/pods")
    policy.label(policy.role("part", READ_PODS), **{"to-sum": "true"})
    assert may(authorizer, BOB, "GET", "/api/v1/pods")


def test_aggregated_role_ignores_its_own_rules(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("sum", READ_PODS, **aggregate("to-sum"))
    policy.bind("sum", "user:bob")
    assert not may(authorizer, BOB, "GET", "/api/v1/pods")


def test_aggregation_is_transitive(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("top", **aggregate("to-top"))
    policy.label(policy.role("middle", **aggregate("to-middle")), **{"to-top": "true"})
    policy.label(policy.role("part", READ_PODS), **{"to-middle": "true"})
    policy.bind("top", "user:bob")
    assert may(authorizer, BOB, "GET", "/api/v1/pods")


def test_circular_aggregation_ends(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.label(policy.role("a", **aggregate("to-a")), **{"to-b": "true"})
    policy.label(policy.role("b", **aggregate("to-b")), **{"to-a": "true"})
    policy.label(policy.role("part", READ_PODS), **{"to-b": "true"})
    policy.bind("a", "user:bob")
    policy.bind("b", "user:carol")
    assert may(authorizer, BOB, "GET", "/api/v1/pods")
    assert may(authorizer, User("carol"), "GET", "/api/v1/pods")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "message", "details"),
    [
        (
            "GET",
            "/api/v1/namespaces/default/pods",
            'pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "default"',
            {"kind": "pods"},
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x/status",
            'pods "x" is forbidden: User "bob" cannot get resource "pods/status" in API group "" in the namespace '
            '"default"',
            {"name": "x", "kind": "pods"},
        ),
        (
            "GET",
            "/apis/apps/v1/deployments",
            'deployments.apps is forbidden: User "bob" cannot list resource "deployments" in API group "apps" at the '
            "cluster scope",
            {"group": "apps", "kind": "deployments"},
        ),
        ("GET", "/metrics", 'forbidden: User "bob" cannot get path "/metrics"', {}),
    ],
)
def test_denials_have_the_words_of_kubernetes(
    authorizer: RbacAuthorizer, method: str, path: str, message: str, details: dict[str, str]
) -> None:
    with pytest.raises(Forbidden) as refusal:
        authorizer.require(BOB, parse(method, path, {}))
    assert refusal.value.message == message
    assert refusal.value.details == details


def test_missing_role_is_reported_in_the_reason(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.bind("nope", "user:bob", "group:dev")
    info = parse("GET", "/api/v1/pods", {})
    assert authorizer.authorize(BOB, info).reason == 'RBAC: clusterrole.rbac.authorization.k8s.io "nope" not found'
    policy.bind("gone", "user:bob", namespace="ns", local_role=True)
    assert authorizer.authorize(BOB, parse("GET", "/api/v1/namespaces/ns/pods", {})).reason == (
        'RBAC: [clusterrole.rbac.authorization.k8s.io "nope" not found, '
        'role.rbac.authorization.k8s.io "gone" not found]'
    )
    with pytest.raises(Forbidden, match=r'at the cluster scope: RBAC: clusterrole\.rbac.*"nope"'):
        authorizer.require(BOB, info)


def test_denials_are_html_escaped() -> None:
    error = denied(User("<b>&"), RequestInfo("/x", "get"))
    assert error.message == 'forbidden: User "&lt;b&gt;&amp;" cannot get path "/x"'


# -- rules for a user --------------------------------------------------------------------------------------------------


def test_rules_of_a_user_are_listed(policy: Policy, authorizer: RbacAuthorizer) -> None:
    policy.role("everywhere", GET_PODS)
    policy.role("here", READ_PODS, namespace="ns")
    policy.bind("everywhere", "group:dev")
    policy.bind("here", "user:bob", namespace="ns", local_role=True)
    assert [rule.verbs for rule in authorizer.rules_for(BOB, "ns")] == [("get",), ("get", "list", "watch")]
    assert [rule.verbs for rule in authorizer.rules_for(BOB, "other")] == [("get",)]
