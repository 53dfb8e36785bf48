"""Tokens that open one sandbox until a certain time, and nothing else.

``v1.<what>.<signature>``: what is allowed is in the token itself, signed with a secret only its makers have. The format
is the one the agent-sandbox router knows as "scoped tokens".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, NamedTuple

import orjson

from sandpool.router.destination import RequestRejected

_VERSION: Final = "v1"
# Keeps a signature from meaning anything in another place where the same secret is used.
_DOMAIN: Final = b"agent-sandbox/scoped-token/v1."
_SHORTEST_SECRET: Final = 32


class TokenScope(NamedTuple):
    namespace: str
    sandbox: str
    until: int  # seconds since the epoch; not valid any more from then on


class TokenSigner:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret.strip()
        if len(self._secret) < _SHORTEST_SECRET:
            raise ValueError(f"the secret of tokens has {len(self._secret)} bytes; it must have at least 32")

    def make(self, scope: TokenScope) -> str:
        payload = _encode(orjson.dumps({"ns": scope.namespace, "name": scope.sandbox, "exp": scope.until}))
        return f"{_VERSION}.{payload}.{_encode(self._sign(payload))}"

    def check(self, token: str, namespace: str, sandbox: str, now: float) -> None:
        """Raises ``RequestRejected`` unless the token opens this sandbox now."""
        scope = self._read(token)
        if scope is None or now >= scope.until:
            raise RequestRejected(401, "The token is missing, wrong or expired.")
        if (scope.namespace, scope.sandbox) != (namespace, sandbox):
            raise RequestRejected(403, "The token is for another sandbox.")

    def _read(self, token: str) -> TokenScope | None:
        version, _, rest = token.partition(".")
        payload, _, signature = rest.partition(".")
        given = _decode(signature)
        if version != _VERSION or given is None or not hmac.compare_digest(given, self._sign(payload)):
            return None
        content = _decode(payload)
        try:
            document = orjson.loads(content or b"")
            return TokenScope(str(document["ns"]), str(document["name"]), int(document["exp"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _sign(self, payload: str) -> bytes:
        return hmac.new(self._secret, _DOMAIN + payload.encode(), hashlib.sha256).digest()


def bearer(authorization: str) -> str:
    """The token in an Authorization header; empty if there is none."""
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
