"""The durable half of the store: every commit is on disk before anybody hears of it.

SQLite in WAL mode with ``synchronous=FULL``, one writer thread, group commit: whatever arrives while one transaction
is being synced goes into the next, so a burst of hundreds of writes shares one fsync.

What is kept is the newest state of each object and the newest revision; the history that watches resume from lives in
memory only (a restarted server answers 410 and clients list again, as they do with any API server).

Damage is found at start-up, never guessed around:

* every row carries a CRC of its value, so a flipped bit in an object is found when it is read;
* the number of rows is recorded with every commit, so a lost page is found;
* the file ``head`` next to the database holds the newest *acknowledged* revision. It is written after the commit was
  synced and needs no sync of its own, so it can never be ahead of a healthy database; if it is, the database has lost
  acknowledged writes (a truncated or missing WAL file does exactly that, without SQLite noticing).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sqlite3
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FORMAT = 1
DATABASE = "sandpool.db"
_HEAD = struct.Struct("<QI")  # revision, CRC of its bytes

_SCHEMA = """
CREATE TABLE meta (format INTEGER NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    value BLOB NOT NULL
);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES "
_DELETE = "DELETE FROM objects WHERE id = ?"
_REVISION = "UPDATE meta SET revision = ?, rows = ?"

# The writer thread lets go of the interpreter's lock for every step of a statement, and while the event loop is busy it
# gets it back milliseconds later. So rows are put many to a statement: a burst costs a handful of steps, not hundreds.
_ROWS_PER_STATEMENT = (256, 64, 16, 4, 1)
_PUTS = {count: _PUT + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count) for count in _ROWS_PER_STATEMENT}
# For more bytes than that at a time zlib lets go of the lock, too.
_CRC_BYTES = 5 * 1024


class StoreDamaged(Exception):
    """The data directory cannot be trusted; the message says what was found and what to do."""


class StoreInUse(Exception):
    """Another server has the data directory open."""


class DiskFull(Exception):
    """The commit did not fit; nothing of it was written."""


class JournalFailed(Exception):
    """The commit failed for another reason; nothing of it was written."""


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    resource: str
    namespace: str
    name: str
    revision: int
    value: bytes

    def columns(self) -> tuple[int, str, str, str, int, int, bytes]:
        return self.id, self.resource, self.namespace, self.name, self.revision, checksum(self.value), self.value


@dataclass(slots=True)
class Batch:
    """What one transaction writes: the last state of each row it touches."""

    puts: dict[int, Row] = field(default_factory=dict)
    deletes: set[int] = field(default_factory=set)
    revision: int = 0  # the newest revision once this batch is committed
    rows: int = 0  # how many objects there are then

    def add(self, row: Row) -> None:
        self.puts[row.id] = row
        self.deletes.discard(row.id)

    def remove(self, id: int) -> None:
        self.puts.pop(id, None)
        self.deletes.add(id)


def checksum(value: bytes) -> int:
    """CRC-32, of large values piece by piece."""
    if len(value) <= _CRC_BYTES:
        return zlib.crc32(value)
    crc, view = 0, memoryview(value)
    for start in range(0, len(value), _CRC_BYTES):
        crc = zlib.crc32(view[start : start + _CRC_BYTES], crc)
    return crc


class Log(Protocol):
    """What a store needs of a journal. ``revision`` and ``rows`` are as of the last commit."""

    revision: int
    rows: int

    def load(self) -> Iterator[Row]:
        """Every object, before the first commit."""
        ...

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        """Begin to make a batch durable and return. ``done`` is called later, in any thread, with None if it is."""
        ...

    def close(self) -> None:
        """Finish what was handed in. May wait, and is called in a thread."""
        ...


