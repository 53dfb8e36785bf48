"""Selects the part of a log that a client asked for: the options of the pod log subresource."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Final

from sandpool.node.logs.files import files_of
from sandpool.node.logs.record import Record, stamp

# Bytes of the records that are in memory for a client, and what each takes besides its text.
_PIECE: Final = 1 << 18
_OVERHEAD: Final = 256


@dataclass(frozen=True, slots=True)
class LogOptions:
    follow: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None  # lines
    limit: int | None = None  # maximum number of bytes
    stream: str | None = None  # stdout or stderr; None for both


class Snapshot:
    """The files of a run at this moment. Later writes are not included, and files deleted later are.

    Records are read as they are needed: a file has up to a quarter of a million of them, which take several times its
    size in memory. ``close`` it."""

    def __init__(self, directory: Path, run: int) -> None:
        self._files = []
        for path in files_of(directory, run):
            with suppress(FileNotFoundError):
                file = path.open("rb")
                self._files.append((file, os.fstat(file.fileno()).st_size))

    def records(self) -> Iterator[Record]:
        """Yield the records in the order in which they were written."""
        for file, size in self._files:
            file.seek(0)
            while size and (line := file.readline(size)):
                size -= len(line)
                if (record := Record.parse(line.removesuffix(b"\n"))) is not None:
                    yield record

    def selected(self, options: LogOptions) -> Iterator[Record]:
        """Yield the records that a client asked for. Reads the files twice for the last lines: there is no limit on how
        many a client may ask for."""
        if options.tail is None:
            yield from selected(self.records(), options)
            return
        last = max((number for number, _ in _numbered(selected(self.records(), options))), default=-1)
        for number, record in _numbered(selected(self.records(), options)):
            if number > last - options.tail:
                yield record

    def end(self, limit: int) -> bytes:
        """The last ``limit`` bytes of what the container wrote."""
        end = bytearray()
        for record in self.records():
            end += record.written()
            if len(end) > limit + _PIECE:
                del end[:-limit]
        return bytes(end[max(len(end) - limit, 0) :])

    def close(self) -> None:
        for file, _ in self._files:
            file.close()


def parsed(lines: bytes) -> Iterator[Record]:
    """Yield the records of complete lines."""
    for line in BytesIO(lines):
        if (record := Record.parse(line.removesuffix(b"\n"))) is not None:
            yield record


def selected(found: Iterable[Record], options: LogOptions) -> Iterator[Record]:
    """Yield the records of a stream and time that a client asked for."""
    since = None if options.since is None else stamp(options.since)
    for record in found:
        if options.stream in (None, record.stream) and (since is None or record.time >= since):
            yield record


def batch(found: Iterator[Record]) -> list[Record]:
    """Take some records, at least one if there is one."""
    taken: list[Record] = []
    size = 0
    while size < _PIECE and (record := next(found, None)) is not None:
        taken.append(record)
        size += len(record.text) + _OVERHEAD
    return taken


def shown(record: Record, options: LogOptions, *, at_start: bool) -> bytes:
    """Format a record. ``at_start``: the record begins a line."""
    return record.time + b" " + record.written() if options.timestamps and at_start else record.written()


def _numbered(found: Iterable[Record]) -> Iterator[tuple[int, Record]]:
    """Number the lines, each of which consists of one or more records of its stream."""
    unfinished: dict[str, int] = {}
    count = 0
    for record in found:
        number = unfinished.pop(record.stream, None)
        if number is None:
            number, count = count, count + 1
        if not record.is_complete:
            unfinished[record.stream] = number
        yield number, record
