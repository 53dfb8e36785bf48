"""Selects the part of a log that a client asked for: the options of the pod log subresource."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sandpool.node.logs.files import files_of
from sandpool.node.logs.record import Record, stamp


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None  # lines
    limit: int | None = None  # maximum number of bytes
    stream: str | None = None  # stdout or stderr; None for both


class Snapshot:
    """The files of a run at this moment. Later writes are not included, and files deleted later are."""

    def __init__(self, directory: Path, run: int) -> None:
        self._files = []
        for path in files_of(directory, run):
            with suppress(FileNotFoundError):
                file = path.open("rb")
                self._files.append((file, os.fstat(file.fileno()).st_size))

    def records(self) -> Iterator[Record]:
        """Yield the records in the order in which they were written. Usable once."""
        for file, size in self._files:
            with file:
                yield from parsed(file.read(size))


def parsed(lines: bytes) -> Iterator[Record]:
    for line in lines.split(b"\n"):
        if (record := Record.parse(line)) is not None:
            yield record


def selected(found: Iterable[Record], options: LogOptions) -> Iterator[Record]:
    if options.stream is not None:
        found = (record for record in found if record.stream == options.stream)
    if options.since is not None:
        since = stamp(options.since)
        found = (record for record in found if record.time >= since)
    return iter(found) if options.tail is None else iter(_last_lines(found, options.tail))


def shown(record: Record, options: LogOptions, *, at_start: bool) -> bytes:
    """Format a record. ``at_start``: the record begins a line."""
    return record.time + b" " + record.written() if options.timestamps and at_start else record.written()


def _last_lines(found: Iterable[Record], count: int) -> list[Record]:
    """Return the last ``count`` whole lines, whatever number of records each consists of."""
    lines: deque[list[Record]] = deque(maxlen=count)
    unfinished: dict[str, list[Record]] = {}
    for record in found:
        line = unfinished.pop(record.stream, None)
        if line is None:
            line = []
            lines.append(line)
        line.append(record)
        if not record.is_complete:
            unfinished[record.stream] = line
    return [record for line in lines for record in line]
