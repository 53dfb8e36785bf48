"""Reviews: the answers kube-apiserver gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from sandpool.kube.errors import ApiError
from sandpool.server.auth import reviews
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.auth.tokens import StaticTokens
from sandpool.server.request.messages import User

if TYPE_CHECKING:
    from tests.server.auth.conftest import Policy, World

BOB = User("bob", ("dev",), uid="2", extra={"k": ("v",)})
ISSUER = "https://kubernetes.default.svc"
PODS = {"verb": "list", "resource": "pods", "namespace": "default"}
VERSION = {"verb": "get", "path": "/version"}


def review(kind: str, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    made = {"apiVersion": "x/v1", "kind": kind, "spec": spec}
    return made if metadata is None else {**made, "metadata": metadata}


@pytest.fixture
def authenticator(world: World) -> Authenticator:
    tokens = StaticTokens()
    tokens.add("bob-token", BOB)
    return Authenticator(tokens, world.tokens, clock=world)


@pytest.fixture(autouse=True)
def bob_lists_pods(policy: Policy) -> None:
    policy.role("reader", {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]})
    policy.bind("reader", "group:dev", namespace="default")
    policy.role("public", {"verbs": ["get"], "nonResourceURLs": ["/version"]})
    policy.bind("public", "group:dev")


def test_token_review_authenticates(authenticator: Authenticator) -> None:
    asked = review("TokenReview", token="bob-token")
    answer = reviews.token_review(asked, authenticator)
    assert answer["spec"] is asked["spec"]
    assert answer["status"] == {
        "authenticated": True,
        "user": {"username": "bob", "uid": "2", "groups": ["dev", "system:authenticated"], "extra": {"k": ["v"]}},
        "audiences": [ISSUER],
    }


def test_token_review_rejects_invalid_tokens(authenticator: Authenticator, world: World) -> None:
    for spec in ({"token": "wrong"}, {"token": "bob-token", "audiences": ["foo"]}):
        status = reviews.token_review(review("TokenReview", **spec), authenticator)["status"]
        assert status == {"user": {}, "error": "invalid bearer token"}
    token, _ = world.tokens.issue(world.account, [ISSUER], 600)
    status = reviews.token_review(review("TokenReview", token=token, audiences=["foo"]), authenticator)["status"]
    assert status["error"] == (
        f'[invalid bearer token, token audiences ["{ISSUER}"] is invalid for the target audiences ["foo"]]'
    )
    with pytest.raises(ApiError, match="token is required for TokenReview in authentication"):
        reviews.token_review(review("TokenReview"), authenticator)


def test_self_subject_review_names_the_user() -> None:
    answer = reviews.self_subject_review(review("SelfSubjectReview"), BOB, datetime(2026, 11, 16, tzinfo=UTC))
    assert answer["metadata"] == {"creationTimestamp": "2026-11-16T00:00:00Z"}
    assert answer["status"] == {"userInfo": {"username": "bob", "uid": "2", "groups": ["dev"], "extra": {"k": ["v"]}}}


def test_access_reviews_state_decision_and_reason(authorizer: RbacAuthorizer) -> None:
    asked = review("SubjectAccessReview", user="x", groups=["dev"], resourceAttributes=PODS)
    answer = reviews.subject_access_review(asked, authorizer)
    assert answer["status"] == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "reader-binding/default" of ClusterRole "reader" to Group "dev"',
    }
    asked = review("SubjectAccessReview", user="x", resourceAttributes=PODS)
    assert reviews.subject_access_review(asked, authorizer)["status"] == {"allowed": False}
    asked = review("SubjectAccessReview", groups=["dev"], nonResourceAttributes=VERSION)
    assert reviews.subject_access_review(asked, authorizer)["status"]["allowed"]
    asked = review("SelfSubjectAccessReview", resourceAttributes={**PODS, "namespace": "other"})
    assert not reviews.self_subject_access_review(asked, BOB, authorizer)["status"]["allowed"]
    asked = review("SelfSubjectAccessReview", resourceAttributes=PODS)
    assert reviews.self_subject_access_review(asked, BOB, authorizer)["status"]["allowed"]


def test_local_access_review_is_limited_to_its_namespace(authorizer: RbacAuthorizer) -> None:
    asked = review("LocalSubjectAccessReview", {"namespace": "default"}, groups=["dev"], resourceAttributes=PODS)
    answer = reviews.local_subject_access_review(asked, "default", authorizer)
    assert answer["status"]["allowed"]
    assert answer["metadata"]["namespace"] == "default"


SUBJECT = 'spec.user: Invalid value: "": at least one of user or group must be specified'
ATTRIBUTES = (
    "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be "
    "specified"
)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (review("SubjectAccessReview"), f"[{ATTRIBUTES}, {SUBJECT}]"),
        (
            review("SubjectAccessReview", resourceAttributes=PODS, nonResourceAttributes={"path": "/x", "verb": "get"}),
            '[spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":"get"}: cannot be specified in '
            f"combination with resourceAttributes, {SUBJECT}]",
        ),
        (
            review("SubjectAccessReview", {"name": "x"}, user="a", nonResourceAttributes=VERSION),
            'metadata: Invalid value: {"name":"x"}: must be empty',
        ),
        (review("SelfSubjectAccessReview"), ATTRIBUTES),
        (
            review("LocalSubjectAccessReview", user="a", resourceAttributes={**PODS, "namespace": "other"}),
            'spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace',
        ),
        (
            review("LocalSubjectAccessReview", user="a", nonResourceAttributes={"path": "/x", "verb": "list"}),
            'spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":"list"}: disallowed on this kind of '
            "request",
        ),
        (
            review("LocalSubjectAccessReview", {"name": "x"}, user="a", resourceAttributes=PODS),
            'metadata: Invalid value: {"name":"x"}: must be empty except for namespace',
        ),
    ],
)
def test_invalid_access_reviews_are_rejected(authorizer: RbacAuthorizer, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refusal:
        match asked["kind"]:
            case "SubjectAccessReview":
                reviews.subject_access_review(asked, authorizer)
            case "SelfSubjectAccessReview":
                reviews.self_subject_access_review(asked, BOB, authorizer)
            case _:
                reviews.local_subject_access_review(asked, "default", authorizer)
    assert refusal.value.code == 422
    assert refusal.value.message == f'.authorization.k8s.io "" is invalid: {message}'
    assert set(refusal.value.details) == {"group", "causes"}


def test_rules_review_lists_the_rules(authorizer: RbacAuthorizer) -> None:
    answer = reviews.self_subject_rules_review(review("SelfSubjectRulesReview", namespace="default"), BOB, authorizer)
    assert answer["status"] == {
        "resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/version"]}],
        "incomplete": False,
    }
    assert answer["spec"] == {}
    with pytest.raises(ApiError, match="no namespace on request"):
        reviews.self_subject_rules_review(review("SelfSubjectRulesReview"), BOB, authorizer)
