"""The durable half of the store: every commit is on disk before it is acknowledged.

SQLite in WAL mode with ``synchronous=FULL``, one writer thread, group commit: writes that arrive while one transaction
is being synced go into the next, so a burst of hundreds of writes shares one fsync.

The database holds the newest state of each object and the newest revision. The history that watches resume from lives
in memory only: after a restart the server answers 410 and clients list again, as with any API server.

Start-up finds damage and refuses to serve; it never guesses:

* Every row carries a CRC of its id, key, revision and value, so a flipped bit or a row under the wrong key is found.
* Every commit records the number of rows and a *digest*, the sum of their CRCs. A lost row, a row that came back and an
  old version of a row change the digest, although each row by itself is sound.
* ``PRAGMA quick_check`` verifies the structure of the file, in a thread of its own while the rows are read.
* The file ``head`` beside the database holds the newest *acknowledged* revision. It is written after the commit was
  synced and needs no sync of its own, so it is never ahead of a healthy database. If it is ahead, the database has lost
  acknowledged writes; a truncated or missing WAL file does exactly that without SQLite noticing.

A full disk must not be a trap: SQLite needs space to open a database after a crash, and to delete from it. The file
``reserve`` holds that space. It is given up when the database cannot be opened, or when deletions do not fit, and made
again when there is room.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import shutil
import sqlite3
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sandpool.engine.clock import Clock, SystemClock

_log = logging.getLogger(__name__)

# Format 1 had no digest, and the CRC of a row covered its value only. Such a database opens, and the first commit makes
# it format 2; rows of format 1 stay as they are until they are written again.
FORMAT: Final = 2
_OLDEST_FORMAT: Final = 1
DATABASE: Final = "sandpool.db"
RESERVE: Final = "reserve"
#: Directories of a restore: what waits to be put into place, and what it replaced.
RESTORED: Final = "restored"
REPLACED: Final = "replaced"
_PAGE: Final = 4096
_CHECKPOINT_PAGES: Final = 4000
_RESERVE_BYTES: Final = 32 << 20  # twice what the write-ahead log grows to, so that it can always be checkpointed
_RESERVE_SHARE: Final = 8  # and at most this part of the free space
_RESERVE_AT_REST: Final = 256 << 10  # while no server runs; the write-ahead log is empty then
_START_BYTES: Final = 256 << 10  # left for the files that a start writes: kubeconfig, token, description of the home
# Links are not followed: who can put one into the data directory must not choose what is written.
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_HEAD = struct.Struct("<QI")  # revision, CRC of its bytes

_SCHEMA = """
CREATE TABLE meta (
    format INTEGER NOT NULL, revision INTEGER NOT NULL, rows INTEGER NOT NULL, digest INTEGER, written REAL
);
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
_META = f"UPDATE meta SET format = {FORMAT}, revision = ?, rows = ?, digest = ?, written = ?"
# Columns that databases of earlier versions lack.
_ADDED: Final = {"digest": "INTEGER", "written": "REAL"}

# The writer thread releases the interpreter lock at every step of a statement, and while the event loop is busy it gets
# the lock back milliseconds later. So one statement puts many rows: a burst costs a handful of steps, not hundreds.
_ROWS_PER_STATEMENT = (256, 64, 16, 4, 1)
_PUTS = {count: _PUT + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count) for count in _ROWS_PER_STATEMENT}
# For larger pieces zlib releases the lock, too.
_CRC_BYTES = 5 * 1024
# In the column, this bit tells a CRC of the whole row from one of format 1.
_WHOLE_ROW: Final = 1 << 32
_DIGEST_MASK: Final = (1 << 63) - 1


class StoreDamaged(Exception):
    """The data directory cannot be trusted; the message says what was found and what to do."""


class StoreInUse(Exception):
    """Another server has the data directory open."""


class DiskFull(Exception):
    """The commit did not fit; nothing of it was written."""


class JournalFailed(Exception):
    """The commit failed for another reason; nothing of it was written."""


