"""Authorizers: which client may reach which sandbox."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import SANDBOX, SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import KeyedLimits, RateLimiter, network_of
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.tokens import TokenSigner, token_of

Pending = Awaitable[None]
#: Decides by the Authorization header, the destination and the client's address. Returns None if the client may go
#: there, or an awaitable that ends when that is known. Raises ``RequestRejected`` otherwise, at once or from the
#: awaitable.
Authorizer = Callable[[str, Destination, str], Pending | None]

# A failure to ask the API server is cached for a shorter time than an answer, and at least for a second.
_FAILURE_SHARE: Final = 3.0
_MIN_FAILURE_SECONDS: Final = 1.0

# Reviews that clients may cause, per second and at once: by tokens that turn out not to be valid, per address and in
# all, and by access to further sandboxes, per user. Requests wait for their turn, the longest for this many seconds.
_PER_ADDRESS: Final = (100.0, 256)
_OF_ALL: Final = (400.0, 2048)
_PER_USER: Final = (100.0, 1024)
_LONGEST_WAIT: Final = 10.0


def allow_all(authorization: str, destination: Destination, address: str) -> Pending | None:
    """The authorizer of a router that only trusted clients can connect to."""
    return None


class ScopedTokenAuthorizer:
    """Accepts tokens that name their sandboxes; see ``tokens``."""

    def __init__(self, signer: TokenSigner, clock: Clock) -> None:
        self.signer = signer
        self.clock = clock

    def __call__(self, authorization: str, destination: Destination, address: str) -> Pending | None:
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
    """The most recent decisions, by key. Rejections are kept apart: clients can invent any number of tokens and names,
    and must not replace the decisions about others."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self._accepted: OrderedDict[object, _Decision] = OrderedDict()
        self._rejected: OrderedDict[object, _Decision] = OrderedDict()

    def get(self, key: object, now: float) -> _Decision | None:
        decision = self._accepted.get(key) or self._rejected.get(key)
        return decision if decision is not None and now < decision.expires else None

    def put(self, key: object, decision: _Decision) -> None:
        decisions, others = self._accepted, self._rejected
        if decision.rejection is not None:
            decisions, others = others, decisions
        others.pop(key, None)
        decisions[key] = decision
        decisions.move_to_end(key)
        while len(decisions) > self.max_entries:
            decisions.popitem(last=False)


class TokenReviewAuthorizer:
    """Asks the API server whose token it is (TokenReview), and whether that user may ``create`` the subresource
    ``sandboxes/proxy`` of the sandbox (SubjectAccessReview). Decisions are cached by the digest of the token.

    Clients can invent tokens and names, and every new one is a request to the API server. So there is one review at a
    time per token, and per token and sandbox; a client address may cause only so many reviews of tokens that are not
    valid, and a user only so many of its access. Decisions that are cached are never delayed."""

    def __init__(self, client: Client, clock: Clock, options: TokenReviewOptions | None = None) -> None:
        self.client = client
        self.clock = clock
        self.options = options or TokenReviewOptions()
        self._users = _DecisionCache(self.options.max_entries)
        self._access = _DecisionCache(self.options.max_entries)
        self._reviews: dict[object, asyncio.Task[_Decision]] = {}  # under way, by the key of their decision
        self._of_all = RateLimiter(*_OF_ALL, clock)
        self._per_address = KeyedLimits(*_PER_ADDRESS, clock)
        self._per_user = KeyedLimits(*_PER_USER, clock)

    def __call__(self, authorization: str, destination: Destination, address: str) -> Pending | None:
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
        return self._review(token, digest, destination, address)

    async def _review(self, token: str, digest: bytes, destination: Destination, address: str) -> None:
        user = await self._decision(self._users, digest, lambda: self._review_token_of(address, token))
        _raise(user.rejection)
        if self.options.check_access:
            key, asker = _access_key(digest, destination), user.user or {}
            access = await self._decision(self._access, key, lambda: self._review_access(asker, destination))
            _raise(access.rejection)

    async def _decision(
        self, cache: _DecisionCache, key: object, review: Callable[[], Coroutine[None, None, _Decision]]
    ) -> _Decision:
        """The cached decision, or that of a review. Requests with the same key share one."""
        known = cache.get(key, self.clock.monotonic())
        if known is not None:
            return known
        task = self._reviews.get(key)
        if task is None:
            task = self._reviews[key] = asyncio.create_task(review(), name="router: review")
            task.add_done_callback(lambda task: self._reviewed(cache, key, task))
        return await asyncio.shield(task)

    def _reviewed(self, cache: _DecisionCache, key: object, task: asyncio.Task[_Decision]) -> None:
        del self._reviews[key]
        if not task.cancelled() and task.exception() is None:
            cache.put(key, task.result())

    async def _review_token_of(self, address: str, token: str) -> _Decision:
        limits = (self._per_address.of(network_of(address)), self._of_all)
        await self._wait(*limits)
        decision = await self._review_token(token)
        if decision.rejection is None:
            for limit in limits:
                limit.give_back()
        return decision

    async def _wait(self, *limits: RateLimiter) -> None:
        """Wait for a permit of each limit. Raises ``RequestRejected`` if that would take too long."""
        if max(limit.delay for limit in limits) > _LONGEST_WAIT:
            raise RequestRejected(429, "Too many tokens or sandboxes are being checked. Try again later.")
        delay = max([limit.take() for limit in limits])
        if delay:
            await self.clock.sleep(delay)

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
        await self._wait(self._per_user.of(str(user.get("username") or "")))
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
