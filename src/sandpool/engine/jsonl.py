"""JSON Lines files that are written in the background: adding an entry costs the caller one append to a list.

A thread formats the entries and writes them, at least once a second. When the thread cannot keep up or the disk refuses
writes, entries are dropped and counted in ``dropped``: the log must never make work fail or wait.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson

from sandpool.engine.clock import micro_timestamp

logger = logging.getLogger(__name__)

#: The path that stands for standard output.
STANDARD_OUTPUT: Final = Path("-")
_FLUSH_SECONDS = 1.0
_WAKE_AT = 2048  # entries; a burst is written before the second is over
_MOST_WAITING = 200_000


class JsonlEntry(Protocol):
    def line(self) -> bytes:
        """The line to write, with its newline. Called in another thread, up to a second later."""
        ...


class JsonlWriter:
    """Appends lines to ``path`` and rotates it at ``rotate_bytes``: it becomes ``path.1``, and so on up to ``keep``.

    Raises ``OSError`` if the file cannot be opened.
    """

    def __init__(self, path: Path, *, rotate_bytes: int = 100 * 1024 * 1024, keep: int = 5) -> None:
        self.path = path
        self._overflowed = 0  # counted by the callers of ``note``
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._waiting: deque[JsonlEntry] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._writing = threading.Lock()  # guards everything below
        self._refused = 0  # counted by the writer
        self._file = -1
        self._size = 0
        self._torn = False  # whether the last write ended inside a line
        self._open()
        self._thread = threading.Thread(target=self._run, name=f"log {path.name}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of entries that will never be written."""
        return self._overflowed + self._refused

    def note(self, entry: JsonlEntry) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._overflowed += 1
            return
        self._waiting.append(entry)
        if len(self._waiting) >= _WAKE_AT:
            self._wake.set()

    def flush(self) -> None:
        """Write all entries added so far."""
        with self._writing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _WAKE_AT))]
                self._append([entry.line() for entry in batch])

    def close(self) -> None:
        """Write the remaining entries and close the file."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_FLUSH_SECONDS)
            self._wake.clear()
            self.flush()

    def _append(self, lines: list[bytes]) -> None:
        try:
            if self._file < 0:
                self._open()
            if self._size >= self._rotate_bytes and self.path != STANDARD_OUTPUT:
                self._rotate()
            data = b"".join(lines)
            self._write(b"\n" + data if self._torn else data)
        except OSError as error:
            if not self._refused:
                logger.warning("cannot write %s, dropping lines: %s", self.path, error)
            self._refused += len(lines)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._file, view)
            self._size += written
            self._torn = view[written - 1] != ord("\n")
            view = view[written:]

    def _open(self) -> None:
        if self.path == STANDARD_OUTPUT:
            self._file, self._size = os.dup(1), 0
            return
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        os.close(self._file)
        self._file = -1
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
        self._open()
        self._torn = False

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


class ReconcileRecord(NamedTuple):
    """A finished reconcile as a line of the audit log.

    A reconcile that writes nothing leaves no request in the log, and the requests of one that does write do not show
    when it began. This line completes the timeline of an object.
    """

    controller: str
    namespace: str
    name: str
    ended: datetime
    seconds: float
    requeue_after: float | None
    problem: str  # the error; empty after a success

    def line(self) -> bytes:
        entry: dict[str, Any] = {
            "time": micro_timestamp(self.ended - timedelta(seconds=self.seconds)),
            "pass": self.controller,
            "namespace": self.namespace,
            "name": self.name,
            "ms": round(self.seconds * 1000, 3),
        }
        if self.requeue_after is not None:
            entry["requeueAfter"] = round(self.requeue_after, 3)
        if self.problem:
            entry["problem"] = self.problem
        return orjson.dumps(entry) + b"\n"
