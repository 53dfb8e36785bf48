"""SPDY/3.1 frames, as far as Kubernetes clients use them; no I/O.

Headers are compressed with one zlib stream per direction for the lifetime of a connection, so a ``Decoder`` and an
``Encoder`` belong to one connection and must see its frames in order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

SYN_STREAM: Final = 1
SYN_REPLY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7

FIN: Final = 1  # flag: the sender sends no more on this stream
PROTOCOL_ERROR: Final = 1
REFUSED_STREAM: Final = 3
CANCEL: Final = 5

_VERSION: Final = 3
_CONTROL: Final = 0x80000000
_HEAD: Final = struct.Struct(">II")
_LONGEST: Final = 1 << 20  # of a frame; clients send at most some tens of kilobytes
_LONGEST_HEADERS: Final = 1 << 16

# The initial zlib dictionary: words of HTTP with their lengths, then fragments of values.
_WORDS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status|200 OK|version|HTTP/1.1|url public set-cookie "
    "keep-alive origin"
)
_FRAGMENTS: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _words() -> Iterator[str]:
    for part in _WORDS.split("|"):
        # Only one of the words contains a space.
        yield from [part] if part == "200 OK" else part.split(" ")


DICTIONARY: Final = b"".join(struct.pack(">I", len(word)) + word.encode() for word in _words()) + _FRAGMENTS.encode()


class SpdyError(Exception):
    """The peer violated the protocol; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Control:
    """A control frame. ``stream`` is 0 for frames without a stream. ``number`` is the status of a reset, the ID of a
    ping, the last stream of a GOAWAY, or the size of a window update."""

    kind: int
    stream: int = 0
    fin: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    stream: int
    data: bytes
    fin: bool = False


class Encoder:
    def __init__(self) -> None:
        self._compressor = zlib.compressobj(zdict=DICTIONARY)

    def data(self, frame: Data) -> bytes:
        return _HEAD.pack(frame.stream, (FIN if frame.fin else 0) << 24 | len(frame.data)) + frame.data

    def control(self, frame: Control) -> bytes:
        match frame.kind:
            case 1:
                body = struct.pack(">IIH", frame.stream, 0, 0) + self._headers(frame.headers)
            case 2:
                body = struct.pack(">I", frame.stream) + self._headers(frame.headers)
            case 6:
                body = struct.pack(">I", frame.number)
            case 4:
                body = struct.pack(">I", 0)
            case _:
                body = struct.pack(">II", frame.stream, frame.number)
        flags = (FIN if frame.fin else 0) << 24
        return _HEAD.pack(_CONTROL | _VERSION << 16 | frame.kind, flags | len(body)) + body

    def _headers(self, headers: Mapping[str, str]) -> bytes:
        parts = [struct.pack(">I", len(headers))]
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                parts += [struct.pack(">I", len(text)), text]
        return self._compressor.compress(b"".join(parts)) + self._compressor.flush(zlib.Z_SYNC_FLUSH)


class Decoder:
    """``feed`` yields complete frames. Unused kinds are skipped."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(zdict=DICTIONARY)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Control | Data]:
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            first, second = _HEAD.unpack_from(self._buffer)
            length = second & 0xFFFFFF
            if length > _LONGEST:
                raise SpdyError(f"a frame of {length} bytes is too long")
            if len(self._buffer) < _HEAD.size + length:
                return
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            fin = bool(second >> 24 & FIN)
            if not first & _CONTROL:
                yield Data(first, body, fin)
                continue
            if first >> 16 & 0x7FFF != _VERSION:
                raise SpdyError(f"version {first >> 16 & 0x7FFF} is not supported")
            frame = self._control(first & 0xFFFF, fin, body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, fin: bool, body: bytes) -> Control | None:
        try:
            match kind:
                case 1:
                    return Control(kind, _stream(body), fin, self._headers(body[10:]))
                case 2:
                    return Control(kind, _stream(body), fin, self._headers(body[4:]))
                case 6:
                    return Control(kind, number=_number(body, 0))
                case 3 | 7 | 9:
                    return Control(kind, _stream(body), number=_number(body, 4))
        except (struct.error, zlib.error) as error:
            raise SpdyError(f"invalid frame: {error}") from error
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        text = self._decompressor.decompress(block, _LONGEST_HEADERS)
        if self._decompressor.unconsumed_tail:
            raise SpdyError("the headers of a stream are too long")
        offset, headers = 4, {}
        for _ in range(_number(text, 0)):
            pair: list[str] = []
            for _ in range(2):
                length = _number(text, offset)
                offset += 4 + length
                if offset > len(text):
                    raise SpdyError("truncated headers")
                pair.append(text[offset - length : offset].decode("latin-1"))
            headers[pair[0].lower()] = pair[1]
        return headers


def _stream(body: bytes) -> int:
    return _number(body, 0) & 0x7FFFFFFF


def _number(body: bytes, offset: int) -> int:
    number: int = struct.unpack_from(">I", body, offset)[0]
    return number
