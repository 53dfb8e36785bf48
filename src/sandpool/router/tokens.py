"""Tokens that grant access to sandboxes of one namespace until a certain time.

``v1.<payload>.<signature>``: the payload names what the token grants, signed with a secret that the router shares with
those who issue tokens. For one sandbox the format is that of the "scoped tokens" of the agent-sandbox router. Tokens
for several sandboxes have ``names`` instead of ``name``; ``*`` grants all sandboxes of the namespace, and the namespace
``*`` all namespaces. ``*`` is not a valid name, so routers that do not know it reject such a token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any, Final, NamedTuple

import orjson

from sandpool.router.destination import RequestRejected

ALL: Final = "*"
MIN_SECRET_BYTES: Final = 32
_VERSION: Final = "v1"
# Keeps a signature from being valid for another purpose of the same secret.
_DOMAIN: Final = b"agent-sandbox/scoped-token/v1."


class TokenScope(NamedTuple):
    """The grant of a token: ``sandboxes`` of ``namespace``, before ``until`` in seconds since the epoch."""

    namespace: str
    sandboxes: tuple[str, ...]
    until: int

    def grants(self, namespace: str, sandbox: str) -> bool:
        if self.namespace not in (namespace, ALL):
            return False
        return sandbox in self.sandboxes or ALL in self.sandboxes


class TokenSigner:
    """Issues and checks tokens with one secret."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret.strip()
        if len(self.secret) < MIN_SECRET_BYTES:
            raise ValueError(
                f"the secret for tokens has {len(self.secret)} bytes; at least {MIN_SECRET_BYTES} are required"
            )

    def make(self, scope: TokenScope) -> str:
        names: dict[str, Any] = {"names": scope.sandboxes}
        if len(scope.sandboxes) == 1:
            names = {"name": scope.sandboxes[0]}
        payload = encode(orjson.dumps({"ns": scope.namespace, **names, "exp": scope.until}))
        return f"{_VERSION}.{payload}.{encode(self.sign(payload))}"

    def check(self, token: str, namespace: str, sandbox: str, now: float) -> None:
        """Raise ``RequestRejected`` unless the token grants access to this sandbox now."""
        scope = self.read(token)
        if scope is None or now >= scope.until:
            raise RequestRejected(401, "The token is missing, wrong or expired.")
        if not scope.grants(namespace, sandbox):
            raise RequestRejected(403, "The token is for another sandbox.")

    def read(self, token: str) -> TokenScope | None:
        """The grant of a token; None for one that was not made with this secret. It may have expired."""
        version, _, rest = token.partition(".")
        payload, _, signature = rest.partition(".")
        given = decode(signature)
        if version != _VERSION or given is None or not hmac.compare_digest(given, self.sign(payload)):
            return None
        content = decode(payload)
        try:
            document = orjson.loads(content or b"")
            names = document["names"] if "names" in document else [document["name"]]
            return TokenScope(str(document["ns"]), tuple(map(str, names)), int(document["exp"]))
        except (ValueError, KeyError, TypeError):
            return None

    def sign(self, payload: str) -> bytes:
        """The signature of a payload."""
        return hmac.digest(self.secret, _DOMAIN + payload.encode("utf-8", "replace"), "sha256")


def token_of(authorization: str) -> str:
    """Return the token in an Authorization header, empty if there is none.

    Besides Bearer this reads Basic, with the token as password: HTTP libraries send that for ``http://any:TOKEN@host``,
    so a client that takes only a URL can send a token too."""
    scheme, _, credentials = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return credentials.strip()
        case "basic":
            try:
                decoded = base64.b64decode(credentials.strip(), validate=True).decode()
            except ValueError:
                return ""
            return decoded.partition(":")[2]
    return ""


def encode(data: bytes) -> str:
    """Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes | None:
    """The reverse of ``encode``, with or without padding; None for any other text. So a token has one spelling."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode(data) == text.rstrip("=") else None
