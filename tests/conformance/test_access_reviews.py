"""Access reviews."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import (
    LOCAL_SUBJECT_ACCESS_REVIEW,
    ROLE,
    ROLE_BINDING,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
)
from sandpool.api.resource import Object
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden, Invalid
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.api_access import ApiEndpoint


@pytest.fixture
def alice(api: ApiEndpoint) -> Client:
    """A user with only the permissions of all authenticated users."""
    return api.client_for("alice")


async def test_self_subject_access_review_answers_for_the_user(client: Client, alice: Client, namespace: str) -> None:
    attributes = {"verb": "get", "resource": "secrets", "namespace": namespace}
    review = new(SELF_SUBJECT_ACCESS_REVIEW, None, spec={"resourceAttributes": attributes})
    answer = await client.create(SELF_SUBJECT_ACCESS_REVIEW, review)
    assert (answer["kind"], answer["status"]["allowed"]) == ("SelfSubjectAccessReview", True)
    assert answer["spec"]["resourceAttributes"] == attributes
    answer = await alice.create(SELF_SUBJECT_ACCESS_REVIEW, review)
    assert answer["status"]["allowed"] is False


async def test_self_subject_access_review_answers_for_a_path(alice: Client) -> None:
    for path, expected in (("/version", True), ("/api/v1", True), ("/metrics", False)):
        spec = {"nonResourceAttributes": {"verb": "get", "path": path}}
        answer = await alice.create(SELF_SUBJECT_ACCESS_REVIEW, new(SELF_SUBJECT_ACCESS_REVIEW, None, spec=spec))
        assert answer["status"]["allowed"] is expected, path


async def test_review_states_the_reason(client: Client, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    await client.create(ROLE, new(ROLE, "reader", rules=rules), namespace)
    group = "rbac.authorization.k8s.io"
    binding = new(
        ROLE_BINDING,
        "readers",
        roleRef={"apiGroup": group, "kind": "Role", "name": "reader"},
        subjects=[{"kind": "User", "apiGroup": group, "name": "alice"}],
    )
    await client.create(ROLE_BINDING, binding, namespace)
    attributes = {"verb": "get", "resource": "secrets", "namespace": namespace}
    review = new(SUBJECT_ACCESS_REVIEW, None, spec={"user": "alice", "resourceAttributes": attributes})

    async def reason() -> str | None:
        status: Object = (await client.create(SUBJECT_ACCESS_REVIEW, review))["status"]
        return status["reason"] if status["allowed"] else None

    assert await until(reason) == (
        f'RBAC: allowed by RoleBinding "readers/{namespace}" of Role "reader" to User "alice"'
    )


async def test_local_subject_access_review_is_limited_to_its_namespace(client: Client, namespace: str) -> None:
    attributes = {"verb": "get", "resource": "secrets", "namespace": namespace}
    spec = {"user": "alice", "resourceAttributes": attributes}
    review = new(LOCAL_SUBJECT_ACCESS_REVIEW, None, metadata={"namespace": namespace}, spec=spec)
    answer = await client.create(LOCAL_SUBJECT_ACCESS_REVIEW, review, namespace)
    assert answer["status"]["allowed"] is False


async def test_self_subject_rules_review_lists_the_rules(alice: Client, namespace: str) -> None:
    review = new(SELF_SUBJECT_RULES_REVIEW, None, spec={"namespace": namespace})
    answer = await alice.create(SELF_SUBJECT_RULES_REVIEW, review)
    assert {
        "verbs": ["create"],
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    } in answer["status"]["resourceRules"]
    assert answer["status"]["incomplete"] is False


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"user": "u"}, "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        (
            {"resourceAttributes": {"verb": "get", "resource": "pods"}},
            "at least one of user or group must be specified",
        ),
    ],
)
async def test_incomplete_reviews_are_rejected(client: Client, spec: Object, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await client.create(SUBJECT_ACCESS_REVIEW, new(SUBJECT_ACCESS_REVIEW, None, spec=spec))


async def test_reviews_of_other_users_need_permission(alice: Client) -> None:
    spec = {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    with pytest.raises(Forbidden):
        await alice.create(SUBJECT_ACCESS_REVIEW, new(SUBJECT_ACCESS_REVIEW, None, spec=spec))