class Row(NamedTuple):
    id: int
    resource: str
    namespace: str
    name: str
    revision: int
    value: bytes

    def checksum(self) -> int:
        """The CRC of the whole row, as ``Journal.load`` computes it."""
        key = f"{self.id}\0{self.resource}\0{self.namespace}\0{self.name}\0{self.revision}\0"
        return checksum(self.value, zlib.crc32(key.encode()))


_row = Row._make


@dataclass(slots=True)
class Batch:
    """The content of one transaction: the last state of each row it touches."""

    puts: dict[int, Row] = field(default_factory=dict)
    deletes: set[int] = field(default_factory=set)
    revision: int = 0  # the newest revision once this batch is committed
    rows: int = 0  # the number of objects then

    def add(self, row: Row) -> None:
        self.puts[row.id] = row
        self.deletes.discard(row.id)

    def remove(self, row_id: int) -> None:
        self.puts.pop(row_id, None)
        self.deletes.add(row_id)

    def only_deletes(self) -> bool:
        """Whether the batch removes objects, or marks them for deletion, and does nothing else."""
        return all(b'"deletionTimestamp"' in row.value for row in self.puts.values())


def checksum(value: bytes, start: int = 0) -> int:
    """CRC-32, of large values piece by piece."""
    if len(value) <= _CRC_BYTES:
        return zlib.crc32(value, start)
    crc, view = start, memoryview(value)
    for position in range(0, len(value), _CRC_BYTES):
        crc = zlib.crc32(view[position : position + _CRC_BYTES], crc)
    return crc


class Log(Protocol):
    """A journal as its store sees it. ``revision``, ``rows`` and ``written``, its time, are as of the last commit."""

    revision: int
    rows: int
    written: float  # seconds since the epoch; 0 if unknown

    def load(self) -> Iterator[Row]:
        """Every object, before the first commit."""
        ...

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        """Begin to make a batch durable and return. ``done`` is called later, in any thread, with None on success."""
        ...

    def close(self) -> None:
        """Finish the batches that were handed in. May block, and is called in a thread."""
        ...


class Committed(NamedTuple):
    """The record of the last commit in the database."""

    revision: int
    rows: int
    digest: int | None  # None: written by format 1, which had none
    written: float  # seconds since the epoch; 0: written by a version that did not record it


def damaged(directory: Path, what: str) -> StoreDamaged:
    """Return the error for a data directory that cannot be trusted."""
    return StoreDamaged(
        f"the database in {directory} is damaged: {what}. Nothing was changed. Restore the directory from a "
        "backup (`sandpool restore`), or move it away to start with an empty one"
    )


def read_committed(db: sqlite3.Connection, directory: Path) -> Committed:
    """Read the record of the last commit. Raises ``StoreDamaged``, also for a format of a later version."""
    found = db.execute("SELECT format, revision, rows FROM meta").fetchall()
    if len(found) != 1:
        raise damaged(directory, f"it has {len(found)} records of its own state instead of one")
    stored_format, revision, rows = found[0]
    if stored_format not in (_OLDEST_FORMAT, FORMAT):
        path = directory / DATABASE
        raise StoreDamaged(f"{path} has format {stored_format}; this version of sandpool reads format {FORMAT}")
    columns = _columns(db)
    digest = db.execute("SELECT digest FROM meta").fetchone()[0] if stored_format == FORMAT else None
    written = db.execute("SELECT written FROM meta").fetchone()[0] if "written" in columns else None
    return Committed(revision, rows, digest, written or 0.0)


def _columns(db: sqlite3.Connection) -> set[str]:
    return {column[1] for column in db.execute("PRAGMA table_info(meta)")}


def acknowledged(recorded: bytes) -> int:
    """The newest acknowledged revision, from the content of the file ``head``; 0 if that proves nothing."""
    if len(recorded) != _HEAD.size:
        return 0
    revision, crc = _HEAD.unpack(recorded)
    # A head torn by a power failure proves nothing either way.
    return int(revision) if crc == zlib.crc32(recorded[:8]) else 0


