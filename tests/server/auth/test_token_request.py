"""TokenRequest: defaults, limits and bindings, in Kubernetes' words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandpool.kube.errors import ApiError
from sandpool.server.auth.token_request import token_request

if TYPE_CHECKING:
    from tests.server.auth.conftest import World

ISSUER = "https://kubernetes.default.svc"


def request(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": metadata or {},
        "spec": spec,
    }


def test_empty_token_request_gets_an_hour(world: World) -> None:
    answer = token_request(request(), world.account, world.tokens)
    token = answer["status"].pop("token")
    assert answer == {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": "robot",
            "namespace": "ns",
            "uid": "ServiceAccount-robot-uid",
            "creationTimestamp": "2026-11-16T08:00:00Z",
        },
        "spec": {"audiences": [ISSUER], "expirationSeconds": 3600, "boundObjectRef": None},
        "status": {"expirationTimestamp": "2026-11-16T09:00:00Z"},
    }
    assert world.tokens.verify(token).user.name == "system:serviceaccount:ns:robot"


def test_token_request_honours_audience_expiry_and_binding(world: World) -> None:
    pod = world.add("Pod", "ns", "p", spec={"serviceAccountName": "robot"})
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
    asked = request({"name": "robot"}, audiences=["x"], expirationSeconds=600, boundObjectRef=reference)
    answer = token_request(asked, world.account, world.tokens)
    verified = world.tokens.verify(answer["status"]["token"], ["x"])
    assert verified.user.extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert answer["spec"]["boundObjectRef"] == reference


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (
            request({"name": "other"}),
            422,
            'TokenRequest.authentication.k8s.io "robot" is invalid: metadata.name: Invalid value: "other": must match '
            "the service account name if specified",
        ),
        (
            request({"namespace": "other"}),
            422,
            'TokenRequest.authentication.k8s.io "robot" is invalid: metadata.namespace: Invalid value: "other": must '
            "match the service account namespace if specified",
        ),
        (
            request({"uid": "u"}),
            409,
            'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "robot": the UID in the token request '
            "(u) does not match the UID of the service account (ServiceAccount-robot-uid)",
        ),
        (
            request(expirationSeconds=60),
            422,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 60: may not '
            "specify a duration less than 10 minutes",
        ),
        (
            request(expirationSeconds=6000000000000),
            422,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 6000000000000: '
            "may not specify a duration larger than 2^32 seconds",
        ),
        (
            request(boundObjectRef={"kind": "ConfigMap", "name": "q"}),
            400,
            "cannot bind token to object of type /, Kind=ConfigMap",
        ),
        (
            request(boundObjectRef={"kind": "Pod", "apiVersion": "apps/v1", "name": "q"}),
            400,
            "cannot bind token to object of type apps/v1, Kind=Pod",
        ),
        (request(boundObjectRef={"kind": "Pod", "name": "q"}), 404, 'pods "q" not found'),
        (
            request(boundObjectRef={"kind": "Pod", "name": "alien"}),
            400,
            'cannot bind token for serviceaccount "robot" to pod running with different serviceaccount name.',
        ),
        (
            request(boundObjectRef={"kind": "Secret", "name": "s", "uid": "old"}),
            409,
            'Operation cannot be fulfilled on Secret "s": the UID in the bound object reference (old) does not match '
            "the UID in record. The object might have been deleted and then recreated",
        ),
    ],
)
def test_invalid_token_requests_are_rejected(world: World, asked: dict[str, Any], code: int, message: str) -> None:
    world.add("Pod", "ns", "alien", spec={"serviceAccountName": "other"})
    world.add("Secret", "ns", "s")
    with pytest.raises(ApiError) as refusal:
        token_request(asked, world.account, world.tokens)
    assert (refusal.value.code, refusal.value.message) == (code, message)
