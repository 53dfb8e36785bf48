"""Lines of a log file: time, stream, whether the line is complete, and text.

The format is that of container runtimes (CRI), which log collectors of Kubernetes nodes read:

    2026-11-16T10:00:00.123456000Z stdout F hello
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

STDOUT: Final = "stdout"
STDERR: Final = "stderr"

# A longer line is split into parts. This also bounds the memory for a line that does not end.
LONGEST: Final = 16384

_WHOLE, _PART = b"F", b"P"


class Record(NamedTuple):
    time: bytes
    stream: str
    is_complete: bool  # False: the next record of this stream continues the line
    text: bytes

    @classmethod
    def parse(cls, line: bytes) -> Record | None:
        """Return None if the line is no record, such as half a line after a crash."""
        parts = line.split(b" ", 3)
        if len(parts) != 4 or parts[2] not in (_WHOLE, _PART):
            return None
        return cls(parts[0], parts[1].decode(errors="replace"), parts[2] == _WHOLE, parts[3])

    def written(self) -> bytes:
        """The text as the container wrote it."""
        return self.text + b"\n" if self.is_complete else self.text


def stamp(moment: datetime) -> bytes:
    """RFC 3339 with nanoseconds, of which the last three are always zero."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


class Splitter:
    """Splits one stream into log lines, whatever pieces it arrives in."""

    def __init__(self, stream: str) -> None:
        self.stream = stream.encode()
        self._rest = b""

    def feed(self, data: bytes, time: bytes) -> bytes:
        """Return the lines that are complete now, or too long to wait for their end."""
        *lines, rest = (self._rest + data).split(b"\n")
        out = []
        for line in lines:
            while len(line) > LONGEST:
                out.append(self._line(line[:LONGEST], _PART, time))
                line = line[LONGEST:]
            out.append(self._line(line, _WHOLE, time))
        while len(rest) >= LONGEST:
            out.append(self._line(rest[:LONGEST], _PART, time))
            rest = rest[LONGEST:]
        self._rest = rest
        return b"".join(out)

    def finish(self, time: bytes) -> bytes:
        """Return the rest when the stream has ended."""
        rest, self._rest = self._rest, b""
        return self._line(rest, _PART, time) if rest else b""

    def _line(self, text: bytes, tag: bytes, time: bytes) -> bytes:
        return b" ".join((time, self.stream, tag, text)) + b"\n"