def check_head(directory: Path, recorded: bytes, committed: int) -> None:
    """Raise ``StoreDamaged`` if a revision was acknowledged that the database does not have."""
    if (revision := acknowledged(recorded)) > committed:
        raise damaged(
            directory,
            f"revision {revision} was acknowledged but the database ends at {committed}: "
            "its write-ahead log was truncated or removed",
        )


def verified_rows(
    db: sqlite3.Connection, directory: Path, committed: Committed, checksums: dict[int, int]
) -> Iterator[Row]:
    """Yield every object, checked, and add the CRC of each row to ``checksums``. Raises ``StoreDamaged``.

    A caller that stops half-way has no proof that the objects it got are all there are."""
    keys: set[tuple[str, str, str]] = set()
    for columns in db.execute("SELECT id, resource, namespace, name, revision, value, crc FROM objects"):
        row_id, resource, namespace, name, revision, value, crc = columns
        key = f"{row_id}\0{resource}\0{namespace}\0{name}\0{revision}\0"
        whole = checksums[row_id] = zlib.crc32(value, zlib.crc32(key.encode()))
        if crc != whole | _WHOLE_ROW and (crc >= _WHOLE_ROW or crc != zlib.crc32(value)):
            raise damaged(directory, f'the stored bytes of {resource} "{namespace}/{name}" do not match their checksum')
        if revision > committed.revision:
            raise damaged(directory, f"revision {revision} of an object is newer than {committed.revision}, the last")
        keys.add(columns[1:4])
        yield _row(columns[:6])
    if len(checksums) != committed.rows:
        raise damaged(directory, f"it should hold {committed.rows} objects and holds {len(checksums)}")
    if len(keys) != committed.rows:
        raise damaged(directory, f"{committed.rows - len(keys)} objects are there twice")
    if committed.digest is not None and committed.digest != digest_of(checksums):
        raise damaged(directory, "it holds rows of an earlier state, or not all rows of the last commit")


def digest_of(checksums: dict[int, int]) -> int:
    """The digest of all rows, from their CRCs."""
    return sum(checksums.values()) & _DIGEST_MASK


