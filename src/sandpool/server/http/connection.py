"""One client connection: requests in order, answers in order, and the many ways it can end.

Each complete request becomes one task. A connection serves its requests one after the other, so pipelined ones are
answered in order by construction: what arrives behind the request in service waits in ``_queue``, and reading stops
until the queue is empty again.

Time limits are one number, ``deadline``, that the front compares with the clock once a second. A timer per request
would cost more than the request.

A request that is refused half-way (too large, malformed, a stranger's) is answered in its turn, and then the
connection *lingers*: input is read and dropped for a while, so that the client sees the answer and not a reset.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from sandpool.kube.errors import ApiError, ServiceUnavailable
from sandpool.server.auth.certificates import PeerCertificate, peer_certificate
from sandpool.server.http import response_head
from sandpool.server.http.cycle import NOBODY, RequestCycle
from sandpool.server.http.reader import HEAD, IDLE, ReadStage, RequestReader
from sandpool.server.http.representation import PLAIN, Representation, choose
from sandpool.server.http.upgrade import SwitchedProtocol
from sandpool.server.http.writer import ResponseWriter
from sandpool.server.request.messages import Response, ServerRequest, Upgrade, WatchStream

if TYPE_CHECKING:
    from sandpool.server.http.server import HttpServer

logger = logging.getLogger(__name__)

# For the audit log only; nobody is there to receive it. The code is nginx's.
CLIENT_GONE = 499


class Connection(asyncio.Protocol):
    __slots__ = (
        "_awaited",
        "_certificate",
        "_continue_due",
        "_current",
        "_deaf",
        "_ending",
        "_events",
        "_front",
        "_lingering",
        "_lost",
        "_queue",
        "_reader",
        "_reading_paused",
        "_source",
        "_switched",
        "_task",
        "_transport",
        "_writer",
        "deadline",
        "limits",
    )
    _transport: asyncio.Transport
    _writer: ResponseWriter

    def __init__(self, front: HttpServer) -> None:
        self._front = front
        self.limits = front.limits
        self.deadline = math.inf
        self._reader = RequestReader(self)
        self._source = ""
        self._certificate: PeerCertificate | None = None
        self._queue: deque[RequestCycle] = deque()
        self._current: RequestCycle | None = None  # in service
        self._task: asyncio.Task[None] | None = None  # serving it
        self._events: WatchStream | None = None  # and it is a watch
        self._reading_paused = False  # requests are waiting: first serve those
        self._continue_due = False  # the next request's client waits for permission to send its body
        self._deaf = False  # no further request will be read
        self._awaited: ReadStage = IDLE  # the stage of a request the deadline is for
        self._lingering = False
        self._ending = False  # the server stops
        self._switched: SwitchedProtocol | None = None  # and speaks something else
        self._lost = False

    # -- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.limits.write_buffer)
        self._writer = ResponseWriter(self._transport, self._front.heads, self.limits.gzip_above)
        peer = transport.get_extra_info("peername")
        self._source = peer[0] if isinstance(peer, tuple) else ""
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = peer_certificate(tls)
        self.deadline = self._front.time + self.limits.head_seconds
        if not self._front.admit(self):
            self._refuse(ServiceUnavailable("too many connections", details={"retryAfterSeconds": 1}))

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            if not self._reader.feed(data):
                self._deaf = True
                self._transport.pause_reading()  # what comes now is for another protocol, if we come to speak it
            elif self._current is None and self._reader.stage is not self._awaited:
                self._await_input()  # and not with every read: dripping bytes wins no time
        except ApiError as error:
            self._refuse(error)
        except Exception:
            logger.exception("reading a request from %s failed", self._source)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._deaf = True
        self.deadline = math.inf
        self._queue.clear()
        self._writer.resume()
        self._reader.close()
        self._switched = None
        self._front.forget(self)
        if self._current is not None and self._task is not None:
            if self._current.request.method in ("GET", "HEAD"):
                self._task.cancel()
            # What a write has begun is finished, whether or not somebody is left to hear of it.
            self._front.adopt(self._task)

    def pause_writing(self) -> None:
        self._writer.pause()
        self.deadline = self._front.time + self.limits.write_seconds

    def resume_writing(self) -> None:
        self._writer.resume()
        if not self._lingering:
            self.deadline = math.inf

    # -- called by the front -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed: which one, follows from what the connection is waiting for."""
        self.deadline = math.inf
        if self._lingering or self._writer.blocked:
            self._transport.abort()
        elif self._reader.stage is IDLE:
            self._close()
        else:
            self._refuse(ApiError("the request did not arrive in time", code=408, reason="Timeout"))

    def end(self) -> None:
        """The server stops: end a watch, let any other request in service finish, close an idle connection."""
        self._ending = True
        if self._current is None:
            self._close()
        elif self._events is not None:
            self._events.end()
        elif self._switched is not None and self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """The server cannot wait any longer."""
        if self._current is not None and self._task is not None:
            self._task.cancel()
        self._transport.abort()

    # -- called by the reader ----------------------------------------------------------------------------------------

    def open_cycle(self, request: ServerRequest, keep_alive: bool, legacy: bool) -> RequestCycle:
        request.source = self._source
        front = self._front
        started = front.now() if front.audit is not None else 0.0
        return RequestCycle(request, front.audit_id(request.headers), started, keep_alive, legacy)

    def identify(self, cycle: RequestCycle, impersonation: Sequence[tuple[str, str]]) -> None:
        self._front.identify(cycle, impersonation, self._certificate)

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
        self._task = self._front.loop.create_task(self._serve(cycle))

    def _refuse(self, error: ApiError) -> None:
        self._deaf = True
        cycle = self._reader.cycle
        if cycle is None:
            cycle = self.open_cycle(ServerRequest("", "", NOBODY), False, False)
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
            response = await self._front.handler.handle(request)
            if response.encoded is None and response.stream is None:
                response.encode()  # here, where its failure can still be answered
        except ApiError as error:
            problem = error.message
            response = response_head.failure(error)
        except asyncio.CancelledError:
            if self._lost or self._front.aborting:
                if self._front.audit is not None:
                    self._front.record(cycle, CLIENT_GONE, "the client is gone")
                raise
            # Something the handler waited for was cancelled, not the request.
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
            # Nearly every answer is one write; only the others are worth a coroutine.
            elif self._lost or not self._writer.send_plain(cycle, response, wanted):
                await self._answer(cycle, response, wanted)
            if self._writer.blocked:
                await self._writer.drained()
        except Exception:
            # Half an answer is on its way, or none that could be: only the end of the connection tells the client.
            logger.exception("answering request %s failed", cycle.audit_id)
            self._transport.abort()
        finally:
            if self._front.audit is not None:
                cycle.response = response
                self._front.record(cycle, response.status, problem)
        self._finish(cycle)

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
                await self._writer.stream(cycle, response, events)
            finally:
                self._events = None

    async def _switch(self, cycle: RequestCycle, response: Response, upgrade: Upgrade) -> None:
        """Let the client and the upgrade talk; when they are done the connection is too."""
        cycle.keep_alive = False
        if self._lost or self._ending:
            upgrade.abandon()
            return
        self._writer.switch(cycle, response)
        self._switched = SwitchedProtocol(self, self._front.loop)
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
            self.deadline = self._front.time + limits.idle_seconds
        elif stage is HEAD:
            self.deadline = self._front.time + limits.head_seconds
        else:
            self.deadline = self._front.time + limits.body_seconds
            if self._continue_due:
                self._continue_due = False
                self._writer.allow_body()

    def _linger(self) -> None:
        """Wait for the client to close first."""
        self._lingering = True
        self.deadline = self._front.time + self.limits.linger_seconds
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._transport.resume_reading()
        except (OSError, RuntimeError):  # it has closed already, or is about to
            self._transport.abort()

    def _close(self) -> None:
        """Close once everything is sent, which a client that does not read must not delay for ever."""
        self._lingering = True
        self.deadline = self._front.time + self.limits.linger_seconds
        self._transport.close()
