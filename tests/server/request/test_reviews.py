from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import (
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
)
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import BadRequest, MethodNotAllowed
from sandpool.kube.transport import Request
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new

GET_PODS = {"verb": "get", "resource": "pods", "namespace": "default"}
UNKNOWN_USER = {"user": "missing", "resourceAttributes": GET_PODS}


async def ask(client: Client, type: ResourceType, spec: Any = None, namespace: str | None = None) -> Any:
    body = new(type, None) if spec is None else new(type, None, spec=spec)
    return await client.transport.request(Request("POST", type.path(namespace), body=body))


@pytest.mark.parametrize(
    "type, spec, namespace, answer",
    [
        (TOKEN_REVIEW, {"token": "wrong"}, None, {"user": {}}),
        (SUBJECT_ACCESS_REVIEW, UNKNOWN_USER, None, {"allowed": False}),
        (LOCAL_SUBJECT_ACCESS_REVIEW, UNKNOWN_USER, "default", {"allowed": False}),
        (SELF_SUBJECT_ACCESS_REVIEW, {"resourceAttributes": GET_PODS}, None, {"allowed": True}),
        (SELF_SUBJECT_ACCESS_REVIEW, {"nonResourceAttributes": {"path": "/x", "verb": "get"}}, None, {"allowed": True}),
        (SELF_SUBJECT_RULES_REVIEW, {"namespace": "default"}, None, {"incomplete": False}),
    ],
)
async def test_every_review_is_answered(
    client: Client, type: ResourceType, spec: Any, namespace: str | None, answer: dict[str, Any]
) -> None:
    review = await ask(client, type, spec, namespace)
    assert review["kind"] == type.kind
    assert answer.items() <= {"user": {}, **review["status"]}.items()


async def test_self_subject_review_names_the_user(client: Client) -> None:
    review = await ask(client, SELF_SUBJECT_REVIEW)
    assert review["status"]["userInfo"]["username"] == "sandpool-admin"


async def test_reviews_are_not_stored(server: ApiServer, client: Client) -> None:
    before = server.store.revision
    await ask(client, SELF_SUBJECT_REVIEW)
    assert server.store.revision == before
    with pytest.raises(MethodNotAllowed):
        await client.transport.request(Request("GET", SELF_SUBJECT_REVIEW.path()))


@pytest.mark.parametrize("spec", ["x", [], {"user": 1}, {"groups": "a"}, {"resourceAttributes": []}])
async def test_malformed_review_is_rejected(client: Client, spec: Any) -> None:
    with pytest.raises(BadRequest):
        await ask(client, SUBJECT_ACCESS_REVIEW, spec)
