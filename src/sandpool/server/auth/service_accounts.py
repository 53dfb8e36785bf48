"""Service account tokens: JSON Web Tokens signed by the server.

A token names its service account, its audiences, its expiry and optionally an object that it is bound to. Signature and
claims never change, so they are verified once and cached. That the account and the bound object still exist, with the
same UID, is checked on every use, so that deleting either revokes the token at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, SystemClock
from sandpool.server.auth.certificates import CREDENTIAL_ID
from sandpool.server.auth.groups import authenticated
from sandpool.server.request.messages import User

ISSUER = "https://kubernetes.default.svc"
USER_PREFIX = "system:serviceaccount:"
_CACHED = 4096

# (kind, namespace, name) -> the current object, or None. Kinds: ServiceAccount, Pod, Secret, Node.
Find = Callable[[str, str, str], Object | None]


class TokenError(Exception):
    """The token is invalid; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Verified:
    user: User
    audiences: tuple[str, ...]


class ServiceAccountTokens:
    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        find: Find,
        *,
        issuer: str = ISSUER,
        clock: Clock | None = None,
    ) -> None:
        self.issuer = issuer
        self._key = key
        self._public = key.public_key()
        self._find = find
        self._clock = clock or SystemClock()
        self._key_id = _encode(
            hashlib.sha256(
                self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
            ).digest()
        )
        self._header = _encode(orjson.dumps({"alg": "ES256", "kid": self._key_id}))
        self._verified: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def now(self) -> datetime:
        return self._clock.now()

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._find(kind, namespace, name)

    def issue(
        self,
        service_account: Object,
        audiences: Sequence[str],
        seconds: int,
        *,
        bound: Object | None = None,
    ) -> tuple[str, datetime]:
        """Issue a token that is valid for ``seconds`` from now; returns it with its expiry."""
        now = self._clock.now().replace(microsecond=0)
        expires = now + timedelta(seconds=seconds)
        metadata = service_account["metadata"]
        identity: dict[str, Any] = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        if bound is not None:
            identity[bound["kind"].lower()] = _reference(bound)
            node = bound["kind"] == "Pod" and bound.get("spec", {}).get("nodeName")
            if node:
                found = self._find("Node", "", node)
                identity["node"] = _reference(found) if found else {"name": node}
        claims = {
            "aud": list(audiences),
            "exp": int(expires.timestamp()),
            "iat": int(now.timestamp()),
            "iss": self.issuer,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": identity,
            "nbf": int(now.timestamp()),
            "sub": f"{USER_PREFIX}{metadata['namespace']}:{metadata['name']}",
        }
        signed = f"{self._header}.{_encode(orjson.dumps(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}", expires

    def verify(self, token: str, audiences: Sequence[str] = ()) -> Verified:
        """The user of the token. ``audiences`` defaults to the API server itself."""
        claims = self._verified.get(token)
        if claims is None:
            claims = self._check_signature(token)
            self._verified[token] = claims
            if len(self._verified) > _CACHED:
                self._verified.popitem(last=False)
        now = self._clock.now().timestamp()
        if not claims["nbf"] <= now < claims["exp"]:
            raise TokenError("service account token has expired" if now >= claims["exp"] else "token not yet valid")
        wanted = tuple(audiences) or (self.issuer,)
        shared = tuple(audience for audience in wanted if audience in claims["aud"])
        if not shared:
            raise TokenError(
                f"token audiences {_quoted(claims['aud'])} is invalid for the target audiences {_quoted(wanted)}"
            )
        return Verified(self._user(claims), shared)

    def _check_signature(self, token: str) -> dict[str, Any]:
        signed, _, signature_text = token.rpartition(".")
        header, _, payload = signed.partition(".")
        if header != self._header:
            raise TokenError("invalid bearer token")
        try:
            signature = _decode(signature_text)
            claims: dict[str, Any] = orjson.loads(_decode(payload))
        except (ValueError, binascii.Error):
            raise TokenError("invalid bearer token") from None
        if len(signature) != 64:
            raise TokenError("invalid bearer token")
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        try:
            self._public.verify(encode_dss_signature(r, s), signed.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise TokenError("error in cryptographic primitive") from None
        if claims.get("iss") != self.issuer:
            raise TokenError("invalid bearer token")
        return claims

    def _user(self, claims: dict[str, Any]) -> User:
        """The user for verified claims, if all objects they name still exist."""
        identity = claims["kubernetes.io"]
        namespace, account = identity["namespace"], identity["serviceaccount"]
        self._must_exist("ServiceAccount", namespace, account)
        extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
        for kind in ("Pod", "Secret", "Node"):
            reference = identity.get(kind.lower())
            if reference is None:
                continue
            if kind != "Node" or "pod" not in identity:  # informational: a pod's token is not bound to its node
                self._must_exist(kind, "" if kind == "Node" else namespace, reference)
            if kind != "Secret":
                extra[f"authentication.kubernetes.io/{kind.lower()}-name"] = (reference["name"],)
                if "uid" in reference:
                    extra[f"authentication.kubernetes.io/{kind.lower()}-uid"] = (reference["uid"],)
        name = f"{USER_PREFIX}{namespace}:{account['name']}"
        return authenticated(User(name, account_groups(namespace), uid=account["uid"], extra=extra))

    def _must_exist(self, kind: str, namespace: str, reference: dict[str, str]) -> None:
        found = self._find(kind, namespace, reference["name"])
        if found is None or found["metadata"]["uid"] != reference["uid"]:
            raise TokenError(f"{kind.lower()} {reference['name']!r} of the token is gone")


def account_groups(namespace: str) -> tuple[str, str]:
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def split_account(user_name: str) -> tuple[str, str] | None:
    """Namespace and name of a service account's user name; None for other users."""
    if not user_name.startswith(USER_PREFIX):
        return None
    namespace, separator, name = user_name[len(USER_PREFIX) :].partition(":")
    return (namespace, name) if separator and namespace and name and ":" not in name else None


def _reference(obj: Object) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def _quoted(values: Sequence[str]) -> str:
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