def take_lock(directory: Path) -> int:
    """Lock a data directory; close the descriptor to release it. Raises ``StoreInUse``."""
    lock = os.open(directory / "lock", _OPEN_FLAGS, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreInUse(
            f"{directory} is in use by another server; stop that one or choose another data directory"
        ) from error
    return lock


def finish_restore(directory: Path) -> bool:
    """Put a restored database into its place, if there is one. The caller holds the lock of the directory.

    ``RESTORED`` appears complete and on disk, in one step. From then on the restore is done, however often it is
    interrupted: every step can be done again, and the database, which is last, says whether there is one left. What it
    replaces is kept in ``REPLACED``."""
    restored, replaced = directory / RESTORED, directory / REPLACED
    if not restored.is_dir():
        return False
    if (restored / DATABASE).exists():
        replaced.mkdir(exist_ok=True, mode=0o700)
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "head"):
            with contextlib.suppress(FileNotFoundError):
                (directory / name).replace(replaced / name)
        for file in sorted(restored.rglob("*")):
            target = directory / file.relative_to(restored)
            if file.is_dir():
                target.mkdir(exist_ok=True, mode=0o700)
            elif file.name != DATABASE:
                file.replace(target)
        sync_directory(directory)
        (restored / DATABASE).replace(directory / DATABASE)
        sync_directory(directory)
    shutil.rmtree(restored)
    return True


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """Owns the data directory's database and its writer thread."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self.directory = directory
        self.clock = clock or SystemClock()
        self.revision = 0
        self.rows = 0
        self.written = 0.0
        self.commits = 0
        self._digest: int | None = 0  # of the last commit; None: written by format 1, which had none
        self._has_reserve = False
        self._released = 0  # bytes of the reserve when it was given up last
        self._checksums: dict[int, int] = {}  # by row id, the CRC of every row as of the last commit
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = take_lock(directory)
        try:
            finish_restore(directory)
            self._db = self._open()
            self._head = os.open(directory / "head", _OPEN_FLAGS, 0o600)
            self._check_head()
        except BaseException:
            os.close(self._lock)
            raise
        self._make_reserve()
        self._queue: queue.SimpleQueue[tuple[Batch, Callable[[Exception | None], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            # After a crash on a full disk there is no room for the index of the write-ahead log.
            if not self._release_reserve():
                raise self._damaged(str(error)) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        path = self.directory / DATABASE
        # An emptied file would be taken for a new database. A new one is never seen empty, because the schema is
        # committed before anything else.
        existed = path.exists()
        if existed and path.stat().st_size == 0 and (self.directory / "head").exists():
            raise self._damaged("the database file is empty")
        # Secrets are among the objects. SQLite gives its other files the permissions of this one.
        os.close(os.open(path, _OPEN_FLAGS, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=16)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            db.execute("PRAGMA journal_size_limit=67108864")
            db.execute("PRAGMA cache_size=-16384")
            # A transaction that fails half-way must not need more disk to roll back.
            db.execute("PRAGMA temp_store=MEMORY")
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                if (self.directory / "head").exists():
                    raise self._damaged("the database has no tables although it was in use before")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}INSERT INTO meta VALUES ({FORMAT}, 0, 0, 0, 0);COMMIT;")
            self._read_meta(db)
        except BaseException:
            db.close()
            raise
        return db

    def _read_meta(self, db: sqlite3.Connection) -> None:
        self._committed = read_committed(db, self.directory)
        self.revision, self.rows, self._digest, self.written = self._committed
        for name in _ADDED.keys() - _columns(db):
            db.execute(f"ALTER TABLE meta ADD COLUMN {name} {_ADDED[name]}")

    def _check_head(self) -> None:
        try:
            check_head(self.directory, os.pread(self._head, _HEAD.size, 0), self.revision)
        except StoreDamaged:
            self._db.close()
            os.close(self._head)
            raise

    def _damaged(self, what: str) -> StoreDamaged:
        return damaged(self.directory, what)

    def load(self) -> Iterator[Row]:
        """Yield every object, checked. Runs before the first commit, in the caller's thread.

        A caller that stops half-way has no proof that the objects it got are all there are."""
        problems: list[str] = []
        structure = threading.Thread(target=self._check_structure, args=(problems,), name="quick_check", daemon=True)
        structure.start()
        try:
            yield from verified_rows(self._db, self.directory, self._committed, self._checksums)
        except (sqlite3.DatabaseError, TypeError) as error:
            raise self._damaged(str(error)) from error
        finally:
            structure.join()
        if problems:
            raise self._damaged(problems[0])
        self._digest = digest_of(self._checksums)

    def _check_structure(self, problems: list[str]) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self.directory / DATABASE)) as db:
                problems += [text for (text,) in db.execute("PRAGMA quick_check(1)") if text != "ok"]
        except sqlite3.DatabaseError as error:
            problems.append(str(error))

    # -- writing ---------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, done: Callable[[Exception | None], object]) -> None:
        """Write a batch in the writer thread; ``done`` is called there, with None once the batch is on disk."""
        self._queue.put((batch, done))

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            batch, done = item
            error = self._attempt(batch)
            if isinstance(error, DiskFull) and self._shrink():
                error = self._attempt(batch)
            if isinstance(error, DiskFull) and batch.only_deletes() and self._release_reserve():
                self._shrink()
                error = self._attempt(batch)
                self._shrink()
            done(error)
            if error is None and not self._has_reserve:
                self._make_reserve()

    def _attempt(self, batch: Batch) -> Exception | None:
        try:
            self._transaction(batch)
        except sqlite3.Error as caught:
            return self._failure(caught)
        except Exception as caught:  # noqa: BLE001 - the writers that wait must hear of any failure
            return JournalFailed(str(caught))
        return None

    def _transaction(self, batch: Batch) -> None:
        db, checksums = self._db, self._checksums
        db.execute("BEGIN IMMEDIATE")
        digest = self._digest or 0
        if batch.deletes:
            db.executemany(_DELETE, [(row_id,) for row_id in batch.deletes])
            digest -= sum([checksums.get(row_id, 0) for row_id in batch.deletes])
        rows = list(batch.puts.values())
        written = {row.id: row.checksum() for row in rows}
        digest += sum(written.values()) - sum([checksums.get(row_id, 0) for row_id in written])
        start = 0
        for count in _ROWS_PER_STATEMENT:
            while len(rows) - start >= count:
                columns: list[object] = []
                for row in rows[start : start + count]:
                    crc = written[row.id] | _WHOLE_ROW
                    columns += (row.id, row.resource, row.namespace, row.name, row.revision, crc, row.value)
                db.execute(_PUTS[count], columns)
                start += count
        digest &= _DIGEST_MASK
        now = self.clock.now().timestamp()
        db.execute(_META, (batch.revision, batch.rows, digest, now))
        db.execute("COMMIT")
        self.revision, self.rows, self._digest, self.written = batch.revision, batch.rows, digest, now
        for row_id in batch.deletes:
            checksums.pop(row_id, None)
        checksums.update(written)
        self.commits += 1
        self._record_head(batch.revision)

    def _record_head(self, revision: int) -> None:
        number = struct.pack("<Q", revision)
        # The commit stands even if the head cannot be written; only the detection of a lost WAL is weaker then.
        with contextlib.suppress(OSError):
            os.pwrite(self._head, number + struct.pack("<I", zlib.crc32(number)), 0)

    def _failure(self, error: sqlite3.Error) -> Exception:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return DiskFull(str(error))
        return JournalFailed(str(error))

    # -- the reserve -----------------------------------------------------------------------------------------------

    def _make_reserve(self) -> None:
        """Set space aside, as far as there is plenty. On a full disk return a little of it."""
        path = self.directory / RESERVE
        self._has_reserve = path.is_file() and not path.is_symlink()
        with contextlib.suppress(OSError):
            disk = os.statvfs(self.directory)
            free = disk.f_bavail * disk.f_frsize
            present = path.stat().st_size if self._has_reserve else 0
            # Space that was given up is taken back before anything else can use it.
            wanted = max(free // _RESERVE_SHARE, min(self._released, free - _START_BYTES))
            size = min(_RESERVE_BYTES, max(present - max(_START_BYTES - free, 0), wanted))
            # A checkpoint may need as much space as the write-ahead log has, before it returns the log's.
            self._db.execute(f"PRAGMA wal_autocheckpoint={max(16, min(_CHECKPOINT_PAGES, size // _PAGE // 2))}")
            if size == present or (not present and size < disk.f_frsize):
                return
            file = os.open(path, _OPEN_FLAGS, 0o600)
            self._has_reserve = True
            try:
                if size < present:
                    os.ftruncate(file, max(size, 0))
                else:
                    os.posix_fallocate(file, 0, size)
            finally:
                os.close(file)

    def _keep_small_reserve(self) -> None:
        with contextlib.suppress(OSError):
            file = os.open(self.directory / RESERVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.ftruncate(file, min(os.fstat(file).st_size, _RESERVE_AT_REST))
            finally:
                os.close(file)

    def _release_reserve(self) -> bool:
        """Give the reserved space up; False if there is none."""
        path = self.directory / RESERVE
        try:
            self._released = path.stat().st_size
            path.unlink()
        except OSError:
            return False
        self._has_reserve = False
        _log.warning("the disk of %s is full; using the space reserved for deletions", self.directory)
        return True

    def _shrink(self) -> bool:
        """Return the space of the write-ahead log to the disk; False if nothing was returned.

        The database may first have to grow. Without the room for that, the attempt would use up the rest of it."""
        with contextlib.suppress(sqlite3.Error, OSError):
            if not (self.directory / f"{DATABASE}-wal").stat().st_size:
                return False
            disk = os.statvfs(self.directory)
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            if disk.f_bavail * disk.f_frsize >= pages * _PAGE - (self.directory / DATABASE).stat().st_size:
                (busy, _, _) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                return not busy
        return False

    def close(self) -> None:
        """Finish the batches that were handed in, then release the directory."""
        self._queue.put(None)
        self._thread.join()
        self._db.close()
        self._keep_small_reserve()
        os.close(self._head)
        os.close(self._lock)
