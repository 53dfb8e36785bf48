"""One connection of a client: its requests are read one after the other and each is forwarded as an ``Exchange``."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, cast

from sandpool.router.destination import RequestRejected
from sandpool.router.exchange import Exchange
from sandpool.router.headers import CLOSE, RequestHeaders, error_response
from sandpool.router.http1 import (
    BodyReader,
    HeadBuffer,
    HeadTooLarge,
    MalformedMessage,
    parse_fields,
    parse_request_line,
)
from sandpool.router.tokens import ALL

if TYPE_CHECKING:
    from sandpool.router.router import Router

# Requests that are parsed before the first of them is answered. Further ones wait as bytes.
_MOST_AHEAD: Final = 16
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection. ``via_loopback`` is true if the router was reached at a loopback address.
    The connection itself proves that the client may reach the sandboxes of the namespace ``granted``: ``ALL`` for every
    namespace, empty for none."""

    address: str = "127.0.0.1"
    via_loopback: bool = True
    granted: str = ""

    def reaches(self, namespace: str) -> bool:
        return bool(self.granted) and self.granted in (namespace, ALL)


class Downstream(asyncio.Protocol):
    """Parses requests and writes their responses in order. ``granted`` is for connections that the API server has
    authorized; see ``Peer``."""

    def __init__(self, router: Router, *, granted: str = "") -> None:
        self.router = router
        self.transport = cast(asyncio.Transport, None)
        self.peer = Peer(granted=granted)
        self._heads = HeadBuffer()
        self._body: BodyReader | None = None  # of the request that is arriving, until it is complete
        self._block = b""  # the header lines that ``_headers`` were made of
        self._headers = RequestHeaders([])
        # In order of arrival: the first is in service, the last may still be arriving.
        self._exchanges: deque[Exchange] = deque()
        self._idle_since = router.clock.monotonic()
        self._head_since: float | None = self._idle_since  # since when the head of a request is incomplete
        # One timer per connection: arming one per request costs more than finding that a timer fired too early.
        self._timer: asyncio.TimerHandle | None = None
        self._is_switched = False
        self._closing = False
        self._rest = b""  # requests that are not parsed yet, because enough others wait
        self.is_writable = True  # the client takes more of a response
        self._blocked_since: float | None = None  # since when it does not

    # --- called by the transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peer, tuple) and isinstance(local, tuple):
            self.peer = Peer(peer[0], _is_loopback(local[0]), ALL if self.router.trusts(peer, local) else "")
        try:
            self.router.admit(self)
        except RequestRejected as rejection:
            self._closing = True
            self._reject(rejection)

    def data_received(self, data: bytes) -> None:
        if self._is_switched:
            if self._exchanges:
                self._exchanges[0].forward_raw(data)
            return
        if self._closing and not self._exchanges:
            return
        if self._rest:
            self._rest += data  # was under way when reading paused
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        try:
            self._feed(data)
        except HeadTooLarge as error:
            self._malformed(RequestRejected(431, f"The head of the request is too large: {error}."))
        except MalformedMessage as error:
            self._malformed(RequestRejected(400, f"This is not HTTP: {error}."))
        # Only now, so that the part of the body that has arrived is sent together with the head.
        self._begin()
        if len(self._exchanges) > 1 or self._rest:
            self.transport.pause_reading()

    def _begin(self) -> None:
        """Forward the first request that waits, if the client takes responses: one that only sends would otherwise have
        the router keep an answer to each request."""
        may_begin = self.is_writable and not self.transport.is_closing()
        if self._exchanges and not self._exchanges[0].has_begun and may_begin:
            self._exchanges[0].begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self.router.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        for exchange in self._exchanges:
            exchange.client_gone()
        self._exchanges.clear()

    def pause_writing(self) -> None:
        self.is_writable = False
        self._blocked_since = self.router.clock.monotonic()
        if self._exchanges:
            self._exchanges[0].client_writable(False)

    def resume_writing(self) -> None:
        self.is_writable, self._blocked_since = True, None
        if self._exchanges:
            self._exchanges[0].client_writable(True)
        self._begin()

    # --- called by the exchange --------------------------------------------------------------------------------------

    def finished(self, *, keep: bool) -> None:
        """The response of the exchange in service is complete."""
        exchange = self._exchanges.popleft()
        self._idle_since = self.router.clock.monotonic()
        if not keep or not exchange.is_received or (self._closing and not self._exchanges):
            self.transport.close()
        elif self._exchanges or self._rest:
            # Not from here: thousands of pipelined requests that the router answers itself would nest on the stack.
            asyncio.get_running_loop().call_soon(self._continue)
        if len(self._exchanges) < 2 and not self._rest and not self._closing and not self.transport.is_closing():
            self.transport.resume_reading()

    def _continue(self) -> None:
        """Go on with requests that have arrived."""
        self._begin()
        if self._rest and len(self._exchanges) < _MOST_AHEAD and not self._closing and not self.transport.is_closing():
            rest, self._rest = self._rest, b""
            self.transport.resume_reading()
            self._receive(rest)

    def answer_within(self, seconds: float) -> float:
        """Call ``timed_out`` of the exchange in service after this time. Return its deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._check_deadline)
        return deadline

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._exchanges or (deadline := self._exchanges[0].deadline) is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            self._exchanges[0].timed_out()
        else:
            self._timer = loop.call_at(deadline, self._check_deadline)

    def reset(self) -> None:
        """Close the connection with RST, so that the client does not take its end for the end of a response."""
        if not self.transport.is_closing():
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()

    def switched(self) -> None:
        """From now on the client speaks another protocol."""
        self._is_switched = True

    # --- called by the router ----------------------------------------------------------------------------------------

    def close_if_expired(self, idle_before: float, head_before: float) -> None:
        """Close the connection if it is idle since ``idle_before``, or if since ``head_before`` a head is incomplete or
        the client takes no answer. A response that has begun has a deadline of its own."""
        is_answering = bool(self._exchanges) and self._exchanges[0].has_begun
        if not is_answering and self._blocked_since is not None and self._blocked_since <= head_before:
            self.transport.abort()
        if self._exchanges:
            return
        if self._head_since is not None and self._head_since <= head_before:
            if self._heads.is_empty:
                self.transport.close()
            else:
                self._reject(RequestRejected(408, "The head of the request did not arrive in time."))
        elif self._idle_since <= idle_before:
            self.transport.close()

    @property
    def idle_since(self) -> float | None:
        """Since when no request is in service, None if one is."""
        return None if self._exchanges else self._idle_since

    def drain(self) -> None:
        """Accept no further request, and close the connection after those that were accepted."""
        self._closing = True
        if not self._exchanges:
            self.transport.close()

    # --- requests ----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        start, size = 0, len(data)
        while start < size:
            if self._body is None and len(self._exchanges) >= _MOST_AHEAD:
                self._rest = data[start:]
                return
            if self._body is not None:
                body, start = self._body.feed(data, start)
                exchange = self._exchanges[-1]
                if body:
                    exchange.request_data(body)
                if self._body.is_complete:
                    self._body = None
                    exchange.request_ended()
                continue
            if self._heads.is_empty and data.startswith(b"\r\n", start):
                start += 2  # RFC 9112, 2.2: old clients send an empty line after a body
                continue
            head = self._heads.take(data, start)
            if head is None:
                if self._head_since is None:
                    self._head_since = self.router.clock.monotonic()
                return
            self._head_since = None
            self._heads.reset()
            start = head[1]
            raw = head[0].removeprefix(b"\r\n")  # an empty line that came in two reads
            if not raw:
                continue
            exchange = self._exchange(raw)
            self._exchanges.append(exchange)
            if exchange.headers.has_body:
                self._body = BodyReader(exchange.headers.framing)
            elif exchange.headers.upgrade:
                exchange.upgrade_requested(data[start:])
                return
            else:
                exchange.request_ended()

    def _exchange(self, head: bytes) -> Exchange:
        line, _, block = head.partition(b"\r\n")
        method, target, is_http_1_0 = parse_request_line(line)
        if block != self._block or is_http_1_0 != self._headers.is_http_1_0:
            self._headers = RequestHeaders(parse_fields(block), is_http_1_0=is_http_1_0)
            self._block = block
        return Exchange(self, method, target, self._headers)

    def _malformed(self, rejection: RequestRejected) -> None:
        """Read nothing more. Requests before the malformed one are still answered."""
        self._closing = True
        self.transport.pause_reading()
        if not self._exchanges:
            self._reject(rejection)
        elif self._body is not None and len(self._exchanges) == 1:
            self._exchanges[0].request_malformed(rejection)
        elif self._body is not None:
            self._exchanges.pop().client_gone()

    def _reject(self, rejection: RequestRejected) -> None:
        self.transport.write(error_response(rejection.status, rejection.detail, connection=CLOSE))
        self.transport.close()


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