class Journal:
    """Owns the data directory's database and its writer thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.revision = 0
        self.rows = 0
        self.commits = 0
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._take_lock()
        try:
            self._db = self._open()
            self._head = os.open(directory / "head", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._check_head()
        except BaseException:
            os.close(self._lock)
            raise
        self._queue: queue.SimpleQueue[tuple[Batch, Callable[[Exception | None], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    # -- opening ---------------------------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StoreInUse(
                f"{self.directory} is in use by another server; stop that one or choose another data directory"
            ) from error
        return lock

    def _open(self) -> sqlite3.Connection:
        path = self.directory / DATABASE
        # An emptied file would be taken for a new database; a new one is never seen empty, because the schema is
        # committed before anything else.
        existed = path.exists()
        if existed and path.stat().st_size == 0 and (self.directory / "head").exists():
            raise self._damaged("the database file is empty")
        # Secrets are among the objects. SQLite gives its other files the permissions of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=16)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA wal_autocheckpoint=4000")
            db.execute("PRAGMA journal_size_limit=67108864")
            db.execute("PRAGMA cache_size=-16384")
            # A transaction that fails half-way must not need more disk to roll back.
            db.execute("PRAGMA temp_store=MEMORY")
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                if (self.directory / "head").exists():
                    raise self._damaged("the database has no tables although it was in use before")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}INSERT INTO meta VALUES ({FORMAT}, 0, 0);COMMIT;")
            format, self.revision, self.rows = db.execute("SELECT format, revision, rows FROM meta").fetchone()
        except sqlite3.DatabaseError as error:
            db.close()
            raise self._damaged(str(error)) from error
        except BaseException:
            db.close()
            raise
        if format != FORMAT:
            db.close()
            raise StoreDamaged(f"{path} has format {format}; this version of sandpool reads format {FORMAT}")
        return db

    def _check_head(self) -> None:
        recorded = os.pread(self._head, _HEAD.size, 0)
        if len(recorded) != _HEAD.size:
            return
        revision, crc = _HEAD.unpack(recorded)
        # A head torn by a power failure proves nothing either way.
        if crc == zlib.crc32(recorded[:8]) and revision > self.revision:
            self._db.close()
            os.close(self._head)
            raise self._damaged(
                f"revision {revision} was acknowledged but the database ends at {self.revision}: "
                "its write-ahead log was truncated or removed"
            )

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"the database in {self.directory} is damaged: {what}. Nothing was changed. Restore the directory from a "
            "backup, or move it away to start with an empty one"
        )

    def load(self) -> Iterator[Row]:
        """Every object, checked. Runs before the first commit, in the caller's thread."""
        seen = 0
        try:
            for id, resource, namespace, name, revision, crc, value in self._db.execute("SELECT * FROM objects"):
                if not isinstance(value, bytes) or checksum(value) != crc:
                    raise self._damaged(
                        f'the stored bytes of {resource} "{namespace}/{name}" do not match their checksum'
                    )
                seen += 1
                yield Row(id, resource, namespace, name, revision, value)
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error
        if seen != self.rows:
            raise self._damaged(f"it should hold {self.rows} objects and holds {seen}")

    # -- writing ---------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        """Write a batch in the writer thread; ``done`` is called there, with None once it is safely on disk."""
        self._queue.put((batch, done))

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            batch, done = item
            error: Exception | None = None
            try:
                self._transaction(batch)
            except sqlite3.Error as caught:
                error = self._failure(caught)
            except Exception as caught:  # noqa: BLE001 - whatever it is, the writers waiting must hear of it
                error = JournalFailed(str(caught))
            done(error)

    def _transaction(self, batch: Batch) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if batch.deletes:
            db.executemany(_DELETE, [(id,) for id in batch.deletes])
        rows = list(batch.puts.values())
        start = 0
        for count in _ROWS_PER_STATEMENT:
            while len(rows) - start >= count:
                db.execute(_PUTS[count], [column for row in rows[start : start + count] for column in row.columns()])
                start += count
        db.execute(_REVISION, (batch.revision, batch.rows))
        db.execute("COMMIT")
        self.revision, self.rows = batch.revision, batch.rows
        self.commits += 1
        self._record_head(batch.revision)

    def _record_head(self, revision: int) -> None:
        number = struct.pack("<Q", revision)
        # The commit stands whatever becomes of the head; without it only the detection of a lost WAL is weaker.
        with contextlib.suppress(OSError):
            os.pwrite(self._head, number + struct.pack("<I", zlib.crc32(number)), 0)

    def _failure(self, error: sqlite3.Error) -> Exception:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return DiskFull(str(error))
        return JournalFailed(str(error))

    def close(self) -> None:
        """Finish what was handed in, then let go of the directory."""
        self._queue.put(None)
        self._thread.join()
        self._db.close()
        os.close(self._head)
        os.close(self._lock)
