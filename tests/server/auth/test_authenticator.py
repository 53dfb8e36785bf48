"""Credentials of every kind, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpool.kube.errors import Unauthorized
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.auth.service_accounts import TokenError
from sandpool.server.auth.tokens import StaticTokens
from sandpool.server.request.messages import User

if TYPE_CHECKING:
    from tests.server.auth.conftest import World

ISSUER = "https://kubernetes.default.svc"


@pytest.fixture
def authenticator(world: World) -> Authenticator:
    tokens = StaticTokens()
    tokens.add("t", User("alice"))
    return Authenticator(tokens, world.tokens, clock=world)


def name(user: User | None) -> str | None:
    return user.name if user else None


@pytest.mark.parametrize("header", ["Bearer t", "bearer t", "BEARER   t ", " Bearer t"])
def test_bearer_token_authenticates(authenticator: Authenticator, header: str) -> None:
    assert name(authenticator.authenticate({"authorization": header}, None)) == "alice"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic abc"}, {"authorization": "Bearer "}])
def test_request_without_credentials_is_anonymous(authenticator: Authenticator, headers: dict[str, str]) -> None:
    assert authenticator.authenticate(headers, None) is None


@pytest.mark.parametrize("token", ["wrong", "t t", "a.b.c", "tt"])
def test_invalid_token_is_unauthorized(authenticator: Authenticator, token: str) -> None:
    with pytest.raises(Unauthorized, match=r"^Unauthorized$"):
        authenticator.authenticate({"authorization": f"Bearer {token}"}, None)


def test_service_account_token_authenticates(authenticator: Authenticator, world: World) -> None:
    token, _ = world.tokens.issue(world.account, [ISSUER], 600)
    user = authenticator.authenticate({"authorization": f"Bearer {token}"}, None)
    assert name(user) == "system:serviceaccount:ns:robot"
    world.pass_time(601)
    with pytest.raises(Unauthorized):
        authenticator.authenticate({"authorization": f"Bearer {token}"}, None)


def test_valid_certificate_wins_over_a_token(authenticator: Authenticator, world: World) -> None:
    certificate = PeerCertificate(User("carl"), world.now().timestamp() + 10)
    assert name(authenticator.authenticate({"authorization": "Bearer t"}, certificate)) == "carl"
    assert name(authenticator.authenticate({"authorization": "Bearer wrong"}, certificate)) == "carl"
    world.pass_time(11)
    assert name(authenticator.authenticate({"authorization": "Bearer t"}, certificate)) == "alice"
    with pytest.raises(Unauthorized):
        authenticator.authenticate({}, certificate)


def test_static_tokens_are_valid_for_this_server_only(authenticator: Authenticator) -> None:
    assert authenticator.verify("t").audiences == (ISSUER,)
    assert authenticator.verify("t", ["x", ISSUER]).audiences == (ISSUER,)
    with pytest.raises(TokenError, match="invalid bearer token"):
        authenticator.verify("t", ["x"])
