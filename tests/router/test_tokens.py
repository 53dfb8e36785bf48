from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.router.destination import RequestRejected
from sandpool.router.tokens import ALL, TokenScope, TokenSigner, token_of

SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS = TokenSigner(SECRET)
TOKEN = TOKENS.make(TokenScope("team", ("box",), 1000))
FORGED = TokenSigner(SECRET[::-1]).make(TokenScope("team", ("box",), 1000))


def refused(token: str, namespace: str = "team", sandbox: str = "box", now: float = 999.0) -> int:
    with pytest.raises(RequestRejected) as refusal:
        TOKENS.check(token, namespace, sandbox, now)
    return refusal.value.status


def test_token_opens_its_sandbox_until_it_expires() -> None:
    TOKENS.check(TOKEN, "team", "box", 999.9)
    assert refused(TOKEN, now=1000) == 401


def test_token_opens_no_other_sandbox() -> None:
    assert refused(TOKEN, sandbox="other") == 403
    assert refused(TOKEN, namespace="other") == 403


def test_token_for_several_sandboxes_opens_each_of_them() -> None:
    token = TOKENS.make(TokenScope("team", ("one", "two"), 1000))
    for sandbox in ("one", "two"):
        TOKENS.check(token, "team", sandbox, 999)
    assert refused(token, sandbox="three") == 403
    assert refused(token, sandbox="one", namespace="other") == 403


def test_token_for_a_namespace_opens_every_sandbox_in_it() -> None:
    token = TOKENS.make(TokenScope("team", (ALL,), 1000))
    TOKENS.check(token, "team", "any", 999)
    assert refused(token, sandbox="any", namespace="other") == 403
    assert refused(token, sandbox="any", now=1000) == 401


def test_token_of_the_owner_opens_every_sandbox() -> None:
    TOKENS.check(TOKENS.make(TokenScope(ALL, (ALL,), 1000)), "any", "any", 999)


@pytest.mark.parametrize("token", ["", "v1", "v1..", "v2" + TOKEN[2:], TOKEN[:-1], TOKEN + "x", "v1." + TOKEN, FORGED])
def test_unsigned_token_is_rejected(token: str) -> None:
    assert refused(token) == 401


@given(st.text(max_size=40), st.text(max_size=40))
def test_forged_token_is_rejected(payload: str, signature: str) -> None:
    assert refused(f"v1.{payload}.{signature}") == 401


def test_short_secret_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least 32 are required"):
        TokenSigner(b"short" + b" " * 40)


def test_token_has_the_documented_format() -> None:
    version, payload, signature = TOKEN.split(".")
    assert version == "v1"
    assert payload == "eyJucyI6InRlYW0iLCJuYW1lIjoiYm94IiwiZXhwIjoxMDAwfQ"
    assert "=" not in signature
    assert len(signature) == 43


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", ""),
        ("Basic eDp0b2tlbg==", "token"),
        ("Basic \xe9", ""),
        ("Digest x", ""),
        ("", ""),
    ],
)
def test_token_is_read_from_the_authorization_header(header: str, token: str) -> None:
    assert token_of(header) == token
