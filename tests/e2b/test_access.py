from __future__ import annotations

import pytest

from sandpool.e2b.access import READ, WRITE, SignedRequest, signer_of, tokens_of
from sandpool.e2b.errors import Refusal

TOKENS = tokens_of(b"secret", "uid")


def test_tokens_differ_by_purpose_sandbox_and_secret() -> None:
    others = (tokens_of(b"secret", "other"), tokens_of(b"another", "uid"))
    assert len({*TOKENS, *others[0], *others[1]}) == 6
    assert tokens_of(b"secret", "uid") == TOKENS


def test_token_for_ports_does_not_open_commands() -> None:
    assert TOKENS.allows({"X-Access-Token": TOKENS.access})
    assert not TOKENS.allows({"X-Access-Token": TOKENS.traffic})
    assert not TOKENS.allows({"E2B-Traffic-Access-Token": TOKENS.traffic})
    assert TOKENS.allows({"E2B-Traffic-Access-Token": TOKENS.traffic}, traffic=True)
    assert not TOKENS.allows({"X-Access-Token": "größe\udcff"}, traffic=True)
    assert not TOKENS.allows({})


# What the published package computes for this path, user, token and time.
SIGNATURE = "v1_btULS2NSsavjDAj/72W6qxU/V0JZWoG5sbSOw4m8m+0"
KNOWN = {"path": "a b/ö", "username": "user", "signature_expiration": "1800000000", "signature": SIGNATURE}


def test_signature_is_that_of_the_published_package() -> None:
    signed = SignedRequest.of(KNOWN, READ)
    assert signed is not None and signed.is_signed_with("token")


@pytest.mark.parametrize(
    ("name", "value"),
    [("path", "a b/o"), ("username", ""), ("signature_expiration", "1800000001"), ("signature", "v1_x")],
)
def test_signature_covers_everything_that_is_in_the_url(name: str, value: str) -> None:
    signed = SignedRequest.of({**KNOWN, name: value}, READ)
    assert signed is not None and not signed.is_signed_with("token")


def test_signature_covers_the_operation_and_the_token() -> None:
    written, read = SignedRequest.of(KNOWN, WRITE), SignedRequest.of(KNOWN, READ)
    assert written is not None and not written.is_signed_with("token")
    assert read is not None and not read.is_signed_with("other")
    candidates = [("first", tokens_of(b"x", "1")), ("second", TOKENS._replace(access="token"))]
    assert signer_of(read, candidates) == "second"
    assert signer_of(written, candidates) is None


def test_url_expires() -> None:
    signed = SignedRequest.of(KNOWN, READ)
    assert signed is not None
    signed.check_expiration(1_800_000_000)
    with pytest.raises(Refusal, match="expired"):
        signed.check_expiration(1_800_000_001)
    with pytest.raises(Refusal, match="not a number"):
        signed._replace(expiration="soon").check_expiration(0)
    signed._replace(expiration="").check_expiration(1e12)


def test_query_without_signature_is_not_signed() -> None:
    assert SignedRequest.of({"path": "x"}, READ) is None
