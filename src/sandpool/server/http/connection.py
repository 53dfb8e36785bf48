"""One client connection: reads requests, serves them in order and closes.

Each complete request becomes one task. A connection serves its requests one after the other, so pipelined requests are
answered in order by construction: requests behind the current one wait in ``_queue``, and reading pauses until the
queue is empty again.

All time limits are one number, ``deadline``, that the server compares with the clock once a second. A timer per request
would cost more than the request.

A request that is refused half-way (too large, malformed, unauthenticated) is answered in order, and then the connection
*lingers*: it reads and drops input for a while, so that the client sees the response and not a reset.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from sandpool.engine.listener import Accepted, Stranger
from sandpool.kube.errors import ApiError, ServiceUnavailable
from sandpool.server.auth.certificates import PeerCertificate, peer_certificate
from sandpool.server.auth.groups import ANONYMOUS
from sandpool.server.http import response_head
from sandpool.server.http.cycle import UNAUTHENTICATED, RequestCycle
from sandpool.server.http.fairness import Flow, too_many
from sandpool.server.http.reader import HEAD, IDLE, ReadStage, RequestReader
from sandpool.server.http.representation import PLAIN, Representation, choose
from sandpool.server.http.upgrade import SwitchedProtocol
from sandpool.server.http.writer import ResponseWriter
from sandpool.server.request.messages import Response, ServerRequest, Upgrade, WatchStream

if TYPE_CHECKING:
    from sandpool.server.http.server import HttpServer

logger = logging.getLogger(__name__)

# For the audit log only: the client has disconnected. The code is nginx's.
CLIENT_GONE = 499


class Connection(Accepted):
    __slots__ = (
        "_awaited",
        "_certificate",
        "_continue_due",
        "_current",
        "_deaf",
        "_ending",
        "_events",
        "_flow",
        "_lingering",
        "_lost",
        "_queue",
        "_reader",
        "_reading_paused",
        "_server",
        "_source",
        "_switched",
        "_task",
        "_transport",
        "_writer",
        "deadline",
        "limits",
        "stranger",
    )
    _transport: asyncio.Transport
    _writer: ResponseWriter

    def __init__(self, server: HttpServer, stranger: Stranger, certificate: PeerCertificate | None = None) -> None:
        """``certificate`` is the identity of a connection that has no TLS."""
        self._server = server
        self.stranger = stranger  # what this connection is until its client has authenticated
        self._flow: Flow | None = None  # of the last request's caller
        self.limits = server.limits
        self.deadline = math.inf
        self._reader = RequestReader(self)
        self._source = ""
        self._certificate = certificate
        self._queue: deque[RequestCycle] = deque()
        self._current: RequestCycle | None = None  # being served
        self._task: asyncio.Task[None] | None = None  # serves _current
        self._events: WatchStream | None = None  # of _current, if it is a watch
        self._reading_paused = False  # until the queued requests are served
        self._continue_due = False  # the client waits for 100 Continue before it sends the next body
        self._deaf = False  # no further request will be read
        self._awaited: ReadStage = IDLE  # the read stage that the deadline belongs to
        self._lingering = False
        self._ending = False  # the server is stopping
        self._switched: SwitchedProtocol | None = None  # after a protocol switch
        self._lost = False

    # -- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.stranger.connection = self
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer)
        server = self._server
        self._writer = ResponseWriter(self._transport, server.heads, server.yaml, server.unread, self.limits.gzip_above)
        peer = transport.get_extra_info("peername")
        self._source = peer[0] if isinstance(peer, tuple) else ""
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = peer_certificate(tls)
        self.deadline = self._server.time + self.limits.head_seconds
        if not self._server.admit(self):
            self._refuse(ServiceUnavailable("too many connections", details={"retryAfterSeconds": 1}))

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        fairness = self._server.fairness
        began = fairness.cpu()
        try:
            if not self._reader.feed(data):
                self._deaf = True
                self._transport.pause_reading()  # further bytes belong to another protocol, if the upgrade succeeds
            elif self._current is None and self._reader.stage is not self._awaited:
                self._await_input()  # not on every read: sending byte by byte must not extend the deadline
        except ApiError as error:
            self._refuse(error)
        except Exception:
            logger.exception("reading a request from %s failed", self._source)
            self._transport.abort()
        finally:
            if self._flow is not None:
                fairness.charge(self._flow, fairness.cpu() - began)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._deaf = True
        self.deadline = math.inf
        for cycle in self._queue:
            self._release(cycle)
        self._queue.clear()
        if self._reader.cycle is not None:
            self._release(self._reader.cycle)
        self._writer.resume()
        self._reader.close()
        self._switched = None
        self._leave_flow()
        self._server.forget(self)
        self.stranger.connection = None
        if self._current is not None and self._task is not None:
            if self._current.request.method in ("GET", "HEAD"):
                self._task.cancel()
            # A write that has begun is finished even though its client is gone.
            self._server.adopt(self._task)

    def pause_writing(self) -> None:
        self._writer.pause()
        self.deadline = self._server.time + self.limits.write_seconds

    def resume_writing(self) -> None:
        self._writer.resume()
        if not self._lingering:
            self.deadline = math.inf

    # -- called by the server ----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Act on the passed deadline, depending on what the connection waits for."""
        self.deadline = math.inf
        if self._lingering or self._writer.blocked:
            self._transport.abort()
        elif self._reader.stage is IDLE:
            self._close()
        else:
            self._refuse(ApiError("the request did not arrive in time", code=408, reason="Timeout"))

    def end(self) -> None:
        """Shut down: end a watch, let any other current request finish, close an idle connection."""
        self._ending = True
        if self._current is None:
            self._close()
        elif self._events is not None:
            self._events.end()
        elif self._switched is not None and self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Cancel the current request and drop the connection."""
        if self._current is not None and self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # -- called by the reader ----------------------------------------------------------------------------------------

    def open_cycle(self, request: ServerRequest, keep_alive: bool, legacy: bool) -> RequestCycle:
        request.source = self._source
        request.offloadable = True
        server = self._server
        started = server.now() if server.audit is not None else 0.0
        return RequestCycle(request, server.audit_id(request.headers), started, keep_alive, legacy)

    def identify(self, cycle: RequestCycle, fields: Sequence[tuple[str, str]]) -> None:
        self._server.identify(cycle, fields, self._certificate)
        caller = cycle.caller
        key = caller.name if caller is not ANONYMOUS else f"an anonymous client at {self._source}"
        if self._flow is None or self._flow.key != key:
            self._join_flow(key, known=caller is not ANONYMOUS)
        cycle.flow = self._flow

    def _join_flow(self, key: str, *, known: bool) -> None:
        """Count this connection for the user of its requests. Raises ``TooManyRequests``."""
        self._leave_flow()
        flow = self._server.fairness.flow(key)
        if known:
            if flow.connections >= self.limits.connections_per_user:
                raise too_many(f"{key} has {flow.connections} connections, which is the limit")
            self._server.authenticated(self.stranger)
        flow.connections += 1
        self._flow = flow

    def _leave_flow(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.connections -= 1
            self._server.fairness.release(flow)

    def buffered(self, cycle: RequestCycle, count: int) -> None:
        if cycle.flow is not None:
            self._server.fairness.buffer(cycle.flow, count)
            cycle.buffered += count

    def expected_continue(self) -> None:
        if self._current is None:
            self._writer.allow_body()
        else:
            self._continue_due = True

    def received(self, cycle: RequestCycle) -> None:
        if self._current is None:
            self._start(cycle)
        else:
            self._queue.append(cycle)
            self._reading_paused = True
            self._transport.pause_reading()

    # -- serving -----------------------------------------------------------------------------------------------------

    def _start(self, cycle: RequestCycle) -> None:
        self._current = cycle
        self.deadline = math.inf
        work = self._serve(cycle)
        if cycle.flow is not None:
            work = self._server.fairness.metered(cycle.flow, work)
        self._task = self._server.loop.create_task(work)

    def _refuse(self, error: ApiError) -> None:
        self._deaf = True
        cycle = self._reader.cycle
        if cycle is None:
            cycle = self.open_cycle(ServerRequest("", "", UNAUTHENTICATED), False, False)
        cycle.error = error
        cycle.keep_alive = False
        self.received(cycle)

    async def _serve(self, cycle: RequestCycle) -> None:
        request = cycle.request
        wanted, problem = PLAIN, ""
        try:
            if cycle.error is not None:
                raise cycle.error
            wanted = choose(request.path, request.query, request.headers)
            response = await self._handle(cycle)
        except ApiError as error:
            problem = error.message
            response = response_head.failure(error)
        except asyncio.CancelledError:
            if self._lost or self._server.aborting:
                self._release(cycle)
                if self._server.audit is not None:
                    self._server.record(cycle, CLIENT_GONE, "the client disconnected")
                raise
            # A task that the handler awaited was cancelled, not the request.
            problem = "cancelled"
            response = response_head.failure(ServiceUnavailable("the request was cancelled"))
        except Exception as error:
            logger.exception("request %s: %s %s failed", cycle.audit_id, request.method, request.path)
            problem = repr(error)
            response = response_head.failure(response_head.internal_error(cycle.audit_id))
        if self._ending or (self._deaf and not self._queue):
            cycle.keep_alive = False
        try:
            if response.upgrade is not None:
                await self._switch(cycle, response, response.upgrade)
            # Nearly every response is one write; only the others need a coroutine.
            elif self._lost or not self._writer.send_plain(cycle, response, wanted):
                await self._answer(cycle, response, wanted)
            if self._writer.blocked and self._switched is None:
                await self._writer.drained(cycle)
        except Exception:
            # Part of the response may be sent: only closing the connection can tell the client.
            logger.exception("sending the response to request %s failed", cycle.audit_id)
            self._transport.abort()
        finally:
            self._release(cycle)
            if self._server.audit is not None:
                cycle.response = response
                self._server.record(cycle, response.status, problem)
        self._finish(cycle)

    async def _handle(self, cycle: RequestCycle) -> Response:
        """Serve a request in its user's turn."""
        flow, queue = cycle.flow, self._server.fairness
        assert flow is not None  # a request without one has an error
        if queue.must_wait(flow):
            await queue.wait(flow)
        else:
            flow.in_flight += 1
            flow.admitted += 1
        cycle.superseded = self._server.unread.superseded()
        try:
            response = await self._server.handler.handle(cycle.request)
            if response.stream is not None or response.upgrade is not None:
                await self._open_stream(cycle, flow, response)
            elif response.encoded is None and response.parts is None:
                response.encode()  # here, where a failure can still become an error response
        finally:
            queue.leave(flow)
        return response

    async def _open_stream(self, cycle: RequestCycle, flow: Flow, response: Response) -> None:
        try:
            self._server.fairness.open_stream(flow)
        except ApiError:
            if response.stream is not None:
                await response.stream.aclose()
            if response.upgrade is not None:
                response.upgrade.abandon()
            raise
        cycle.streaming = True

    def _release(self, cycle: RequestCycle) -> None:
        """Give back what a request occupied of its user's limits."""
        flow = cycle.flow
        if flow is not None and (cycle.buffered or cycle.streaming):
            flow.buffered -= cycle.buffered
            flow.streams -= cycle.streaming
            cycle.buffered, cycle.streaming = 0, False
            self._server.fairness.release(flow)

    async def _answer(self, cycle: RequestCycle, response: Response, wanted: Representation) -> None:
        events = response.stream
        if events is None:
            if not self._lost:
                await self._writer.send(cycle, response, wanted)
        elif self._lost or self._ending:
            await events.aclose()
            if not self._lost:
                await self._writer.send(
                    cycle, response_head.failure(ServiceUnavailable("the server is stopping")), PLAIN
                )
        else:
            self._events = events
            try:
                await self._writer.stream(cycle, response, events, self._server.fairness)
            finally:
                self._events = None

    async def _switch(self, cycle: RequestCycle, response: Response, upgrade: Upgrade) -> None:
        """Hand the connection to the upgraded protocol; close it afterwards."""
        cycle.keep_alive = False
        if self._lost or self._ending:
            upgrade.abandon()
            return
        self._writer.switch(cycle, response)
        self._switched = SwitchedProtocol(self, self._server.loop)
        wire = self._switched.take_over(self._transport, self._reader.rest)
        await upgrade.run(wire)

    def _finish(self, cycle: RequestCycle) -> None:
        self._current = None
        if self._lost:
            return
        if cycle.error is not None:
            self._linger()
        elif self._ending or not cycle.keep_alive:
            self._close()
        elif self._queue:
            self._start(self._queue.popleft())
        else:
            if self._reading_paused:
                self._reading_paused = False
                self._transport.resume_reading()
            self._await_input()

    def _await_input(self) -> None:
        limits, stage = self.limits, self._reader.stage
        self._awaited = stage
        if stage is IDLE:
            self.deadline = self._server.time + limits.idle_seconds
        elif stage is HEAD:
            self.deadline = self._server.time + limits.head_seconds
        else:
            self.deadline = self._server.time + limits.body_seconds
            if self._continue_due:
                self._continue_due = False
                self._writer.allow_body()

    def _linger(self) -> None:
        """Wait for the client to close first."""
        self._lingering = True
        self.deadline = self._server.time + self.limits.linger_seconds
        if self._transport.is_closing():  # one with TLS may have let go of its protocol, and would fail
            return
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._transport.resume_reading()
        except (OSError, RuntimeError):  # already closed or closing
            self._transport.abort()

    def _close(self) -> None:
        """Close after everything is sent. A client that does not read delays this by ``linger_seconds`` at most."""
        self._lingering = True
        self.deadline = self._server.time + self.limits.linger_seconds
        self._transport.close()
