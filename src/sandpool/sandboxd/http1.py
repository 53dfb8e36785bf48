"""Strict parsing of HTTP/1.1 requests (RFC 9112) without I/O.

The parser accepts less than the RFC tolerates: a body has one length, stated once; lines end with CRLF; no line is
folded. Everything else raises ``MalformedRequest``, and the server closes the connection.

Memory is bounded while a request is incomplete. Bytes are counted as they arrive: ``MAX_HEAD_BYTES`` for a head,
``MAX_TRAILER_BYTES`` for trailers, ``MAX_CHUNK_LINE_BYTES`` for the line before a chunk. Every byte of an incomplete
head is copied once and searched once.

httptools was rejected: it accumulates a header value of any size before it reports it, with a copy per read, and it
hides the position at which a head ends. It also imports ``typing``, which takes longer than the rest of the start.
``sandpool.router.http1`` has the same rules, but imports ``re``.
"""

from __future__ import annotations

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 128
MAX_TRAILER_BYTES = 1 << 13
MAX_CHUNK_LINE_BYTES = 1 << 10

_LINE_FEED = 0x0A
_END_OF_HEAD = b"\r\n\r\n"
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_ADDRESS = "0123456789."
_LOCALHOST = "localhost"
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_TARGET = bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))
_TEXT = b"\t " + _TARGET
# More digits than the size of any file has. What the router forwards is accepted: it has the same limits.
_MAX_LENGTH_DIGITS = 18
_MAX_CHUNK_SIZE_DIGITS = 15

_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


class MalformedRequest(Exception):
    """The client does not speak HTTP/1.1 as this module requires it. The text is the reason."""


class HeadTooLarge(MalformedRequest):
    """The head has more bytes or more lines than are accepted."""


class HeadBuffer:
    """Collects the bytes of one head after the other."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, data: bytes, start: int) -> tuple[bytes, int] | None:
        """Return the next head without its empty line, and the offset in ``data`` behind it. Return None if the head
        is incomplete; ``data`` is then kept.

        Empty lines before a head are skipped (RFC 9112, 2.2), also if a read ends within one.
        """
        buffer = self._buffer
        if buffer == b"\r" and data.startswith(b"\n", start):
            buffer.clear()
            start += 1
        if not buffer:
            while data.startswith(b"\r\n", start):
                start += 2
        if not buffer:
            end = data.find(_END_OF_HEAD, start, start + MAX_HEAD_BYTES)
            if end >= 0:
                return data[start:end], end + 4
        old = len(buffer)
        buffer += data[start : start + MAX_HEAD_BYTES - old + 1]
        end = buffer.find(_END_OF_HEAD, max(old - 3, 0))
        if 0 <= end <= MAX_HEAD_BYTES - 4:
            head = bytes(buffer[:end])
            buffer.clear()
            return head, start + end + 4 - old
        if len(buffer) > MAX_HEAD_BYTES:
            raise HeadTooLarge(f"more than {MAX_HEAD_BYTES} bytes")
        new = max(old - 1, 0)  # with the last byte of before, which may be a CR
        bare = buffer.count(b"\n", new) - buffer.count(b"\r\n", new)
        if bare > (old > 0 and buffer[new] == _LINE_FEED):
            raise MalformedRequest("invalid end of line")  # now, because the end of the head may never come
        return None


class RequestHead:
    """Head of one request. Header names are in lower case; of several headers of one name, the last counts.

    ``length`` is the size of the body; None if ``is_chunked``.
    """

    def __init__(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        if len(lines) - 1 > MAX_HEADERS:
            raise HeadTooLarge(f"more than {MAX_HEADERS} header lines")
        method, target, version = _request_line(lines[0])
        self.method = method.decode()
        self.target = target.decode("latin-1")
        self.is_http_1_0 = version == b"HTTP/1.0"
        self.headers: dict[str, str] = {}
        lengths: list[bytes] = []
        codings: list[bytes] = []
        for line in lines[1:]:
            name, value = _field(line)
            if name == b"content-length":
                lengths.append(value)
            elif name == b"transfer-encoding":
                codings.append(value)
            self.headers[name.decode()] = value.decode("latin-1")
        if len(lengths) + len(codings) > 1:
            raise MalformedRequest("more than one message length")
        if codings and (codings[0].lower() != b"chunked" or self.is_http_1_0):
            raise MalformedRequest("unsupported Transfer-Encoding")
        self.is_chunked = bool(codings)
        self.length = None if codings else _number(lengths[0]) if lengths else 0

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow. A client that offers another protocol might speak it afterwards."""
        options = [option.strip(" \t").lower() for option in self.headers.get("connection", "").split(",")]
        return not (self.is_http_1_0 or "close" in options or "upgrade" in self.headers or self.method == "CONNECT")


