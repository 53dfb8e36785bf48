"""Service account tokens: the account they authenticate, and when they stop."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.server.auth.service_accounts import ServiceAccountTokens, TokenError, split_account

if TYPE_CHECKING:
    from tests.server.auth.conftest import World

ISSUER = "https://kubernetes.default.svc"


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    return orjson.loads(header), orjson.loads(claims)


def test_token_authenticates_its_account(world: World) -> None:
    token, expires = world.tokens.issue(world.account, [ISSUER], 600)
    assert expires == datetime(2026, 11, 16, 8, 10, 0, tzinfo=UTC)
    verified = world.tokens.verify(token)
    assert verified.audiences == (ISSUER,)
    assert verified.user.name == "system:serviceaccount:ns:robot"
    assert verified.user.uid == "ServiceAccount-robot-uid"
    assert verified.user.groups == ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated")
    header, claims = parts(token)
    assert header["alg"] == "ES256"
    assert claims.pop("jti") == verified.user.extra["authentication.kubernetes.io/credential-id"][0][4:]
    assert claims == {
        "aud": [ISSUER],
        "exp": int(expires.timestamp()),
        "iat": int(expires.timestamp()) - 600,
        "nbf": int(expires.timestamp()) - 600,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "ServiceAccount-robot-uid"}},
        "sub": "system:serviceaccount:ns:robot",
    }


def test_token_expires(world: World) -> None:
    token, _ = world.tokens.issue(world.account, [ISSUER], 600)
    world.pass_time(599)
    world.tokens.verify(token)
    world.pass_time(1)
    with pytest.raises(TokenError, match="expired"):
        world.tokens.verify(token)


def test_token_from_the_future_is_rejected(world: World) -> None:
    token, _ = world.tokens.issue(world.account, [ISSUER], 600)
    world.pass_time(-1)
    with pytest.raises(TokenError, match="not yet"):
        world.tokens.verify(token)


@pytest.mark.parametrize(
    ("issued", "asked", "shared"),
    [
        (["a", "b"], ["b", "c"], ("b",)),
        (["a"], ["b"], None),
        (["a"], [], None),
        ([ISSUER], [], (ISSUER,)),
    ],
)
def test_token_is_valid_for_its_audiences_only(
    world: World, issued: list[str], asked: list[str], shared: tuple[str, ...] | None
) -> None:
    token, _ = world.tokens.issue(world.account, issued, 600)
    if shared is None:
        with pytest.raises(TokenError, match=r'token audiences \["a"\] is invalid for the target audiences \["'):
            world.tokens.verify(token, asked)
    else:
        assert world.tokens.verify(token, asked).audiences == shared


def test_deleting_the_account_revokes_its_tokens(world: World) -> None:
    token, _ = world.tokens.issue(world.account, [ISSUER], 600)
    world.tokens.verify(token)
    world.objects.clear()
    with pytest.raises(TokenError, match="gone"):
        world.tokens.verify(token)
    again = world.add("ServiceAccount", "ns", "robot")
    again["metadata"]["uid"] = "another"
    with pytest.raises(TokenError, match="gone"):
        world.tokens.verify(token)


def test_token_bound_to_a_pod_is_revoked_with_the_pod(world: World) -> None:
    world.add("Node", "", "node-1")
    pod = world.add("Pod", "ns", "p", spec={"nodeName": "node-1"})
    token, _ = world.tokens.issue(world.account, [ISSUER], 600, bound=pod)
    extra = world.tokens.verify(token).user.extra
    assert extra["authentication.kubernetes.io/pod-name"] == ("p",)
    assert extra["authentication.kubernetes.io/pod-uid"] == ("Pod-p-uid",)
    assert extra["authentication.kubernetes.io/node-name"] == ("node-1",)
    del world.objects["Node", "", "node-1"]
    world.tokens.verify(token)
    del world.objects["Pod", "ns", "p"]
    with pytest.raises(TokenError, match="pod 'p' of the token is gone"):
        world.tokens.verify(token)


@pytest.mark.parametrize(("kind", "namespace"), [("Secret", "ns"), ("Node", "")])
def test_token_bound_to_another_object_is_revoked_with_it(world: World, kind: str, namespace: str) -> None:
    bound = world.add(kind, namespace, "x")
    token, _ = world.tokens.issue(world.account, [ISSUER], 600, bound=bound)
    world.tokens.verify(token)
    del world.objects[kind, namespace, "x"]
    with pytest.raises(TokenError, match="gone"):
        world.tokens.verify(token)


def test_token_of_another_server_is_rejected(world: World) -> None:
    other = ServiceAccountTokens(ec.generate_private_key(ec.SECP256R1()), world.find, clock=world)
    token, _ = other.issue(world.account, [ISSUER], 600)
    with pytest.raises(TokenError, match="invalid bearer token"):
        world.tokens.verify(token)


def test_unsigned_token_is_rejected(world: World) -> None:
    _, claims = parts(world.tokens.issue(world.account, [ISSUER], 600)[0])
    header = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(orjson.dumps(claims)).decode().rstrip("=")
    with pytest.raises(TokenError):
        world.tokens.verify(f"{header}.{body}.")


def test_token_with_changed_claims_is_rejected(world: World) -> None:
    header, body, signature = world.tokens.issue(world.account, [ISSUER], 600)[0].split(".")
    claims = base64.urlsafe_b64decode(body + "==").replace(b"robot", b"admin")
    forged = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    with pytest.raises(TokenError):
        world.tokens.verify(f"{header}.{forged}.{signature}")


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60), st.integers(0, 2))
def test_malformed_token_is_rejected(world: World, text: str, place: int) -> None:
    genuine = world.tokens.issue(world.account, [ISSUER], 600)[0].split(".")
    if text == genuine[place]:
        return
    genuine[place] = text
    for token in (text, ".".join(genuine)):
        with pytest.raises(TokenError):
            world.tokens.verify(token)


def test_token_cache_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.server.auth.service_accounts._CACHED", 2)
    tokens = [world.tokens.issue(world.account, [ISSUER], 600)[0] for _ in range(5)]
    for token in tokens:
        world.tokens.verify(token)
    assert list(world.tokens._verified) == tokens[-2:]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("system:serviceaccount:a:b", ("a", "b")),
        ("system:serviceaccount:a:", None),
        ("system:serviceaccount::b", None),
        ("system:serviceaccount:a", None),
        ("system:serviceaccount:a:b:c", None),
        ("alice", None),
    ],
)
def test_account_names_are_split(name: str, expected: tuple[str, str] | None) -> None:
    assert split_account(name) == expected
