"""Steps of a request from kube-apiserver before a verb serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from sandpool.kube.errors import Forbidden, ServiceUnavailable
from sandpool.kube.transport import APPLY_PATCH
from sandpool.server.aggregated.namespaces import NamespaceMirror
from sandpool.server.aggregated.subject_access import SubjectAccess
from sandpool.server.auth.rbac import Decision
from sandpool.server.request.body import media_type
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.request_info import RequestInfo, parse

# An update and a patch create an object that does not exist, if they may.
_CREATING: Final = frozenset({"create", "update", "patch"})
_MOVES: Final = "the storage of these objects moves; try again in a moment"
_READING: Final = frozenset({"get", "list", "watch"})


class RequestHandler(Protocol):
    async def handle(self, request: ServerRequest) -> Response: ...


class ForwardedHandler:
    """Authorizes a forwarded request, refuses writes of a process that does not lead, and reads new namespaces."""

    def __init__(
        self, handler: RequestHandler, access: SubjectAccess, namespaces: NamespaceMirror, leads: Callable[[], bool]
    ) -> None:
        self._handler = handler
        self._access = access
        self._namespaces = namespaces
        self._leads = leads
        self._frozen = False
        self._writing = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def freeze(self) -> None:
        """Refuse writes from now on; return when none is under way."""
        self._frozen = True
        await self._idle.wait()

    async def handle(self, request: ServerRequest) -> Response:
        """See ``http.server.RequestHandler``."""
        info = parse(request.method, request.path, request.query)
        await self._access.require(request.user, info)
        if info.is_resource and info.verb not in _READING:
            if self._frozen:
                raise ServiceUnavailable(_MOVES, details={"retryAfterSeconds": 1})
            if not self._leads():
                why = "this server does not hold the leader lease and must not write; try again"
                raise ServiceUnavailable(why, details={"retryAfterSeconds": 1})
            if info.verb == "patch" and media_type(request.headers.get("content-type", "")) == APPLY_PATCH:
                try:
                    await self._access.require(request.user, replace(info, verb="create"))
                except Forbidden as error:  # only a problem if there is nothing to change
                    request.create_refusal = error
            if info.namespace and info.verb in _CREATING:
                await self._namespaces.ensure(info.namespace)
            return await self._write(request)
        return await self._handler.handle(request)

    async def _write(self, request: ServerRequest) -> Response:
        if self._frozen:  # meanwhile
            raise ServiceUnavailable(_MOVES, details={"retryAfterSeconds": 1})
        self._writing += 1
        self._idle.clear()
        try:
            return await self._handler.handle(request)
        finally:
            self._writing -= 1
            if not self._writing:
                self._idle.set()


class Authorized:
    """The authorizer behind a ``ForwardedHandler``, and for clients in this process: every request is allowed."""

    def authorize(self, user: User, info: RequestInfo) -> Decision:
        return Decision(True)

    def require(self, user: User, info: RequestInfo) -> None:
        """Allow it."""
