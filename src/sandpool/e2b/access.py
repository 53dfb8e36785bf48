"""Tokens and signatures of sandboxes: who may use one without the API key of its tenant.

Every sandbox has two tokens, derived from the secret of the endpoint and the UID of its claim: one for commands and
files, and one for its ports. A signed URL carries the hash of path, operation and token, in the form that E2B's
packages compute.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

from sandpool.e2b.errors import Refusal

T = TypeVar("T")

READ: Final = "read"
WRITE: Final = "write"
_VERSION: Final = "v1_"


class Tokens(NamedTuple):
    """The tokens of one sandbox."""

    access: str  # X-Access-Token
    traffic: str  # E2B-Traffic-Access-Token

    def allows(self, headers: Mapping[str, str], *, traffic: bool = False) -> bool:
        """Whether a request carries the token for commands and files; with ``traffic`` that for ports is enough."""
        given = headers.get("X-Access-Token", "")
        if hmac.compare_digest(given.encode(errors="replace"), self.access.encode()):
            return True
        given = headers.get("E2B-Traffic-Access-Token", "")
        return traffic and hmac.compare_digest(given.encode(errors="replace"), self.traffic.encode())

    def check(self, headers: Mapping[str, str], *, traffic: bool = False) -> None:
        """Raises ``Refusal`` for a request without the token; ``traffic`` is that of ``allows``."""
        if not self.allows(headers, traffic=traffic):
            raise Refusal(401, "the token of the sandbox is missing or wrong")


@lru_cache(maxsize=1 << 14)
def tokens_of(secret: bytes, claim_uid: str) -> Tokens:
    """Derive the tokens of a sandbox. They are kept, because a signed URL is compared with those of all sandboxes."""
    access, traffic = (
        hmac.new(secret, f"{purpose}:{claim_uid}".encode(), sha256).hexdigest() for purpose in ("access", "traffic")
    )
    return Tokens(access, traffic)


class SignedRequest(NamedTuple):
    """The query of a signed URL."""

    path: str
    operation: str
    user: str
    signature: str
    expiration: str

    @classmethod
    def of(cls, query: Mapping[str, str], operation: str) -> SignedRequest | None:
        """The signed request in a query; None if it has no signature."""
        signature = query.get("signature", "")
        if not signature:
            return None
        user, expiration = query.get("username", ""), query.get("signature_expiration", "")
        return cls(query.get("path", ""), operation, user, signature, expiration)

    def is_signed_with(self, access_token: str) -> bool:
        words = [self.path, self.operation, self.user, access_token, *([self.expiration] if self.expiration else [])]
        digest = sha256(":".join(words).encode(errors="surrogateescape")).digest()
        wanted = _VERSION + base64.b64encode(digest).rstrip(b"=").decode()
        return hmac.compare_digest(wanted.encode(), self.signature.encode(errors="replace"))

    def check_expiration(self, now: float) -> None:
        """Raises ``Refusal`` for a URL that has expired."""
        if not self.expiration:
            return
        if not self.expiration.isascii() or not self.expiration.isdecimal() or len(self.expiration) > 15:
            raise Refusal(401, "the expiration of the signature is not a number")
        if int(self.expiration) < now:
            raise Refusal(401, "the signature has expired")


def signer_of(request: SignedRequest, candidates: Iterable[tuple[T, Tokens]]) -> T | None:
    """The candidate whose token signed a request. URLs do not name their sandbox if all sandboxes have one address."""
    return next((each for each, tokens in candidates if request.is_signed_with(tokens.access)), None)
