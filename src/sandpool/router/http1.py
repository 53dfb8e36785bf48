"""Strict HTTP/1.1 parsing (RFC 9112), the same for requests of clients and responses of sandboxes.

A proxy is safe only if its reading of a message is the one reading there is. This parser therefore accepts less than
the RFC tolerates: a message has one length, stated once; lines end with CRLF; no line is folded; no NUL, CR or LF
occurs within a line. Everything else raises ``MalformedMessage``, and the connection it came from is closed.

``ResponseParser`` is a state machine for one response at a time. It returns body bytes of that response and nothing
else: bytes beyond its end raise, so a sandbox cannot append a response that the client would take for the answer to
its next request.

Memory is bounded while a message is incomplete. Bytes are counted as they arrive: ``MAX_HEAD_BYTES`` for a head with
all interim responses before it, ``MAX_TRAILER_BYTES`` for trailers, ``MAX_CHUNK_LINE_BYTES`` for the line before a
chunk. Every byte of an incomplete head is copied once and searched once.

httptools was rejected for this: it hides the position at which a head ends, it accumulates header values of any size
before it reports them, and it treats 1xx responses with a body as complete messages. One search for the empty line and
one comparison with the previous head is also faster than one callback per header.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD_BYTES: Final = 1 << 16
MAX_HEADERS: Final = 128
MAX_INTERIM_RESPONSES: Final = 8
MAX_TRAILER_BYTES: Final = 1 << 13
MAX_CHUNK_LINE_BYTES: Final = 1 << 10

Header = tuple[bytes, bytes]

_END_OF_HEAD: Final = b"\r\n\r\n"
# CR and LF occur only together, except that LF may still be missing after a CR at the end of what has arrived.
_MALFORMED_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\0")
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class MalformedMessage(Exception):
    """The peer does not speak HTTP/1.1 as this module requires it. The text is the reason."""


class HeadTooLarge(MalformedMessage):
    """The head has more bytes or more lines than are accepted."""


class Framing:
    """Length of a body as the head states it: ``length`` bytes, chunks, or neither."""

    __slots__ = ("is_chunked", "length")

    def __init__(self, fields: list[Header], *, is_http_1_0: bool) -> None:
        lengths = [value for name, value in fields if name.lower() == b"content-length"]
        codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
        if len(lengths) + len(codings) > 1:
            raise MalformedMessage("more than one message length")
        if lengths and not _LENGTH.fullmatch(lengths[0]):
            raise MalformedMessage("invalid Content-Length")
        if codings and (codings[0].lower() != b"chunked" or is_http_1_0):
            raise MalformedMessage("unsupported Transfer-Encoding")
        self.length = int(lengths[0]) if lengths else None
        self.is_chunked = bool(codings)


def parse_request_line(line: bytes) -> tuple[bytes, bytes, bool]:
    """Return the method, the target and whether the client speaks HTTP/1.0."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise MalformedMessage("invalid request line")
    return match[1], match[2], match[3] == b"0"


def parse_fields(block: bytes) -> list[Header]:
    """Parse header lines, each ended by CRLF. Whitespace around values is not part of them."""
    if not block:
        return []
    lines = block.split(b"\r\n")
    if lines.pop():
        raise MalformedMessage("header line without an end")
    if len(lines) > MAX_HEADERS:
        raise HeadTooLarge(f"more than {MAX_HEADERS} header lines")
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise MalformedMessage("invalid header line")
        fields.append((match[1], match[2].strip(b" \t")))
    return fields