class BodyReader:
    """Reads one body. ``is_complete`` is true from its last byte on."""

    def __init__(self, head: RequestHead) -> None:
        self._is_chunked = head.is_chunked
        self._left = head.length or 0  # bytes of the body or of the current chunk
        self._state = _SIZE
        self._partial = b""  # the beginning of a line
        self._trailer_budget = MAX_TRAILER_BYTES
        self.is_complete = head.length == 0

    def feed(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Return the next piece of the body in ``data`` from ``start`` on, and the offset behind it.

        The piece is empty if ``data`` holds no more of the body. The rest of ``data`` belongs to the next request once
        the body is complete.
        """
        if self._is_chunked:
            return self._feed_chunks(data, start)
        end = min(start + self._left, len(data))
        self._left -= end - start
        self.is_complete = not self._left
        return (data if end - start == len(data) else data[start:end]), end

    def _feed_chunks(self, data: bytes, start: int) -> tuple[bytes, int]:
        while start < len(data) and not self.is_complete:
            if self._state == _DATA:
                end = min(start + self._left, len(data))
                self._left -= end - start
                if not self._left:
                    self._state = _DATA_END
                return data[start:end], end
            line, start = self._line(data, start)
            if line is not None:
                self._line_ended(line)
        return b"", start

    def _line(self, data: bytes, start: int) -> tuple[bytes | None, int]:
        """Return a line without its CRLF and the offset behind it, None if the line is incomplete."""
        limit = 2 if self._state == _DATA_END else MAX_CHUNK_LINE_BYTES
        end = data.find(b"\n", start, start + limit - len(self._partial))
        if end < 0:
            self._partial += data[start : start + limit]
            if len(self._partial) >= limit:
                raise MalformedRequest("chunk line too long")
            return None, len(data)
        line = self._partial + data[start : end + 1]
        self._partial = b""
        if line[-2:] != b"\r\n":
            raise MalformedRequest("invalid end of line")
        return line[:-2], end + 1

    def _line_ended(self, line: bytes) -> None:
        if self._state == _SIZE:
            size, _, extension = line.partition(b";")
            size = size.rstrip(b" \t")
            if not size or len(size) > _MAX_CHUNK_SIZE_DIGITS or not _consists_of(size, _HEXADECIMAL):
                raise MalformedRequest("invalid chunk size")
            if not _consists_of(extension, _TEXT):
                raise MalformedRequest("invalid chunk extension")
            self._left = int(size, 16)
            self._state = _DATA if self._left else _TRAILER
        elif self._state == _DATA_END:
            if line:
                raise MalformedRequest("chunk longer than its size")
            self._state = _SIZE
        elif not line:
            self.is_complete = True
        else:
            self._trailer_budget -= len(line) + 2
            if self._trailer_budget < 0:
                raise HeadTooLarge(f"more than {MAX_TRAILER_BYTES} bytes of trailers")
            _field(line)


def web_page_refusal(headers: dict[str, str], peer: str, local: str) -> str:
    """The reason why a request is refused as one that a web page caused; empty if it is not.

    A page that a browser in the sandbox shows must neither read files nor run commands. Its requests carry an Origin,
    or say that they are of a page. A page can also have its own DNS name resolve to the sandbox (DNS rebinding). The
    name stays in the Host header, and only connections from within can be such: ``peer`` and ``local`` are the
    addresses of the connection.
    """
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        return "requests of web pages are not accepted"
    is_from_here = peer == local or peer.startswith("127.")
    if is_from_here and not _has_no_domain(headers.get("host", "")):
        return "the Host header names another machine; use an address"
    return ""


def _has_no_domain(host: str) -> bool:
    """Whether a Host header has an address, localhost, or a single name, which no web site has."""
    if host.startswith("["):
        return True
    name = host.partition(":")[0].lower()
    return "." not in name or not name.strip(_ADDRESS) or name.endswith("." + _LOCALHOST)


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise MalformedRequest("invalid request line")
    method, target, version = parts
    if not method or not target or not _consists_of(method, _TOKEN) or not _consists_of(target, _TARGET):
        raise MalformedRequest("invalid request line")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise MalformedRequest("unsupported version")
    return method, target, version


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Return the name of a header in lower case, and its value without the whitespace around it."""
    name, colon, value = line.partition(b":")
    if not name or not colon or not _consists_of(name, _TOKEN) or not _consists_of(value, _TEXT):
        raise MalformedRequest("invalid header line")
    return name.lower(), value.strip(b" \t")


def _number(value: bytes) -> int:
    if not value or len(value) > _MAX_LENGTH_DIGITS or not _consists_of(value, _DIGITS):
        raise MalformedRequest("invalid Content-Length")
    return int(value)


def _consists_of(text: bytes, allowed: bytes) -> bool:
    return not text.translate(None, allowed)
