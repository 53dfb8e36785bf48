"""Who may go where: holders of a token for one sandbox, or everybody the API server knows."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import TOKEN_REVIEW
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.tokens import TokenSigner, bearer

# A failure to ask is forgotten sooner than an answer.
_FAILURE_SHARE: Final = 3.0


class ScopedTokenAuthorizer:
    """Each token opens one sandbox, whatever else the request says: the address in it must be that sandbox's anyway."""

    def __init__(self, tokens: TokenSigner, clock: Clock) -> None:
        self.tokens = tokens
        self.clock = clock

    async def __call__(self, authorization: str, wanted: Destination) -> None:
        now = self.clock.now().timestamp()
        self.tokens.check(bearer(authorization), wanted.namespace, wanted.sandbox, now)


@dataclass(frozen=True, slots=True)
class TokenReviewOptions:
    """``lifetime`` is how many seconds an answer holds, ``most`` how many are kept. Unless ``required``, who brings no
    token at all is let through. ``audiences`` are whom the token must be meant for; none: the API server's own."""

    lifetime: float = 30.0
    most: int = 2048
    required: bool = False
    audiences: tuple[str, ...] = ()


class TokenReviewAuthorizer:
    """Whoever the API server knows may go everywhere. Answers are kept by the digest of a token, not by it."""

    def __init__(self, client: Client, clock: Clock, settings: TokenReviewOptions | None = None) -> None:
        self.client = client
        self.clock = clock
        self.settings = settings or TokenReviewOptions()
        self._known: OrderedDict[bytes, tuple[float, RequestRejected | None]] = OrderedDict()  # until when, and what

    async def __call__(self, authorization: str, wanted: Destination) -> None:
        token = bearer(authorization)
        if not token:
            if self.settings.required:
                raise RequestRejected(401, "A bearer token is required.")
            return
        key = hashlib.sha256(token.encode()).digest()
        until, refusal = self._known.get(key, (0.0, None))
        if self.clock.monotonic() >= until:
            refusal = await self._ask(key, token)
        if refusal is not None:
            raise RequestRejected(refusal.status, refusal.detail)

    async def _ask(self, key: bytes, token: str) -> RequestRejected | None:
        spec = {"token": token, **({"audiences": list(self.settings.audiences)} if self.settings.audiences else {})}
        review = {"apiVersion": TOKEN_REVIEW.api_version, "kind": TOKEN_REVIEW.kind, "spec": spec}
        refusal, holds = None, self.settings.lifetime
        try:
            answer = await self.client.create(TOKEN_REVIEW, review)
            if not (answer.get("status") or {}).get("authenticated"):
                refusal = RequestRejected(401, "The token is not valid.")
        except (ApiError, ConnectionError, TimeoutError):
            refusal, holds = RequestRejected(500, "The token could not be checked."), max(holds / _FAILURE_SHARE, 1.0)
        self._known[key] = (self.clock.monotonic() + holds, refusal)
        self._known.move_to_end(key)
        while len(self._known) > self.settings.most:
            self._known.popitem(last=False)
        return refusal