class HeadBuffer:
    """Collects the bytes of heads. ``reset`` starts a new budget of ``MAX_HEAD_BYTES``."""

    __slots__ = ("_budget", "_buffer")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._budget = MAX_HEAD_BYTES

    def reset(self) -> None:
        self._budget = MAX_HEAD_BYTES

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    def take(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """Return the next head, each of its lines ended by CRLF, and the offset in ``data`` behind the empty line.
        Return None if the head is incomplete; ``data`` is then kept."""
        buffer = self._buffer
        if not buffer:
            end = data.find(_END_OF_HEAD, start, start + self._budget)
            if end >= 0:
                self._budget -= end + 4 - start
                return data[start : end + 2], end + 4
        old = len(buffer)
        buffer += data[start : start + self._budget - old + 1]
        end = buffer.find(_END_OF_HEAD, max(old - 3, 0))
        if end >= 0 and end + 4 <= self._budget:
            head = bytes(buffer[: end + 2])
            self._budget -= end + 4
            buffer.clear()
            return head, start + end + 4 - old
        if len(buffer) > self._budget:
            raise HeadTooLarge(f"more than {MAX_HEAD_BYTES} bytes")
        if _MALFORMED_LINE.search(buffer, max(old - 1, 0)):
            raise MalformedMessage("invalid end of line")  # now, because the end of the head may never come
        return None


class _ChunkState:
    SIZE, DATA, DATA_END, TRAILER = range(4)


class BodyReader:
    """Reads one body. ``is_complete`` is true from its last byte on; a body without a length completes by ``eof``."""

    __slots__ = ("_is_chunked", "_left", "_partial", "_state", "_trailer_budget", "is_complete")

    def __init__(self, framing: Framing) -> None:
        self._is_chunked = framing.is_chunked
        self._left = framing.length  # bytes of the body or of the current chunk; None: until the connection ends
        self._state = _ChunkState.SIZE
        self._partial = b""  # the beginning of a line
        self._trailer_budget = MAX_TRAILER_BYTES
        self.is_complete = self._left == 0

    def feed(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Return the body bytes in ``data`` from ``start`` on, and the offset behind this message."""
        if self._is_chunked:
            return self._feed_chunks(data, start)
        if self._left is None:
            return (data[start:] if start else data), len(data)
        end = min(start + self._left, len(data))
        self._left -= end - start
        self.is_complete = not self._left
        return (data if end - start == len(data) else data[start:end]), end

    def eof(self) -> None:
        """The connection has ended properly."""
        if self._is_chunked or self._left is not None:
            raise MalformedMessage("the connection ended within the body")
        self.is_complete = True

    def _feed_chunks(self, data: bytes, start: int) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        size = len(data)
        while start < size and not self.is_complete:
            if self._state == _ChunkState.DATA:
                assert self._left is not None
                end = min(start + self._left, size)
                pieces.append(data[start:end])
                self._left -= end - start
                start = end
                if not self._left:
                    self._state = _ChunkState.DATA_END
                continue
            line, start = self._line(data, start)
            if line is not None:
                self._line_ended(line)
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), start

    def _line(self, data: bytes, start: int) -> tuple[bytes | None, int]:
        """Return a line without its CRLF and the offset behind it, None if the line is incomplete."""
        limit = 2 if self._state == _ChunkState.DATA_END else MAX_CHUNK_LINE_BYTES
        end = data.find(b"\n", start, start + limit - len(self._partial))
        if end < 0:
            self._partial += data[start : start + limit]
            if len(self._partial) >= limit:
                raise MalformedMessage("chunk line too long")
            return None, len(data)
        line = self._partial + data[start : end + 1]
        self._partial = b""
        if line[-2:] != b"\r\n":
            raise MalformedMessage("invalid end of line")
        return line[:-2], end + 1

    def _line_ended(self, line: bytes) -> None:
        match self._state:
            case _ChunkState.SIZE:
                found = _CHUNK_LINE.fullmatch(line)
                if found is None:
                    raise MalformedMessage("invalid chunk size")
                self._left = int(found[1], 16)
                self._state = _ChunkState.DATA if self._left else _ChunkState.TRAILER
            case _ChunkState.DATA_END:
                if line:
                    raise MalformedMessage("chunk longer than its size")
                self._state = _ChunkState.SIZE
            case _ChunkState.TRAILER:
                if not line:
                    self.is_complete = True
                    return
                self._trailer_budget -= len(line) + 2
                if self._trailer_budget < 0:
                    raise HeadTooLarge(f"more than {MAX_TRAILER_BYTES} bytes of trailers")
                if _FIELD.fullmatch(line) is None:
                    raise MalformedMessage("invalid trailer")


class ResponseHead:
    """Head of a response. A parser returns the same object for the same bytes, so callers can cache by identity."""

    __slots__ = ("fields", "framing", "keeps_alive", "reason", "status")

    def __init__(
        self, status: int, reason: bytes, fields: list[Header], framing: Framing, *, keeps_alive: bool
    ) -> None:
        self.status = status
        self.reason = reason
        self.fields = fields
        self.framing = framing
        self.keeps_alive = keeps_alive


class ResponseParser:
    """State machine for the responses on one connection to a server, one at a time.

    ``begin`` announces that a request was sent; ``feed`` and ``eof`` then move through interim responses, head and body
    to ``is_complete``. In every other state a byte raises ``MalformedMessage``: before ``begin``, and after the end of
    the response, even within the same ``data``.
    """

    def __init__(self) -> None:
        self._heads = HeadBuffer()
        self._head_bytes = b""  # of the last head
        self._last: ResponseHead | None = None  # parsed; a server repeats itself
        self._body: BodyReader | None = None
        self._head_only = False
        self._upgrade_requested = False
        self._interim = 0
        self.head: ResponseHead | None = None
        self.is_complete = True
        self.is_switched = False  # to another protocol, after a 101
        self._switched = b""  # its first bytes

    def begin(self, *, head_only: bool, upgrade_requested: bool) -> None:
        self._heads.reset()
        self._body = None
        self._head_only = head_only
        self._upgrade_requested = upgrade_requested
        self._interim = 0
        self.head = None
        self.is_complete = False
        self.is_switched = False

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in ``data``. Raises ``MalformedMessage`` if a byte of it is not part of the
        response."""
        if self.is_complete:
            raise MalformedMessage("bytes after the end of the response")
        start = 0
        if self._body is None:
            start = self._feed_head(data)
            if self._body is None:
                return b""
        body, end = self._body.feed(data, start)
        if self._body.is_complete:
            self.is_complete = True
            if end < len(data):
                raise MalformedMessage("bytes after the end of the response")
        return body

    def take_switched(self) -> bytes:
        """Return the bytes of another protocol that came together with a 101."""
        first, self._switched = self._switched, b""
        return first

    def eof(self) -> None:
        """The connection has ended properly. Raises ``MalformedMessage`` if the response is incomplete."""
        if not self.is_complete:
            if self._body is None:
                raise MalformedMessage("the connection ended before the response")
            self._body.eof()
            self.is_complete = True

    def _feed_head(self, data: bytes) -> int:
        start = 0
        while (found := self._heads.take(data, start)) is not None:
            raw, start = found
            head = self._parsed(raw)
            if 100 <= head.status < 200 and head.status != 101:
                self._interim += 1
                if self._interim > MAX_INTERIM_RESPONSES:
                    raise HeadTooLarge(f"more than {MAX_INTERIM_RESPONSES} interim responses")
                continue
            if head.status == 101:
                if not self._upgrade_requested:
                    raise MalformedMessage("an upgrade that was not requested")
                self._switched, self.is_switched, self.is_complete, start = data[start:], True, True, len(data)
            elif self._head_only or head.status in (204, 304) or head.framing.length == 0:
                self.is_complete = True
            else:
                self._body = BodyReader(head.framing)
            self.head = head
            if self.is_complete and start < len(data):
                raise MalformedMessage("bytes after the end of the response")
            return start
        return len(data)

    def _parsed(self, raw: bytes) -> ResponseHead:
        if self._last is None or raw != self._head_bytes:
            self._last = self._parse(raw)
            self._head_bytes = raw
        return self._last

    def _parse(self, raw: bytes) -> ResponseHead:
        first, _, block = raw.partition(b"\r\n")
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise MalformedMessage("invalid status line")
        status, is_http_1_0 = int(match[2]), match[1] == b"0"
        fields = parse_fields(block)
        framing = Framing(fields, is_http_1_0=is_http_1_0)
        if (status < 200 or status == 204) and (framing.is_chunked or framing.length):
            raise MalformedMessage(f"status {status} with a body")
        if status < 200 and framing.length is not None:
            raise MalformedMessage(f"status {status} with a length")
        options = connection_options(fields)
        keeps_alive = b"keep-alive" in options if is_http_1_0 else b"close" not in options
        return ResponseHead(status, match[3] or b"", fields, framing, keeps_alive=keeps_alive)


def connection_options(fields: list[Header]) -> set[bytes]:
    """The members of all Connection headers, in lower case."""
    return {
        option.strip(b" \t").lower()
        for name, value in fields
        if name.lower() == b"connection"
        for option in value.split(b",")
    }
