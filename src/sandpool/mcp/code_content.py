"""The content of a result of code: text and pictures, with limits for each kind and a count of what was dropped.

A model reads all of it, so the limits are of the whole result: code may show thousands of objects.
"""

from __future__ import annotations

import base64
from typing import Final

from mcp_types import ContentBlock, ImageContent, TextContent

from sandpool.sdk.code import Execution, Rich

#: Pictures of one result, and their bytes in all.
MAX_PICTURES: Final = 20
MAX_PICTURE_BYTES: Final = 1 << 20


def content_of(done: Execution, max_output: int) -> list[ContentBlock]:
    """What code printed and showed, the traceback if it failed, and a note on what is missing. ``max_output`` is the
    limit in bytes of each of standard output, standard error, the text of all results and the traceback."""
    results = _Results(max_output)
    for result in done.results:
        results.add(result)
    blocks = [*map(_text, filter(None, (done.stdout, done.stderr))), *results.blocks()]
    if done.error is not None:
        blocks.append(_text(_shortened(done.error.traceback, max_output)))
    missing = []
    if max(done.stdout_size, done.stderr_size) > max_output:
        sizes = f"{done.stdout_size} bytes on stdout and {done.stderr_size} on stderr"
        missing.append(f"output beyond {max_output} bytes; the code wrote {sizes}")
    missing += results.missing()
    if done.results_dropped:
        missing.append(f"{done.results_dropped} displayed objects that were too large to be sent")
    if missing:
        blocks.append(_text(f"(dropped: {'; '.join(missing)})"))
    return blocks or [_text("")]


class _Results:
    """The results in their order. Texts between two pictures are one block, because a block has a cost of its own."""

    def __init__(self, max_text: int) -> None:
        self._room = max_text
        self._blocks: list[ContentBlock] = []
        self._lines: list[str] = []
        self._text_dropped = 0
        self._pictures = 0
        self._picture_room = MAX_PICTURE_BYTES
        self._pictures_dropped = 0
        self._picture_bytes_dropped = 0

    def add(self, result: Rich) -> None:
        for data, kind in ((result.png, "png"), (result.jpeg, "jpeg")):
            if data is not None:
                if self._add_picture(data, kind):
                    return
                break
        self._add_text(result.markdown or result.text)

    def blocks(self) -> list[ContentBlock]:
        self._end_text()
        return self._blocks

    def missing(self) -> list[str]:
        """What was dropped, as parts of a sentence."""
        missing = []
        if self._text_dropped:
            missing.append(f"{self._text_dropped} bytes of the text of results")
        if self._pictures_dropped:
            missing.append(f"{self._pictures_dropped} pictures of {self._picture_bytes_dropped} bytes")
        return missing

    def _add_picture(self, data: bytes, kind: str) -> bool:
        """Whether there is room for a picture. Without, the text of its object takes its place."""
        if self._pictures == MAX_PICTURES or len(data) > self._picture_room:
            self._pictures_dropped += 1
            self._picture_bytes_dropped += len(data)
            return False
        self._pictures += 1
        self._picture_room -= len(data)
        self._end_text()
        image = ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=f"image/{kind}")
        self._blocks.append(image)
        return True

    def _add_text(self, text: str) -> None:
        data = text.encode()
        if self._room > 0:
            shown = data[: self._room].decode(errors="ignore")
            self._lines.append(shown)
            self._text_dropped += len(data) - len(shown.encode())
            self._room -= len(data) + 1  # the line break
        else:
            self._text_dropped += len(data)

    def _end_text(self) -> None:
        if self._lines:
            self._blocks.append(_text("\n".join(self._lines)))
            self._lines = []


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _shortened(text: str, limit: int) -> str:
    """The beginning and the end of a text that is longer than ``limit`` bytes: the end of a traceback has the error."""
    data = text.encode()
    if len(data) <= limit:
        return text
    half = limit // 2
    head, tail = (part.decode(errors="ignore") for part in (data[:half], data[len(data) - half :]))
    dropped = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n({dropped} bytes were dropped)\n{tail}"
