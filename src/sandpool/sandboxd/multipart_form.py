"""The file in a form, as it arrives."""

from __future__ import annotations

from collections.abc import Iterator

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from sandpool.sandboxd.http import Request


class FormError(Exception):
    """There is no file in the request."""


def uploaded_file(request: Request) -> tuple[str, Iterator[bytes]]:
    """The name of the part called "file", and its content piece by piece. Fields before it are skipped, what comes
    after it is read and dropped."""
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
    """The head of each part, its content, None after it."""
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
