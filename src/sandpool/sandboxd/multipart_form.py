"""Streams the file of a multipart form."""

from __future__ import annotations

from collections.abc import Iterator

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from sandpool.sandboxd.http import Request


class FormError(Exception):
    """The request is not a multipart form with a file."""


def uploaded_file(request: Request) -> tuple[str, Iterator[bytes]]:
    """Return file name and content of the part named "file". Parts before it are skipped; parts after it are read and
    discarded."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary")
    if kind != "multipart/form-data" or not boundary:
        raise FormError("a multipart form with a part named file is expected")
    segments = _segments(request, boundary)
    for piece in segments:
        if isinstance(piece, MultipartSegment) and piece.name == "file" and piece.filename is not None:
            return piece.filename, _content(segments)
    raise FormError("the form has no part named file")


def _segments(request: Request, boundary: str) -> Iterator[MultipartSegment | bytes | None]:
    """Yield, for each part, its head, the pieces of its content, and None."""
    try:
        with PushMultipartParser(boundary, max_segment_size=1 << 50) as parser:
            for data in request.body():
                yield from parser.parse(data)
    except MultipartError as error:
        raise FormError(str(error)) from error


def _content(segments: Iterator[MultipartSegment | bytes | None]) -> Iterator[bytes]:
    for piece in segments:
        if piece is None:
            break
        assert not isinstance(piece, MultipartSegment)
        yield bytes(piece)
    for _ in segments:
        pass
