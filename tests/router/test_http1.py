"""The limits of the parser, exactly: the last accepted size and the first rejected one."""

from __future__ import annotations

import pytest

from sandpool.router.http1 import (
    MAX_CHUNK_LINE_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_INTERIM_RESPONSES,
    MAX_TRAILER_BYTES,
    HeadTooLarge,
    MalformedMessage,
    ResponseParser,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def parse(*pieces: bytes) -> ResponseParser:
    parser = ResponseParser()
    parser.begin(head_only=False, upgrade_requested=False)
    for piece in pieces:
        parser.feed(piece)
    return parser


def padded(size: int) -> bytes:
    """A response head of so many bytes, in two headers."""
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("split", [False, True])
def test_few_interim_responses_are_accepted(split: bool) -> None:
    allowed = [INTERIM] * MAX_INTERIM_RESPONSES
    assert parse(*([*allowed, OK] if split else [b"".join([*allowed, OK])])).is_complete
    one_more = [INTERIM] * (MAX_INTERIM_RESPONSES + 1)
    with pytest.raises(HeadTooLarge, match="interim"):
        parse(*([*one_more, OK] if split else [b"".join([*one_more, OK])]))


def test_head_has_a_size() -> None:
    assert parse(padded(MAX_HEAD_BYTES)).is_complete
    for pieces in ([padded(MAX_HEAD_BYTES + 1)], [padded(MAX_HEAD_BYTES + 1)[:100], padded(MAX_HEAD_BYTES + 1)[100:]]):
        with pytest.raises(HeadTooLarge):
            parse(*pieces)


def test_interim_responses_and_head_share_a_size() -> None:
    interim = b"HTTP/1.1 103 x\r\nX: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    with pytest.raises(HeadTooLarge):
        parse(interim, interim, OK)


def test_number_of_headers_is_limited() -> None:
    start, line = b"HTTP/1.1 204 x\r\n", b"A: b\r\n"
    assert parse(start + line * MAX_HEADERS + b"\r\n").is_complete
    with pytest.raises(HeadTooLarge):
        parse(start + line * (MAX_HEADERS + 1) + b"\r\n")


def test_trailers_have_a_size() -> None:
    assert parse(CHUNKED, b"0\r\n", b"A: b\r\n" * 100, b"\r\n").is_complete
    with pytest.raises(HeadTooLarge, match="trailers"):
        parse(CHUNKED, b"0\r\n", *[b"A: b\r\n"] * (MAX_TRAILER_BYTES // 6 + 1))


def test_line_of_a_chunk_has_a_size() -> None:
    assert parse(CHUNKED, b"0;" + b"x" * (MAX_CHUNK_LINE_BYTES // 2) + b"\r\n\r\n").is_complete
    with pytest.raises(MalformedMessage):
        parse(CHUNKED, b"1;" + b"x" * (MAX_CHUNK_LINE_BYTES + 1))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 199 x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 x\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 102 x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_response_without_a_body_has_no_framing(head: bytes) -> None:
    with pytest.raises(MalformedMessage, match="with a"):
        parse(head)
