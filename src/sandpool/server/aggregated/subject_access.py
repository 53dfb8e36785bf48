"""Authorization by kube-apiserver: a SubjectAccessReview for each question, with the answers cached for a moment.

Only kube-apiserver knows what a user may do: RBAC is its own, and a cluster may have other authorizers. A review is a
request of its own and costs more than most requests it is about, so answers are kept for ``REMEMBERED`` seconds, which
is how long a revoked permission still works. kube-apiserver's own reviews of other servers last as long.

A thousand sandboxes have a thousand names. So the question is first about the collection, whose answer covers every
name, and only if that is refused about the one name, for roles with ``resourceNames``.

If kube-apiserver does not answer, nothing is allowed that is not cached.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import Final, NamedTuple

from sandpool.api.kinds import SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, ServiceUnavailable
from sandpool.server.auth.authenticator import PUBLIC_PATHS
from sandpool.server.auth.groups import MASTERS
from sandpool.server.auth.rbac import denied
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

_log = logging.getLogger(__name__)

#: Seconds for which an answer is cached.
REMEMBERED: Final = 10.0
#: Answers that are kept; beyond that the one that was asked for least recently is forgotten.
MOST_ANSWERS: Final = 16_384

_Extra = tuple[tuple[str, tuple[str, ...]], ...]


class _Question(NamedTuple):
    """The question of a review, and the key of its answer. The path is empty for resources, and only for those."""

    user: str
    groups: tuple[str, ...]
    uid: str
    extra: _Extra
    verb: str
    path: str
    group: str
    version: str
    resource: str
    subresource: str
    namespace: str
    name: str


class _Answer(NamedTuple):
    allowed: bool
    denied: bool  # by an authorizer that has the last word, as opposed to not allowed by any
    reason: str
    expires: float


class SubjectAccess:
    """Asks kube-apiserver what a user may do."""

    def __init__(self, client: Client, clock: Clock, *, most: int = MOST_ANSWERS) -> None:
        self.client = client
        self.clock = clock
        self.most = most
        self.reviews = 0  # sent
        self._answers: OrderedDict[_Question, _Answer] = OrderedDict()  # least recently used first
        self._asking: dict[_Question, asyncio.Task[_Answer]] = {}

    async def require(self, user: User, info: RequestInfo) -> None:
        """Raise ``Forbidden`` unless the user may do this, ``ServiceUnavailable`` if kube-apiserver does not answer."""
        if MASTERS in user.groups or (not info.is_resource and info.path in PUBLIC_PATHS):
            return
        answer = await self._answer(_question(user, info, ""))
        if not answer.allowed and not answer.denied and info.name:
            answer = await self._answer(_question(user, info, info.name))
        if not answer.allowed:
            raise denied(user, info, answer.reason)

    async def _answer(self, question: _Question) -> _Answer:
        answer = self._answers.get(question)
        if answer is not None and answer.expires > self.clock.monotonic():
            self._answers.move_to_end(question)
            return answer
        asking = self._asking.get(question)
        if asking is None:
            # A task of its own: a client that disconnects must not take the answer from the others that wait for it.
            asking = self._asking[question] = asyncio.create_task(self._ask(question))
            asking.add_done_callback(partial(self._answered, question))
        return await asyncio.shield(asking)

    def _answered(self, question: _Question, asking: asyncio.Task[_Answer]) -> None:
        self._asking.pop(question, None)
        if not asking.cancelled():
            asking.exception()  # retrieved here: every client that waited for the answer may have disconnected

    async def _ask(self, question: _Question) -> _Answer:
        self.reviews += 1
        asked = self.clock.monotonic()
        try:
            review = await self.client.create(SUBJECT_ACCESS_REVIEW, _review(question))
        except (ApiError, OSError) as error:
            _log.warning("kube-apiserver did not answer a SubjectAccessReview: %s", error)
            raise ServiceUnavailable(
                "kube-apiserver could not be asked whether this is allowed; try again",
                details={"retryAfterSeconds": 1},
            ) from error
        status = review.get("status") or {}
        refused = status.get("denied") is True
        answer = _Answer(
            status.get("allowed") is True and not refused, refused, status.get("reason") or "", asked + REMEMBERED
        )
        self._answers[question] = answer
        self._answers.move_to_end(question)
        while len(self._answers) > self.most:
            self._answers.popitem(last=False)
        return answer


def _question(user: User, info: RequestInfo, name: str) -> _Question:
    extra = tuple(sorted(user.extra.items()))
    who = (user.name, user.groups, user.uid, extra, info.verb)
    if not info.is_resource:
        return _Question(*who, info.path, "", "", "", "", "", "")
    return _Question(*who, "", info.group, info.version, info.resource, info.subresource, info.namespace, name)


def _review(question: _Question) -> Object:
    spec: Object = {
        "user": question.user,
        "groups": list(question.groups),
        "uid": question.uid,
        "extra": {key: list(values) for key, values in question.extra},
    }
    if question.path:
        spec["nonResourceAttributes"] = {"path": question.path, "verb": question.verb}
    else:
        fields = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
        spec["resourceAttributes"] = {field: value for field in fields if (value := getattr(question, field))}
    return {"apiVersion": SUBJECT_ACCESS_REVIEW.api_version, "kind": SUBJECT_ACCESS_REVIEW.kind, "spec": spec}
