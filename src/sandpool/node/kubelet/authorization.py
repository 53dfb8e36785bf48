"""Authenticates and authorizes clients of the node's own API.

The TLS handshake verifies the client's certificate. What its holder may do is decided by the API, as for every kubelet:
a SubjectAccessReview for ``nodes/proxy`` of this node. Without an answer the request is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from sandpool.api.kinds import SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Forbidden, ServiceUnavailable, Unauthorized
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.request.messages import User

#: Seconds for which a decision is cached, and so for which a revoked permission still works.
REMEMBERED: Final = 10.0

Verb = Literal["get", "create"]


class CertificateAuthenticator:
    """Authenticates clients by their certificate alone. Tokens and other headers are ignored."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def authenticate(
        self,
        headers: Mapping[str, str],
        certificate: PeerCertificate | None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> User | None:
        if certificate is None:
            return None
        if certificate.expires <= self.clock.now().timestamp():
            raise Unauthorized("Unauthorized")
        return certificate.user


class NodeAuthorizer:
    """Asks the API and caches its answers for a moment."""

    def __init__(self, client: Client, clock: Clock, node: str) -> None:
        self.client = client
        self.clock = clock
        self.node = node
        self._answers: dict[tuple[object, ...], tuple[bool, float]] = {}  # decision, and when it expires

    async def require(self, user: User, verb: Verb) -> None:
        """Raises ``Forbidden``, or ``ServiceUnavailable`` if the API cannot be reached."""
        key = (user.name, user.groups, tuple(sorted(user.extra.items())), verb)
        now = self.clock.monotonic()
        allowed, until = self._answers.get(key, (False, now))
        if until <= now:
            allowed = await self._ask(user, verb)
            self._answers = {other: answer for other, answer in self._answers.items() if answer[1] > now}
            self._answers[key] = (allowed, now + REMEMBERED)
        if not allowed:
            raise Forbidden(f"Forbidden (user={user.name}, verb={verb}, resource=nodes, subresource=proxy)")

    async def _ask(self, user: User, verb: Verb) -> bool:
        attributes = {"verb": verb, "version": "v1", "resource": "nodes", "subresource": "proxy", "name": self.node}
        review: Object = {
            "apiVersion": SUBJECT_ACCESS_REVIEW.api_version,
            "kind": SUBJECT_ACCESS_REVIEW.kind,
            "spec": {
                "user": user.name,
                "groups": list(user.groups),
                "extra": {name: list(values) for name, values in user.extra.items()},
                "resourceAttributes": attributes,
            },
        }
        try:
            answer = await self.client.create(SUBJECT_ACCESS_REVIEW, review)
        except (ApiError, OSError) as error:
            raise ServiceUnavailable(f"the node could not create a SubjectAccessReview: {error}") from error
        status = answer.get("status") or {}
        return status.get("allowed") is True and status.get("denied") is not True
