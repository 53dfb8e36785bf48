"""The transport for clients in the server's own process: the same handler, without network or encoding.

Responses are shared, not copied: objects are immutable by contract, which tests check (``kube.shared_objects``). A
request body is copied once, because its caller may change it afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from sandpool.api.resource import SharedObject
from sandpool.engine.clock import Clock
from sandpool.kube.errors import ApiError, InternalError, from_status
from sandpool.kube.shared_objects import detector
from sandpool.kube.transport import Request, WatchEvent
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.http.server import AuditSink, RequestHandler
from sandpool.server.request.messages import Response, ServerRequest, User, WatchStream
from sandpool.server.request.request_info import of_target


def as_received(error: ApiError) -> ApiError:
    """The error as a client over the network receives it: with the type that its Status implies."""
    return from_status(error.status(), error.code)


class InProcessTransport:
    """Requests of one user to a handler in the same event loop. In the audit log, ``user_agent`` distinguishes parts of
    the process that act as the same user."""

    stores_metadata_with_status = True

    def __init__(
        self,
        handler: RequestHandler,
        user: User,
        *,
        clock: Clock,
        audit: AuditSink | None = None,
        user_agent: str = "sandpool",
    ) -> None:
        self._handler = handler
        self._user = user
        self._clock = clock
        self._audit = audit
        self._headers = _Headers(user_agent)
        self._streams: set[WatchStream] = set()
        self._closed = False
        # In tests only: proves that neither callers nor the server change what was handed out.
        self._detector = detector(f"in-process API of {user_agent}")

    async def request(self, request: Request) -> Any:
        response = await self.perform(self._served(request))
        if response.stream is not None:
            await response.stream.aclose()
            raise ValueError("a watch is opened with stream()")
        answer = response.decode()
        if self._detector is not None:
            self._detector.remember((request.method, request.path), answer)
        return answer

    async def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        watch = (await self.perform(self._served(request))).stream
        if watch is None:
            raise InternalError("the server answered a watch with a single document")
        self._streams.add(watch)
        try:
            async for batch in watch:
                for line in batch:
                    if line.type == "ERROR":
                        status = line.decode()
                        raise from_status(status, status.get("code", 500))
                    event = WatchEvent(line.type, line.decode())
                    if self._detector is not None:
                        self._detector.remember(("WATCH", request.path, _uid(event.object)), event.object)
                    yield event
        finally:
            self._streams.discard(watch)
            await watch.aclose()

    def _served(self, request: Request) -> ServerRequest:
        served = ServerRequest(
            method=request.method,
            path=request.path,
            user=self._user,
            query=request.query,
            headers=self._headers[request.content_type],
            source="in-process",
            with_metadata=request.with_metadata,
            info=of_target(request.method, request.path, request.target),
        )
        if isinstance(request.body, bytes):
            served.body = request.body
        elif request.body is not None:
            # The only copy: the server must not keep an object that the caller can change.
            served.object = orjson.loads(orjson.dumps(request.body))
        return served

    def new_request(self, method: str, path: str, headers: Mapping[str, str]) -> ServerRequest:
        """A request of this user."""
        return ServerRequest(
            method=method,
            path=path,
            user=self._user,
            headers={"user-agent": self._headers.user_agent, **headers},
            source="in-process",
        )

    async def perform(self, served: ServerRequest) -> Response:
        """Have a request handled, and recorded in the audit log. Raises ``ApiError`` as a client receives it."""
        if self._closed:
            raise ConnectionError("the transport is closed")
        if self._audit is None:
            try:
                return await self._handler.handle(served)
            except ApiError as error:
                await _yield_to_loop()
                raise as_received(error) from error
        cycle = RequestCycle(served, "", self._clock.monotonic(), keep_alive=False, legacy=False)
        cycle.caller = self._user
        try:
            response = await self._handler.handle(served)
        except ApiError as error:
            self._audit.record(cycle, error.code, error.message, self._clock.monotonic() - cycle.started)
            await _yield_to_loop()
            raise as_received(error) from error
        cycle.response = response
        self._audit.record(cycle, response.status, "", self._clock.monotonic() - cycle.started)
        return response

    async def close(self) -> None:
        self._closed = True
        for watch in list(self._streams):
            watch.end()


class _Headers(dict[str, Mapping[str, str]]):
    """The headers of a request, by its media type. There are half a dozen."""

    def __init__(self, user_agent: str) -> None:
        self.user_agent = user_agent

    def __missing__(self, media_type: str) -> Mapping[str, str]:
        headers = self[media_type] = {"user-agent": self.user_agent, "content-type": media_type}
        return headers


def _uid(object: SharedObject) -> str:
    """The UID of an object; empty for a bookmark."""
    uid: str = object["metadata"].get("uid", "")
    return uid


async def _yield_to_loop() -> None:
    """Yield to the event loop before an error. A refused request may not have awaited anything, so a caller that
    retries in a loop would starve the task it waits for."""
    await asyncio.sleep(0)
