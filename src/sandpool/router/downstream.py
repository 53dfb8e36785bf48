"""The client's side: one connection, one request after the other, each passed on to the sandbox it names."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from sandpool.router import headers
from sandpool.router.destination import RequestRejected
from sandpool.router.exchange import Exchange
from sandpool.router.headers import Header, RequestHeaders

if TYPE_CHECKING:
    from sandpool.router.router import Router

_LONGEST_HEAD: Final = 1 << 16
_NO_LINGERING: Final = struct.pack("ii", 1, 0)  # the other side is told that this was no proper end


class Downstream(asyncio.Protocol):
    def __init__(self, router: Router) -> None:
        self.router = router
        self.transport = cast(asyncio.Transport, None)
        self._client = ""
        self._parser = httptools.HttpRequestParser(self)
        # In the order in which they came: the first is in service, the last may still be arriving.
        self._exchanges: deque[Exchange] = deque()
        self._target = b""
        self._headers: list[Header] = []
        self._known = RequestHeaders([])  # of the last request
        self._head_size = 0
        self._resting_since = router.clock.monotonic()  # if nothing is in service
        # One for the connection, because arming one for each request costs more than finding that it came too early.
        self._alarm: asyncio.TimerHandle | None = None
        self._raw = False
        self._closing = False
        self.has_room = True  # for more of an answer

    # --- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._client = peer[0] if isinstance(peer, tuple) else ""
        self.router.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._raw and self._exchanges:
            self._exchanges[0].raw(data)
            return
        self._feed(data)
        # Now, and not when its head was complete: what has come of the body by now goes with it.
        if self._exchanges and not self._exchanges[0].has_begun and not self.transport.is_closing():
            self._exchanges[0].begin()
        if len(self._exchanges) > 1:
            self.transport.pause_reading()  # they wait their turn, and so does their sender

    def connection_lost(self, exc: Exception | None) -> None:
        self.router.connections.discard(self)
        if self._alarm is not None:
            self._alarm.cancel()
        for exchange in self._exchanges:
            exchange.client_gone()
        self._exchanges.clear()
        del self._parser  # which holds us, and would until the garbage collector comes

    def pause_writing(self) -> None:
        self.has_room = False
        if self._exchanges:
            self._exchanges[0].client_room(False)

    def resume_writing(self) -> None:
        self.has_room = True
        if self._exchanges:
            self._exchanges[0].client_room(True)

    # --- called by the exchange --------------------------------------------------------------------------------------

    def finished(self, *, keep: bool) -> None:
        """The answer is complete."""
        exchange = self._exchanges.popleft()
        self._resting_since = self.router.clock.monotonic()
        if not keep or self._closing or not exchange.is_received:
            self.transport.close()
        elif self._exchanges:
            # Not from here: answers of our own would pile up on the stack, as many as were asked for.
            asyncio.get_running_loop().call_soon(self._exchanges[0].begin)
        if len(self._exchanges) < 2 and not self.transport.is_closing():
            self.transport.resume_reading()

    def answer_within(self, seconds: float) -> float:
        """See to it that the exchange in service is told when that has passed; the time when it has."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm is not None and self._alarm.when() > at:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = loop.call_at(at, self._look_at_the_time)
        return at

    def _look_at_the_time(self) -> None:
        self._alarm = None
        if not self._exchanges or (at := self._exchanges[0].deadline) is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= at:
            self._exchanges[0].too_late()
        else:
            self._alarm = loop.call_at(at, self._look_at_the_time)

    def reset(self) -> None:
        """End the connection in a way that nobody takes for the end of an answer."""
        if not self.transport.is_closing():
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            self.transport.abort()

    def switched(self) -> None:
        self._raw = True

    def rests_since(self, moment: float) -> bool:
        """Whether no request has been in service since then. One whose head has not come to its end does not count:
        it may never."""
        return not self._exchanges and self._resting_since <= moment

    def end(self) -> None:
        """The router stops: no further request is taken."""
        self._closing = True
        if not self._exchanges:
            self.transport.close()

    # --- called by the parser ----------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._exchanges[-1].upgrade_offered(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            self._refuse(RequestRejected(400, "This is not HTTP."))

    def on_message_begin(self) -> None:
        # What followed the body of the request before was told as headers, too.
        self._target, self._headers, self._head_size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_size += len(url)
        if self._head_size > _LONGEST_HEAD:
            self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        self._head_size += len(name) + len(value)
        if self._head_size > _LONGEST_HEAD:
            self._too_long()

    def on_headers_complete(self) -> None:
        parser = self._parser
        old = parser.get_http_version() < "1.1"
        if self._headers != self._known.raw or old != self._known.old:
            self._known = RequestHeaders(self._headers, old=old)
        exchange = Exchange(
            self, parser.get_method(), self._target, self._known, self._client, keep=parser.should_keep_alive()
        )
        self._headers = []
        self._exchanges.append(exchange)

    def on_body(self, body: bytes) -> None:
        if self._exchanges:
            self._exchanges[-1].body(body)

    def on_message_complete(self) -> None:
        if self._exchanges:
            self._exchanges[-1].body_ended()

    def _too_long(self) -> None:
        self._refuse(RequestRejected(400, "The head of the request is too long."))

    def _refuse(self, refusal: RequestRejected) -> None:
        self.transport.write(headers.answer(refusal.status, refusal.detail, connection=headers.CLOSE))
        self.transport.close()
