"""Authentication of requests that kube-apiserver forwards: the requestheader protocol of the aggregation layer.

kube-apiserver authenticates its client and names it in headers of the request that it forwards, ``X-Remote-User`` and
others. Any client can send such headers. They are believed only from a client whose certificate is signed by the CA of
the proxy, which signs nothing else, and has a common name that is allowed. The CA, the names and the headers are in
the ConfigMap ``kube-system/extension-apiserver-authentication``, which kube-apiserver maintains.

The TLS handshake verifies the certificate, so a certificate of any other CA never gets as far as this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import orjson
from cryptography import x509

from sandpool.engine.clock import Clock
from sandpool.kube.errors import Unauthorized
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.auth.groups import ANONYMOUS, UNAUTHENTICATED, authenticated
from sandpool.server.request.messages import User

_CA: Final = "requestheader-client-ca-file"
_NAMES: Final = "requestheader-allowed-names"
_USER: Final = "requestheader-username-headers"
_UID: Final = "requestheader-uid-headers"
_GROUP: Final = "requestheader-group-headers"
_EXTRA: Final = "requestheader-extra-headers-prefix"

Fields = Sequence[tuple[str, str]]


class InvalidConfig(Exception):
    """The ConfigMap does not configure the aggregation layer. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class RequestHeaderConfig:
    """Whom to believe, and which headers name the user. Names of headers are in lower case."""

    client_ca: str  # PEM
    allowed_names: frozenset[str]  # common names of the proxy; empty allows any that the CA has signed
    user_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def read(cls, data: Mapping[str, str]) -> RequestHeaderConfig:
        """Read the data of the ConfigMap. Raises ``InvalidConfig``."""
        client_ca = data.get(_CA, "")
        if not client_ca:
            raise InvalidConfig(
                f"the ConfigMap kube-system/extension-apiserver-authentication has no {_CA}: the aggregation layer of "
                "this cluster is off; start kube-apiserver with --requestheader-client-ca-file, "
                "--proxy-client-cert-file and --proxy-client-key-file"
            )
        try:
            x509.load_pem_x509_certificates(client_ca.encode())
        except ValueError as error:
            raise InvalidConfig(f"{_CA} of the ConfigMap is no certificate: {error}") from None
        return cls(
            client_ca,
            frozenset(_strings(data, _NAMES)),
            _headers(data, _USER),
            _headers(data, _UID),
            _headers(data, _GROUP),
            _headers(data, _EXTRA),
        )


def _headers(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(name.lower() for name in _strings(data, key))


def _strings(data: Mapping[str, str], key: str) -> list[str]:
    """A list of strings in JSON; empty if the ConfigMap lacks the key, as that of an older kube-apiserver may."""
    try:
        found = orjson.loads(data.get(key) or "[]")
    except orjson.JSONDecodeError as error:
        raise InvalidConfig(f"{key} of the ConfigMap is not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidConfig(f"{key} of the ConfigMap is not a list of strings")
    return found


class RequestHeaderAuthenticator:
    """Authenticates forwarded requests. ``config`` may be replaced at any time and decides about later requests."""

    def __init__(self, config: RequestHeaderConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock

    def authenticate(
        self, headers: Mapping[str, str], certificate: PeerCertificate | None, fields: Fields = ()
    ) -> User | None:
        """The user that the proxy names; None if the caller has no certificate or names no user."""
        if certificate is None:
            return None
        if certificate.expires <= self._clock.now().timestamp():
            raise Unauthorized("Unauthorized")
        config = self.config
        if config.allowed_names and certificate.user.name not in config.allowed_names:
            raise Unauthorized("Unauthorized")
        return _named(config, fields)


def _named(config: RequestHeaderConfig, fields: Fields) -> User | None:
    name = next(_values(fields, config.user_headers), "")
    if not name:
        return None
    groups = tuple(_values(fields, config.group_headers))
    user = User(name, groups, next(_values(fields, config.uid_headers), ""), _extra(fields, config.extra_prefixes))
    # kube-apiserver forwards anonymous requests, too, if it accepts them.
    return user if name == ANONYMOUS.name or UNAUTHENTICATED in groups else authenticated(user)


def _values(fields: Fields, names: Sequence[str]) -> Iterator[str]:
    """The values of headers that are not empty, in the order of ``names``."""
    return (_text(value) for wanted in names for name, value in fields if name == wanted and value)


def _extra(fields: Fields, prefixes: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Keys are percent-encoded because the name of a header has no capitals and few other characters."""
    extra: dict[str, tuple[str, ...]] = {}
    for prefix in prefixes:
        for name, value in fields:
            if name.startswith(prefix):
                key = unquote(name[len(prefix) :])
                extra[key] = (*extra.get(key, ()), _text(value))
    return extra


def _text(value: str) -> str:
    """The text of a header: the proxy sends UTF-8, and the parser decodes every byte to one character."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Unauthorized("Unauthorized") from None
