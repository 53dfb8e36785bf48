"""Connections to the ports of sandboxes: one request at a time on each, kept for the next request while they are
good."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

from sandpool.engine.clock import Clock
from sandpool.router.headers import ResponseHeaders
from sandpool.router.http1 import MalformedMessage, ResponseHead, ResponseParser
from sandpool.router.targets import Target

#: Idle connections kept per port of a pod, and for how many seconds.
_MAX_IDLE: Final = 128
_MAX_IDLE_SECONDS: Final = 30.0
# A request that cannot be repeated only uses a connection that was idle for less than this.
_FRESHLY_USED_SECONDS: Final = 1.0

PortKey = tuple[str, int]  # UID of the pod, port
#: Returns a connected, non-blocking socket. Raises ``OSError``.
Dial = Callable[[Target, int], Awaitable[socket.socket]]


class ResponseSink(Protocol):
    """Receives the response to one request. Each of ``response_ended``, ``response_malformed`` and ``response_lost`` is
    the last call."""

    def response_began(self, head: ResponseHead, headers: ResponseHeaders) -> None: ...

    def response_data(self, data: bytes) -> None: ...

    def response_flush(self) -> None:
        """Everything that has arrived was passed on."""
        ...

    def response_ended(self) -> None: ...

    def response_raw(self, data: bytes) -> None:
        """Bytes of another protocol, after a 101."""
        ...

    def response_malformed(self, error: MalformedMessage) -> None:
        """The sandbox violates HTTP. The connection to it is closed."""
        ...

    def response_lost(self, error: Exception | None) -> None:
        """The connection ended before the response did."""
        ...

    def upstream_writable(self, writable: bool) -> None:
        """Whether the sandbox takes more of the request at the moment."""
        ...


class Upstream(asyncio.Protocol):
    """One connection to a port of a sandbox.

    While ``sink`` is None no request is under way, and a byte from the sandbox closes the connection.
    """

    def __init__(self, key: PortKey, on_lost: Callable[[Upstream], None] = lambda upstream: None) -> None:
        self.key = key
        self.on_lost = on_lost
        self.sink: ResponseSink | None = None
        self.transport = cast(asyncio.Transport, None)
        self.is_open = True
        self.is_fresh = True  # no request has used it before
        self.in_service = False  # from the beginning of a request until it was released
        self.idle_since = 0.0
        self._parser = ResponseParser()
        self._has_begun = False  # the sink knows the head
        self._head: ResponseHead | None = None  # that ``_headers`` were made of
        self._headers = ResponseHeaders([])
        self._head_only = False

    def begin(self, sink: ResponseSink, *, head_only: bool, upgrade_requested: bool) -> None:
        self.sink = sink
        self.in_service = True
        self._has_begun = False
        self._head_only = head_only
        self._parser.begin(head_only=head_only, upgrade_requested=upgrade_requested)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.is_open = False
        self.sink = None
        self.transport.abort()

    # --- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        sink, parser = self.sink, self._parser
        if sink is None:
            self.close()
            return
        if parser.is_switched:
            sink.response_raw(data)
            return
        try:
            body = parser.feed(data)
        except MalformedMessage as error:
            self.close()
            sink.response_malformed(error)
            return
        if not self._has_begun:
            head = parser.head
            if head is None:
                return
            self._has_begun = True
            if head is not self._head:
                self._head, self._headers = head, ResponseHeaders(head.fields)
            sink.response_began(head, self._headers)
            if head.status == 101:
                if first := parser.take_switched():
                    sink.response_raw(first)
                return
        if body:
            sink.response_data(body)
        if parser.is_complete:
            # After HEAD, a server that sends the body it announced would spoil the next response.
            self._end(reusable=parser.head is not None and parser.head.keeps_alive and not self._head_only)
        else:
            sink.response_flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.on_lost(self)
        sink = self.sink
        if sink is None:
            return
        try:
            if exc is None or self._parser.is_switched:
                self._parser.eof()
                self._end(reusable=False)
                return
        except MalformedMessage as error:
            exc = error if self._has_begun else None
        self.sink = None
        sink.response_lost(exc)

    def pause_writing(self) -> None:
        if self.sink is not None:
            self.sink.upstream_writable(False)

    def resume_writing(self) -> None:
        if self.sink is not None:
            self.sink.upstream_writable(True)

    def _end(self, *, reusable: bool) -> None:
        sink, self.sink = self.sink, None
        if not reusable:
            self.is_open = False
            self.transport.abort()
        if sink is not None:
            sink.response_ended()


class UpstreamPool:
    """All connections to sandboxes. ``acquire`` returns an idle or a new one; ``release`` keeps it for the next
    request."""

    def __init__(self, dial: Dial, clock: Clock) -> None:
        self.dial = dial
        self.clock = clock
        self._idle: dict[PortKey, deque[Upstream]] = {}  # by time of release, the latest last; no deque is empty
        self._open: dict[str, set[Upstream]] = {}  # by UID of the pod; no set is empty
        self._dialling: Counter[str] = Counter()  # connections that are being made, by UID of the pod
        self._used: dict[str, float] = {}  # when the last request ended, by UID of the pod

    async def acquire(self, target: Target, port: int, *, repeatable: bool) -> Upstream:
        """Raises ``OSError``."""
        upstream = self.acquire_idle(target, port, repeatable=repeatable)
        if upstream is not None:
            return upstream
        key = (target.uid, port)
        self._dialling[target.uid] += 1
        try:
            sock = await self.dial(target, port)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            _, upstream = await loop.create_connection(lambda: Upstream(key, self._lost), sock=sock)
        finally:
            self._dialling[target.uid] -= 1
            if not self._dialling[target.uid]:
                del self._dialling[target.uid]
        if upstream.is_open:
            self._open.setdefault(target.uid, set()).add(upstream)
        return upstream

    def acquire_idle(self, target: Target, port: int, *, repeatable: bool) -> Upstream | None:
        """Return an idle connection, if there is one. A request that is not ``repeatable`` only gets one that was used
        a moment ago: the sandbox may be about to close one that was idle for longer."""
        key = (target.uid, port)
        idle = self._idle.get(key)
        earliest = 0.0 if repeatable else self.clock.monotonic() - _FRESHLY_USED_SECONDS
        while idle and idle[-1].idle_since >= earliest:
            upstream = idle.pop()
            if not idle:
                del self._idle[key]
            if upstream.is_open:
                upstream.is_fresh = False
                return upstream
        return None

    def release(self, upstream: Upstream) -> None:
        if not upstream.is_open:
            return
        if upstream.transport.get_write_buffer_size():
            upstream.close()  # the sandbox has answered a request that it has not read
            return
        upstream.transport.resume_reading()  # a slow client may have paused it
        upstream.in_service = False
        upstream.idle_since = self._used[upstream.key[0]] = self.clock.monotonic()
        idle = self._idle.setdefault(upstream.key, deque())
        idle.append(upstream)
        if len(idle) > _MAX_IDLE:
            idle.popleft().close()

    def quiesce(self, uid: str, seconds: float) -> float:
        """Return for how many seconds no request was in service at a pod; 0 while one is. If that is at least the given
        number, close its idle connections: the next request opens a new one."""
        every = [upstream for upstream in self._open.get(uid, ()) if upstream.is_open]
        idle = {upstream for key in {each.key for each in every} for upstream in self._idle.get(key, ())}
        if uid in self._dialling or any(upstream not in idle for upstream in every):
            return 0.0
        quiet = self.clock.monotonic() - self._used.get(uid, float("-inf"))
        if quiet >= seconds:
            for upstream in idle:
                self._idle.pop(upstream.key, None)
                upstream.close()
        return quiet

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._used.pop(uid, None)

    def _lost(self, upstream: Upstream) -> None:
        uid = upstream.key[0]
        if uid not in self._open or upstream not in self._open[uid]:
            return
        self._open[uid].remove(upstream)
        if not self._open[uid]:
            del self._open[uid]
        if upstream.in_service:
            self._used[uid] = self.clock.monotonic()

    def close_expired(self) -> None:
        """Close connections that were idle for too long."""
        before = self.clock.monotonic() - _MAX_IDLE_SECONDS
        for key, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since < before or not idle[0].is_open):
                idle.popleft().close()
            if not idle:
                del self._idle[key]

    def close(self) -> None:
        for idle in self._idle.values():
            for upstream in idle:
                upstream.close()
        self._idle.clear()
