"""Authentication: tokens, anonymous requests, impersonation, and reviews."""

from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, SELF_SUBJECT_REVIEW, SERVICE_ACCOUNT, TOKEN_REVIEW
from sandpool.kube.client import Client
from sandpool.kube.errors import BadRequest
from sandpool.testing.objects import new
from tests.support.api_access import ApiEndpoint, HttpEndpoint, Raw

UNAUTHORIZED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "Unauthorized",
    "reason": "Unauthorized",
    "code": 401,
}
WHO = SELF_SUBJECT_REVIEW.path()


@pytest.mark.parametrize("path", ["/api/v1/namespaces/default/configmaps", "/apis", "/nowhere"])
async def test_anonymous_request_is_unauthorized(raw: Raw, path: str) -> None:
    answer = await raw("GET", path, user=None)
    assert (answer.status, answer.json()) == (401, UNAUTHORIZED)


@pytest.mark.parametrize(
    "authorization", ["Bearer nonsense", "Bearer", "Bearer ", "Basic YTpi", "nonsense", "bearer nonsense"]
)
async def test_invalid_credentials_are_unauthorized(raw: Raw, authorization: str) -> None:
    answer = await raw("GET", "/apis", user=None, headers={"Authorization": authorization})
    assert (answer.status, answer.json()) == (401, UNAUTHORIZED)


async def test_authorization_scheme_is_case_insensitive(api: ApiEndpoint, raw: Raw) -> None:
    assert isinstance(api, HttpEndpoint)
    headers = {"Authorization": f"bearer {api.tokens['alice']}"}
    assert (await raw("GET", "/apis", user=None, headers=headers)).status == 200


async def test_self_subject_review_names_the_user(api: ApiEndpoint) -> None:
    answer = await api.client_for("alice").create(SELF_SUBJECT_REVIEW, new(SELF_SUBJECT_REVIEW, None))
    assert answer["status"] == {
        "userInfo": {"username": "alice", "uid": "alice-uid", "groups": ["developers", "system:authenticated"]}
    }


async def test_administrator_is_in_system_masters(api: ApiEndpoint, client: Client) -> None:
    answer = await client.create(SELF_SUBJECT_REVIEW, new(SELF_SUBJECT_REVIEW, None))
    assert {"system:masters", "system:authenticated"} <= set(answer["status"]["userInfo"]["groups"])


# Token reviews


async def test_token_review_accepts_a_valid_token(api: ApiEndpoint, raw: Raw, client: Client) -> None:
    assert isinstance(api, HttpEndpoint)
    review = await client.create(TOKEN_REVIEW, new(TOKEN_REVIEW, None, spec={"token": api.tokens["alice"]}))
    assert review["status"]["authenticated"] is True
    assert review["status"]["user"] == {
        "username": "alice",
        "uid": "alice-uid",
        "groups": ["developers", "system:authenticated"],
    }


async def test_token_review_rejects_an_invalid_token(client: Client) -> None:
    review = await client.create(TOKEN_REVIEW, new(TOKEN_REVIEW, None, spec={"token": "nonsense"}))
    assert not review["status"].get("authenticated")
    assert "invalid bearer token" in review["status"]["error"]


async def test_token_review_without_a_token_is_rejected(client: Client) -> None:
    with pytest.raises(BadRequest, match=r"token is required for TokenReview in authentication"):
        await client.create(TOKEN_REVIEW, new(TOKEN_REVIEW, None, spec={"token": ""}))


# Service accounts


async def test_token_request_issues_tokens_of_a_service_account(
    api: ApiEndpoint, raw: Raw, client: Client, namespace: str
) -> None:
    account = await client.create(SERVICE_ACCOUNT, new(SERVICE_ACCOUNT, "robot"), namespace)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    issued = await client.create(SERVICE_ACCOUNT, request, namespace, name="robot", subresource="token")
    assert issued["kind"] == "TokenRequest"
    assert issued["status"]["expirationTimestamp"]
    headers = {
        "Authorization": f"Bearer {issued['status']['token']}",
        "Content-Type": "application/json",
    }
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
    answer = await raw("POST", WHO, user=None, headers=headers, body=body)
    user = answer.json()["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{namespace}:robot"
    assert user["uid"] == account["metadata"]["uid"]
    assert user["groups"] == ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    await client.delete(SERVICE_ACCOUNT, "robot", namespace)


# Impersonation


async def who(raw: Raw, headers: dict[str, str], user: str = "admin") -> tuple[int, dict[str, object]]:
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
    answer = await raw("POST", WHO, user=user, body=body, headers={"Content-Type": "application/json", **headers})
    found = answer.json()
    return answer.status, found["status"]["userInfo"] if answer.status == 201 else found


async def test_impersonated_user_has_the_group_authenticated(raw: Raw) -> None:
    assert await who(raw, {"Impersonate-User": "carol"}) == (
        201,
        {"username": "carol", "groups": ["system:authenticated"]},
    )


async def test_impersonated_user_has_the_given_group_and_uid(raw: Raw) -> None:
    headers = {"Impersonate-User": "carol", "Impersonate-Group": "painters", "Impersonate-Uid": "7"}
    assert await who(raw, headers) == (
        201,
        {"username": "carol", "uid": "7", "groups": ["painters", "system:authenticated"]},
    )


async def test_impersonated_service_account_has_its_groups(raw: Raw) -> None:
    assert await who(raw, {"Impersonate-User": "system:serviceaccount:ns:sa"}) == (
        201,
        {
            "username": "system:serviceaccount:ns:sa",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"],
        },
    )


async def test_impersonated_user_has_the_given_extra(raw: Raw) -> None:
    code, user = await who(raw, {"Impersonate-User": "carol", "Impersonate-Extra-Scopes": "read"})
    assert (code, user["extra"]) == (201, {"scopes": ["read"]})


async def test_impersonating_a_group_without_a_user_is_rejected(raw: Raw) -> None:
    code, answer = await who(raw, {"Impersonate-Group": "painters"})
    assert code == 400
    assert "without impersonating a user" in str(answer["message"])


async def test_impersonation_needs_permission(raw: Raw, namespace: str) -> None:
    answer = await raw("GET", CONFIG_MAP.path(namespace), user="bob", headers={"Impersonate-User": "alice"})
    assert answer.status == 403
    assert 'User "bob" cannot impersonate' in answer.json()["message"]


async def test_impersonated_user_has_only_its_own_permissions(raw: Raw, namespace: str) -> None:
    answer = await raw("GET", CONFIG_MAP.path(namespace), headers={"Impersonate-User": "carol"})
    assert answer.status == 403
    assert answer.json()["message"].startswith('configmaps is forbidden: User "carol" cannot list resource')
