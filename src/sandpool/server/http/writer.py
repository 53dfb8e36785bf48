"""Writes responses: the output half of a connection.

A response is one write, a watch is one write per batch of events, directly to the transport. When the client reads
slower than the server writes, the transport calls ``pause`` and further writes wait in ``drained``. Lists and large
objects are written piece by piece, so a slow client occupies the write buffer limit and one piece. The rest are bytes
of the store, which all readers share. What waits is counted (see ``unread``).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterator, Sequence

import orjson

from sandpool.kube.errors import ApiError
from sandpool.server.http import response_head as head_lines
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.http.fairness import FairQueue
from sandpool.server.http.representation import PLAIN, Representation, accepts_gzip, compress, rewrite
from sandpool.server.http.response_head import HeadCache
from sandpool.server.http.unread import UnreadBytes, UnreadResponse
from sandpool.server.request.messages import LINE_END, Response, WatchLine, WatchStream
from sandpool.server.request.yaml_worker import YamlWorker

logger = logging.getLogger(__name__)

# Up to this size a copy is cheaper than a second write.
_COPY_BELOW = 65536
# Bytes of a large body that are written, or compressed, before other connections get a turn.
_PIECE = 128 * 1024
# The transport below TLS has a write buffer of its own, with the limit that event loops give it.
_TLS_BUFFER = 64 * 1024


class ResponseWriter:
    __slots__ = ("_gzip_above", "_heads", "_transport", "_unread", "_waiter", "_yaml")

    def __init__(
        self, transport: asyncio.Transport, heads: HeadCache, yaml: YamlWorker, unread: UnreadBytes, gzip_above: int
    ) -> None:
        self._unread = unread
        self._yaml = yaml
        self._heads = heads
        self._transport = transport
        self._gzip_above = gzip_above
        self._waiter: asyncio.Future[None] | None = None

    # -- back-pressure -----------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        return self._waiter is not None

    def pause(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def drained(self, cycle: RequestCycle, shared: bytes | None = None, *, holds_states: bool = False) -> None:
        """Wait for the client to read. Meanwhile the buffers count, and ``shared``, the object that is being sent."""
        while self._waiter is not None:
            user = cycle.flow.key if cycle.flow is not None else ""
            own = self._transport.get_write_buffer_size() + _TLS_BUFFER
            holds_since = cycle.superseded if holds_states else None
            response = UnreadResponse(user, own, shared, holds_since, self._transport.abort)
            with self._unread.waiting(response):
                await self._waiter

    # -- answers -----------------------------------------------------------------------------------------------------

    def send_plain(self, cycle: RequestCycle, response: Response, wanted: Representation) -> bool:
        """Write a response of the common case: compact JSON, short, on a connection that stays open. Else False."""
        if (
            wanted is not PLAIN
            or response.stream is not None
            or response.parts is not None
            or response.headers
            or cycle.legacy
            or not cycle.keep_alive
        ):
            return False
        body = response.encoded or response.encode()
        if len(body) > _COPY_BELOW or cycle.request.method == "HEAD":
            return False
        prefix = self._heads.prefix(response.status, response.content_type)
        self._transport.write(
            b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (prefix, cycle.audit_id.encode(), len(body), body)
        )
        cycle.sent = len(body)
        return True

    async def send(self, cycle: RequestCycle, response: Response, wanted: Representation) -> None:
        if wanted is not PLAIN:
            response = await rewrite(response, wanted, self._yaml)
        if response.size > _PIECE:
            await self._send_large(cycle, response)
            return
        body, content_type, more = response.encode(), response.content_type, response.headers
        if len(body) > self._gzip_above and accepts_gzip(cycle.request.headers):
            body = await asyncio.to_thread(compress, body)
            more = [*more, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        head = self._head(cycle, response.status, content_type, more, b"Content-Length: %d\r\n" % len(body))
        if cycle.request.method == "HEAD":
            self._transport.write(head)
        elif len(body) <= _COPY_BELOW:
            self._transport.write(head + body)
        else:  # not worth a copy
            self._transport.write(head)
            self._transport.write(body)
        cycle.sent = len(body)

    async def _send_large(self, cycle: RequestCycle, response: Response) -> None:
        """Write a body in pieces. After each, other connections get a turn, or this one waits for its client."""
        zipped = not cycle.legacy and response.size > self._gzip_above and accepts_gzip(cycle.request.headers)
        more = response.headers
        if zipped:
            more = [*more, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            framing = b"Content-Length: %d\r\n" % response.size
        self._transport.write(self._head(cycle, response.status, response.content_type, more, framing))
        if cycle.request.method == "HEAD":
            return
        compressor = zlib.compressobj(1, wbits=31)  # gzip; see ``compress`` for the level
        response.object = None  # the client may take its time
        holds_states = response.parts is not None
        for piece in _pieces(response.parts or [response.encode()]):
            if zipped:
                self._write_chunk(cycle, await asyncio.to_thread(compressor.compress, piece))
            else:
                self._transport.write(piece)
                cycle.sent += len(piece)
            if self._waiter is not None:
                await self.drained(cycle, response.encoded, holds_states=holds_states)
            else:
                await asyncio.sleep(0)
            if self._transport.is_closing():
                return
        if zipped:
            self._write_chunk(cycle, compressor.flush())
            self._transport.write(head_lines.LAST_CHUNK)

    async def stream(self, cycle: RequestCycle, response: Response, events: WatchStream, queue: FairQueue) -> None:
        """Write the events of a watch until it ends, in the turns of its user. Cancelled when the client
        disconnects."""
        flow = cycle.flow
        assert flow is not None
        framing = b"" if cycle.legacy else b"Transfer-Encoding: chunked\r\n"
        try:
            self._transport.write(self._head(cycle, response.status, response.content_type, response.headers, framing))
            async for batch in events:
                # One change wakes all watches of its objects: they write in turns, and meanwhile changes collect.
                await queue.next_turn(flow)
                await self._write_batch(cycle, batch, events)
                batch.clear()
                if self._waiter is not None:
                    await self.drained(cycle, holds_states=events.holds_states())
        except ApiError as error:
            self._write_chunk(cycle, _error_line(error))
        except Exception:
            logger.exception("watch %s on %s failed", cycle.audit_id, cycle.request.path)
            self._write_chunk(cycle, _error_line(head_lines.internal_error(cycle.audit_id)))
        finally:
            await events.aclose()
        if not cycle.legacy:
            self._transport.write(head_lines.LAST_CHUNK)

    async def _write_batch(self, cycle: RequestCycle, batch: list[WatchLine], events: WatchStream) -> None:
        """Write a batch as one chunk; an object that is larger than a piece, in pieces."""
        if len(batch) != 1 or len(batch[0].encoded) <= _PIECE:
            self._write_chunk(cycle, b"".join([event.line() for event in batch]))
            return
        (event,) = batch
        encoded = event.encoded
        batch.clear()  # so that only ``encoded`` is held while the client does not read
        self._write_chunk(cycle, event.start())
        del event
        for piece in _pieces([encoded]):
            self._write_chunk(cycle, piece)
            if self._waiter is not None:
                await self.drained(cycle, encoded, holds_states=events.holds_states())
            else:
                await asyncio.sleep(0)
        self._write_chunk(cycle, LINE_END)

    def switch(self, cycle: RequestCycle, response: Response) -> None:
        """Write 101 Switching Protocols, the last HTTP response on the connection."""
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nAudit-Id: %b\r\n%b\r\n"
            % (cycle.audit_id.encode(), head_lines.lines(response.headers))
        )

    def allow_body(self) -> None:
        self._transport.write(head_lines.CONTINUE)

    def _write_chunk(self, cycle: RequestCycle, data: bytes) -> None:
        if data:  # an empty chunk would end the stream
            self._transport.write(data if cycle.legacy else b"%x\r\n%b\r\n" % (len(data), data))
            cycle.sent += len(data)

    def _head(
        self, cycle: RequestCycle, status: int, content_type: str, more: list[tuple[str, str]], framing: bytes
    ) -> bytes:
        if cycle.keep_alive:
            connection = b"Connection: keep-alive\r\n" if cycle.legacy else b""
        else:
            connection = b"Connection: close\r\n"
        return b"".join(
            (
                self._heads.prefix(status, content_type),
                cycle.audit_id.encode(),
                b"\r\n",
                head_lines.lines(more) if more else b"",
                connection,
                framing,
                b"\r\n",
            )
        )


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """Join small parts and split large ones, so that the pieces have about ``_PIECE`` bytes."""
    small: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            small.append(piece)
            size += len(piece)
            if size >= _PIECE:
                yield b"".join(small)
                small, size = [], 0
    if small:
        yield b"".join(small)


def _error_line(error: ApiError) -> bytes:
    return WatchLine("ERROR", None, orjson.dumps(error.status())).line()
