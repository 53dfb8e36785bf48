"""The sandbox's side: connections to its ports, used again as long as they are good."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

import httptools

from sandpool.engine.clock import Clock
from sandpool.router.headers import Header, ResponseHeaders
from sandpool.router.targets import Target

#: Connections that wait for another request, to one port of one sandbox, and for how many seconds.
_IDLE_MOST: Final = 128
_IDLE_SECONDS: Final = 30.0
_A_MOMENT: Final = 1.0

Place = tuple[str, int]  # UID of the pod, port
#: Gives a connected, non-blocking socket. Raises ``OSError``.
Dial = Callable[[Target, int], Awaitable[socket.socket]]


class Reader(Protocol):
    """Who is told what the sandbox answers."""

    def answer_began(self, status: int, reason: bytes, headers: ResponseHeaders) -> None: ...

    def answer_data(self, data: bytes) -> None: ...

    def answer_paused(self) -> None:
        """That was all for now."""
        ...

    def answer_ended(self) -> None: ...

    def answer_raw(self, data: bytes) -> None:
        """What comes after both sides have agreed to speak something else."""
        ...

    def answer_lost(self, error: Exception | None) -> None:
        """The connection is gone before the end of the answer."""
        ...

    def answer_room(self, has_room: bool) -> None:
        """Whether the sandbox takes more at the moment."""
        ...


class Upstream(asyncio.Protocol):
    """One connection to a sandbox, for one request after the other."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.reader: Reader | None = None  # of the answer under way
        self.transport = cast(asyncio.Transport, None)
        self.is_open = True
        self.is_fresh = True  # nobody has used it before
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._raw = False
        self._reason = b""
        self._headers: list[Header] = []
        self._known = ResponseHeaders([])  # of the last answer
        self._no_body = False  # the request asked for a head only
        self._until_close = False  # an answer without a length ends with the connection

    def begin(self, reader: Reader, *, head_only: bool) -> None:
        self.reader = reader
        self._no_body = head_only

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.is_open = False
        self.reader = None
        self.transport.abort()

    # --- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reader = self.reader
        if reader is None:
            self.close()  # nobody has asked anything
            return
        if self._raw:
            reader.answer_raw(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._raw = True
            if (rest := data[upgrade.args[0] :]) and self.reader is reader:  # else it has declined
                reader.answer_raw(rest)
        except httptools.HttpParserError as error:
            self._lost(error)
        if self.reader is not None:
            self.reader.answer_paused()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._raw or self._until_close:
            self._end(reusable=False)
        elif self.reader is not None:
            self._lost(exc)
        del self._parser  # which holds us, and would until the garbage collector comes

    def pause_writing(self) -> None:
        if self.reader is not None:
            self.reader.answer_room(False)

    def resume_writing(self) -> None:
        if self.reader is not None:
            self.reader.answer_room(True)

    # --- called by the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reason, self._headers = b"", []

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.reader is not None and (status >= 200 or status == 101):
            if self._headers != self._known.raw:
                self._known = ResponseHeaders(self._headers)
            self._until_close = status >= 200 and not self._known.is_framed
            self.reader.answer_began(status, self._reason, self._known)
            if self._no_body:
                self._end(reusable=False)  # the parser expects the body that was announced

    def on_body(self, body: bytes) -> None:
        if self.reader is not None:
            self.reader.answer_data(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.reader is None or status == 101 or status < 200:
            return
        self._until_close = False
        self._end(reusable=self._parser.should_keep_alive())

    def _end(self, *, reusable: bool) -> None:
        reader, self.reader = self.reader, None
        if not reusable:
            self.is_open = False
            self.transport.abort()
        if reader is not None:
            reader.answer_ended()

    def _lost(self, error: Exception | None) -> None:
        reader, self.reader = self.reader, None
        self.is_open = False
        self.transport.abort()
        if reader is not None:
            reader.answer_lost(error)


class UpstreamPool:
    """All of them. ``take`` gives one that nobody uses, or a new one; ``give_back`` keeps it for the next."""

    def __init__(self, dial: Dial, clock: Clock) -> None:
        self.dial = dial
        self.clock = clock
        self._idle: dict[Place, deque[Upstream]] = {}

    async def take(self, target: Target, port: int, *, repeatable: bool) -> Upstream:
        """Raises ``OSError``."""
        waiting = self.idle(target, port, repeatable=repeatable)
        if waiting is not None:
            return waiting
        sock = await self.dial(target, port)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place = (target.uid, port)
        _, made = await asyncio.get_running_loop().create_connection(lambda: Upstream(place), sock=sock)
        return made

    def idle(self, target: Target, port: int, *, repeatable: bool) -> Upstream | None:
        """A connection that waits for a request. One that cannot be sent twice gets a connection that was in use a
        moment ago, or none: one that has waited may be about to be closed by the sandbox."""
        place = (target.uid, port)
        waiting = self._idle.get(place)
        earliest = 0.0 if repeatable else self.clock.monotonic() - _A_MOMENT
        while waiting and waiting[-1].idle_since >= earliest:
            upstream = waiting.pop()
            if not waiting:
                del self._idle[place]
            if upstream.is_open:
                upstream.is_fresh = False
                return upstream
        return None

    def give_back(self, upstream: Upstream) -> None:
        if not upstream.is_open:
            return
        if upstream.transport.get_write_buffer_size():
            upstream.close()  # the sandbox has not taken what it has answered
            return
        upstream.transport.resume_reading()  # it may have been stopped for the sake of who has the answer now
        upstream.idle_since = self.clock.monotonic()
        waiting = self._idle.setdefault(upstream.place, deque())
        waiting.append(upstream)
        if len(waiting) > _IDLE_MOST:
            waiting.popleft().close()

    def sweep(self) -> None:
        """Close what has waited too long."""
        before = self.clock.monotonic() - _IDLE_SECONDS
        for place, waiting in list(self._idle.items()):
            while waiting and (waiting[0].idle_since < before or not waiting[0].is_open):
                waiting.popleft().close()
            if not waiting:
                del self._idle[place]

    def close(self) -> None:
        for waiting in self._idle.values():
            for upstream in waiting:
                upstream.close()
        self._idle.clear()
