"""Authorizers: which client may reach which sandbox."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import SANDBOX, SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.tokens import TokenSigner, token_of

Pending = Awaitable[None]
#: Decides by the Authorization header and the destination. Returns None if the client may go there, or an awaitable
#: that ends when that is known. Raises ``RequestRejected`` otherwise, at once or from the awaitable.
Authorizer = Callable[[str, Destination], Pending | None]

# A failure to ask the API server is cached for a shorter time than an answer, and at least for a second.
_FAILURE_SHARE: Final = 3.0
_MIN_FAILURE_SECONDS: Final = 1.0


def allow_all(authorization: str, destination: Destination) -> Pending | None:
    """The authorizer of a router that only trusted clients can connect to."""
    return None


class ScopedTokenAuthorizer:
    """Accepts tokens that name their sandboxes; see ``tokens``."""

    def __init__(self, signer: TokenSigner, clock: Clock) -> None:
        self.signer = signer
        self.clock = clock

    def __call__(self, authorization: str, destination: Destination) -> Pending | None:
        now = self.clock.now().timestamp()
        self.signer.check(token_of(authorization), destination.namespace, destination.sandbox, now)
        return None


@dataclass(frozen=True, slots=True)
class TokenReviewOptions:
    """``lifetime`` is for how many seconds a decision is cached, ``max_entries`` how many are. Clients without a token
    are rejected if ``required``. The token must be meant for one of ``audiences``; empty: the API server itself. With
    ``check_access`` its user must have access to the sandbox; otherwise every user may reach every sandbox."""

    lifetime: float = 30.0
    max_entries: int = 2048
    required: bool = True
    audiences: tuple[str, ...] = ()
    check_access: bool = True


@dataclass(frozen=True, slots=True)
class _Decision:
    expires: float
    rejection: RequestRejected | None
    user: Object | None = None  # of a TokenReview


class _DecisionCache:
    """The most recent decisions, by key."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self._decisions: OrderedDict[object, _Decision] = OrderedDict()

    def get(self, key: object, now: float) -> _Decision | None:
        decision = self._decisions.get(key)
        return decision if decision is not None and now < decision.expires else None

    def put(self, key: object, decision: _Decision) -> None:
        self._decisions[key] = decision
        self._decisions.move_to_end(key)
        while len(self._decisions) > self.max_entries:
            self._decisions.popitem(last=False)


class TokenReviewAuthorizer:
    """Asks the API server whose token it is (TokenReview), and whether that user may ``create`` the subresource
    ``sandboxes/proxy`` of the sandbox (SubjectAccessReview). Decisions are cached by the digest of the token."""

    def __init__(self, client: Client, clock: Clock, options: TokenReviewOptions | None = None) -> None:
        self.client = client
        self.clock = clock
        self.options = options or TokenReviewOptions()
        self._users = _DecisionCache(self.options.max_entries)
        self._access = _DecisionCache(self.options.max_entries)

    def __call__(self, authorization: str, destination: Destination) -> Pending | None:
        token = token_of(authorization)
        if not token:
            if self.options.required:
                raise RequestRejected(401, "A bearer token is required.")
            return None
        digest = hashlib.sha256(token.encode()).digest()
        now = self.clock.monotonic()
        user = self._users.get(digest, now)
        if user is not None:
            _raise(user.rejection)
            access = self._access.get(_access_key(digest, destination), now) if self.options.check_access else user
            if access is not None:
                _raise(access.rejection)
                return None
        return self._review(token, digest, destination)

    async def _review(self, token: str, digest: bytes, destination: Destination) -> None:
        user = self._users.get(digest, self.clock.monotonic())
        if user is None:
            user = await self._review_token(token)
            self._users.put(digest, user)
        _raise(user.rejection)
        if self.options.check_access:
            access = await self._review_access(user.user or {}, destination)
            self._access.put(_access_key(digest, destination), access)
            _raise(access.rejection)

    async def _review_token(self, token: str) -> _Decision:
        audiences = {"audiences": list(self.options.audiences)} if self.options.audiences else {}
        try:
            status = await _review(self.client, TOKEN_REVIEW, {"token": token, **audiences})
        except (ApiError, ConnectionError, TimeoutError):
            return self._failed("The token could not be checked.")
        if not status.get("authenticated"):
            return self._decided(RequestRejected(401, "The token is not valid."))
        return self._decided(None, status.get("user"))

    async def _review_access(self, user: Object, destination: Destination) -> _Decision:
        attributes = {
            "group": SANDBOX.group,
            "version": SANDBOX.version,
            "resource": SANDBOX.plural,
            "subresource": "proxy",
            "verb": "create",
            "namespace": destination.namespace,
            "name": destination.sandbox,
        }
        try:
            allowed = await is_allowed(self.client, user, attributes)
        except (ApiError, ConnectionError, TimeoutError):
            return self._failed("The access to the sandbox could not be checked.")
        if not allowed:
            text = f"The user of the token may not create sandboxes/proxy of {destination.sandbox}."
            return self._decided(RequestRejected(403, text))
        return self._decided(None)

    def _decided(self, rejection: RequestRejected | None, user: Object | None = None) -> _Decision:
        return _Decision(self.clock.monotonic() + self.options.lifetime, rejection, user)

    def _failed(self, text: str) -> _Decision:
        lifetime = max(self.options.lifetime / _FAILURE_SHARE, _MIN_FAILURE_SECONDS)
        return _Decision(self.clock.monotonic() + lifetime, RequestRejected(500, text))


async def is_allowed(client: Client, user: Object, attributes: Object) -> bool:
    """Ask the API server in a SubjectAccessReview. ``user`` is of a TokenReview. Raises what ``Client.create`` does."""
    spec = {
        "user": user.get("username") or "",
        "groups": user.get("groups") or [],
        "uid": user.get("uid") or "",
        "extra": user.get("extra") or {},
        "resourceAttributes": attributes,
    }
    return bool((await _review(client, SUBJECT_ACCESS_REVIEW, spec)).get("allowed"))


async def _review(client: Client, kind: ResourceType, spec: Object) -> Object:
    review = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}
    status: Object = (await client.create(kind, review)).get("status") or {}
    return status


def _access_key(digest: bytes, destination: Destination) -> object:
    return digest, destination.namespace, destination.sandbox


def _raise(rejection: RequestRejected | None) -> None:
    """Raise a copy: a traceback would otherwise grow with every use of the cached one."""
    if rejection is not None:
        raise RequestRejected(rejection.status, rejection.detail)
