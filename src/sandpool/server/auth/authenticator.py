"""Authentication: maps credentials to a user. Only the public paths accept anonymous requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandpool.engine.clock import Clock, SystemClock
from sandpool.kube.errors import Unauthorized
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.auth.service_accounts import ServiceAccountTokens, TokenError, Verified
from sandpool.server.auth.tokens import StaticTokens
from sandpool.server.request.messages import User

# Paths that Kubernetes, too, serves without credentials.
PUBLIC_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version", "/version/"})


class Authenticator:
    def __init__(
        self, tokens: StaticTokens, service_accounts: ServiceAccountTokens, *, clock: Clock | None = None
    ) -> None:
        self._tokens = tokens
        self._service_accounts = service_accounts
        self._clock = clock or SystemClock()

    def authenticate(
        self,
        headers: Mapping[str, str],
        certificate: PeerCertificate | None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> User | None:
        """The user of a request; None without credentials. Raises ``Unauthorized`` for invalid ones.

        As in Kubernetes, a valid certificate wins over a token.
        """
        if certificate is not None and self._clock.now().timestamp() < certificate.expires:
            return certificate.user
        credentials = headers.get("authorization")
        if credentials is None:
            if certificate is not None:
                raise Unauthorized("Unauthorized")
            return None
        user = self._tokens.find_by_header(credentials)
        if user is not None:
            return user
        scheme, _, token = credentials.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None  # Kubernetes, too, treats other schemes as no credentials
        try:
            return self.verify(token).user
        except TokenError:
            raise Unauthorized("Unauthorized") from None

    def verify(self, token: str, audiences: Sequence[str] = ()) -> Verified:
        """The user of a bearer token. Raises ``TokenError``."""
        issuer = self._service_accounts.issuer
        user = self._tokens.find(token)
        if user is None:
            return self._service_accounts.verify(token, audiences)
        if audiences and issuer not in audiences:
            raise TokenError("invalid bearer token")  # a static token is valid for this server only
        return Verified(user, (issuer,))
