"""Copies the objects of a data directory into one file while a server uses them, and back while none does.

The file is a gzip stream of JSON lines: a header, the small files that give a server its identity, the objects, and
the SHA-256 of all that. It is written under another name and appears when it is complete.

A backup reads one snapshot of the database, in a transaction of its own, so the server goes on writing. Every object is
checked as at the start of a server: a damaged database gives an error and no backup.

A restore writes a new database beside the present one. Nothing is replaced before the last line of the backup was
verified and everything is on disk; ``journal.finish_restore`` describes that step. Clients may have seen later
revisions than those of the backup, and must not take the restored objects for older states of what they know: the
revision continues far above, so that every watch starts over.
"""

from __future__ import annotations

import base64
import binascii
import errno
import gzip
import hashlib
import os
import re
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import orjson

from sandpool import __version__
from sandpool.engine.clock import Clock, SystemClock
from sandpool.server.auth.private_files import write_private
from sandpool.server.store.journal import (
    DATABASE,
    RESERVE,
    RESTORED,
    Batch,
    DiskFull,
    Journal,
    Row,
    StoreDamaged,
    StoreInUse,
    check_head,
    damaged,
    finish_restore,
    read_committed,
    sync_directory,
    take_lock,
    verified_rows,
)
from sandpool.server.store.volume_mark import VOLUME_MARK, VolumeMark

#: Called with the number of objects that are done, and of all.
Progress = Callable[[int, int], object]

_Json = dict[str, Any]

_KIND: Final = "sandpool backup"
_FORMAT: Final = 1
_PKI: Final = re.compile(r"pki(/ca-\d+)?")
_DRAFT: Final = "restore-draft"
_ROWS: Final = 500  # per transaction, and per report of the progress
_LEVEL: Final = 1  # of compression: the best one takes ten times as long for a fifth less
#: Added to the revision of a backup: more writes than a store gets in years.
REVISION_GAP: Final = 1_000_000_000


class BackupError(Exception):
    """A backup or a restore failed. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a backup, or of a store that was restored from one."""

    objects: int
    revision: int
    time: datetime
    bytes: int = 0  # of the file


def back_up(data_dir: Path, output: BinaryIO, clock: Clock, progress: Progress) -> Contents:
    """Write a backup of the data directory to a stream. Raises ``BackupError``, ``StoreDamaged`` and ``OSError``."""
    if not (data_dir / DATABASE).is_file():
        raise BackupError(
            f"{data_dir} has no database: name the directory of a server with --data-dir. That of a local home is "
            "shown by `sandpool status`"
        )
    digest = hashlib.sha256()
    with _snapshot(data_dir) as (db, recorded), gzip.GzipFile("", "wb", _LEVEL, output, mtime=0) as packed:

        def put(line: bytes) -> None:
            digest.update(line)
            packed.write(line)

        committed = read_committed(db, data_dir)
        check_head(data_dir, recorded, committed.revision)
        now = clock.now()
        header = {
            "kind": _KIND,
            "format": _FORMAT,
            "version": __version__,
            "time": now.isoformat(),
            "revision": committed.revision,
            "objects": committed.rows,
        }
        put(_line(header))
        for name, data in _identity(data_dir):
            put(_line({"file": name, "data": base64.b64encode(data).decode()}))
        done = 0
        for row in verified_rows(db, data_dir, committed, {}):
            put(_line({"row": row[:-1], "value": orjson.Fragment(row.value)}))
            done += 1
            if done % _ROWS == 0:
                progress(done, committed.rows)
        packed.write(_line({"sha256": digest.hexdigest()}))
    progress(done, committed.rows)
    return Contents(done, committed.revision, now)


def back_up_to_file(data_dir: Path, path: Path, clock: Clock, progress: Progress, *, force: bool = False) -> Contents:
    """Write a backup to a file that only its owner can read. It appears when it is complete and on disk."""
    if path.exists() and not force:
        raise BackupError(f"{path} exists: choose another name, or replace it with --force")
    draft = path.with_name(f"{path.name}.part")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
            contents = back_up(data_dir, output, clock, progress)
            output.flush()
            os.fsync(output.fileno())
            size = output.tell()
        draft.replace(path)
        sync_directory(path.absolute().parent)
    except OSError as error:
        raise BackupError(f"cannot write {path}: {error.strerror or error}. No file was left") from error
    finally:
        draft.unlink(missing_ok=True)
    return Contents(contents.objects, contents.revision, contents.time, size)


def restore(source: BinaryIO, data_dir: Path, progress: Progress, *, replace: bool = False) -> Contents:
    """Restore a data directory from a backup. Raises ``BackupError`` and ``StoreInUse``; nothing has changed then.

    ``replace`` accepts a directory that has objects; its database is kept in the directory ``replaced``."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        lock = take_lock(data_dir)
    except StoreInUse:
        raise BackupError(
            f"a server uses {data_dir}: stop it first (`sandpool down`; in a cluster, scale its StatefulSet to 0)"
        ) from None
    draft = data_dir / _DRAFT
    try:
        if finish_restore(data_dir) and not replace:
            raise BackupError(
                f"an earlier restore of {data_dir} was interrupted and is complete now: start the server, or pass "
                "--replace to restore this backup instead"
            )
        if not replace and not _is_empty(data_dir):
            raise BackupError(
                f"{data_dir} has objects already: restore into another directory, or pass --replace, which keeps "
                f"the present database in {data_dir / 'replaced'}"
            )
        shutil.rmtree(draft, ignore_errors=True)
        contents = _write_draft(_Reader(source), draft, progress)
        shutil.rmtree(data_dir / "replaced", ignore_errors=True)
        draft.replace(data_dir / RESTORED)
        sync_directory(data_dir)
        finish_restore(data_dir)
        return contents
    except (OSError, DiskFull) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise BackupError(f"cannot restore {data_dir}: {error}. Run the command again") from error
        raise BackupError(
            f"the disk of {data_dir} is full: a restore needs room for a second database. Nothing was changed"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(lock)


def _is_empty(data_dir: Path) -> bool:
    """Whether a data directory has no objects. One that cannot be read has some."""
    if not (data_dir / DATABASE).exists():
        return True
    try:
        with _snapshot(data_dir) as (db, _):
            return read_committed(db, data_dir).rows == 0
    except StoreDamaged:
        return False


def _write_draft(reader: _Reader, draft: Path, progress: Progress) -> Contents:
    header = reader.header()
    time = datetime.fromisoformat(header["time"])
    total, revision = int(header["objects"]), int(header["revision"])
    draft.mkdir(mode=0o700)
    # The database counts as written when the backup was made: that is as new as its objects are.
    journal = Journal(draft, _StoppedClock(time))
    done = 0
    try:
        batch = Batch()
        for line in reader:
            if (name := line.get("file")) is not None:
                _put_file(draft, name, line["data"])
                continue
            row_id, resource, namespace, name, row_revision = line["row"]
            row = Row(row_id, resource, namespace, name, row_revision, orjson.dumps(line["value"]))
            batch.add(row)
            done += 1
            if done % _ROWS == 0:
                _commit(journal, batch, revision, done)
                batch = Batch()
                progress(done, total)
        if done != total:
            raise reader.damaged(f"it should have {total} objects and has {done}")
        _commit(journal, batch, revision, done)
    except (LookupError, TypeError, ValueError) as error:
        raise reader.damaged(str(error)) from error
    finally:
        journal.close()
    progress(done, total)
    (VolumeMark.read(draft) or VolumeMark("")).from_backup(revision).write(draft)
    for name in ("lock", "head", RESERVE):
        (draft / name).unlink(missing_ok=True)
    sync_directory(draft)
    return Contents(done, revision, time)


def _commit(journal: Journal, batch: Batch, revision: int, rows: int) -> None:
    batch.revision, batch.rows = revision + REVISION_GAP, rows
    done, errors = threading.Event(), list[Exception]()

    def finished(error: Exception | None) -> None:
        errors.extend([error] if error is not None else [])
        done.set()

    journal.commit(batch, finished)
    done.wait()
    if errors:
        raise errors[0]


class _Reader:
    """The lines of a backup between its header and its checksum, which it verifies at the end."""

    def __init__(self, source: BinaryIO) -> None:
        self._packed = gzip.GzipFile(fileobj=source)
        self._digest = hashlib.sha256()

    def header(self) -> _Json:
        header = self._next()
        if header is None or header.get("kind") != _KIND:
            raise BackupError("this is no backup of Sandpool: name a file that `sandpool backup` wrote")
        if header.get("format") != _FORMAT:
            raise BackupError(
                f"the backup has format {header.get('format')} and was written by version {header.get('version')}; "
                f"this is version {__version__}, which reads format {_FORMAT}. Use the version that wrote it"
            )
        return header

    def __iter__(self) -> Iterator[_Json]:
        while True:
            expected = self._digest.hexdigest()
            line = self._next()
            if line is None:
                raise self.damaged("its end is missing")
            if "sha256" in line:
                break
            yield line
        if line["sha256"] != expected:
            raise self.damaged("its checksum does not match")
        if self._next() is not None:
            raise self.damaged("there is something behind its end")

    def _next(self) -> _Json | None:
        try:
            line = self._packed.readline()
            if not line:
                return None
            self._digest.update(line)
            found = orjson.loads(line)
        except gzip.BadGzipFile:
            raise BackupError("this is no backup of Sandpool: name a file that `sandpool backup` wrote") from None
        except (EOFError, zlib.error, orjson.JSONDecodeError) as error:
            raise self.damaged(str(error)) from error
        if not isinstance(found, dict):
            raise self.damaged("a line is no object")
        return found

    def damaged(self, what: str) -> BackupError:
        return BackupError(f"the backup is damaged: {what}. Nothing was changed; use another copy or another backup")


class _StoppedClock(SystemClock):
    def __init__(self, time: datetime) -> None:
        self._time = time

    def now(self) -> datetime:
        return self._time.astimezone(UTC)


@contextmanager
def _snapshot(data_dir: Path) -> Iterator[tuple[sqlite3.Connection, bytes]]:
    """One state of the database, and the file ``head`` from before: what it acknowledges is in that state."""
    try:
        recorded = (data_dir / "head").read_bytes()
    except FileNotFoundError:
        recorded = b""
    # Opened for writing, which a reader of a write-ahead log needs, and never written.
    with closing(sqlite3.connect(f"file:{quote(str(data_dir / DATABASE))}?mode=rw", uri=True)) as db:
        db.isolation_level = None
        try:
            db.execute("PRAGMA query_only=ON")
            db.execute("BEGIN")
            yield db, recorded
        except (sqlite3.DatabaseError, TypeError) as error:
            raise damaged(data_dir, str(error)) from error


def _identity(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """The files that make clients recognise a server: keys, certificates, tokens, and the marks of its cluster and
    its volume."""
    for path in (*sorted(data_dir.glob("*")), *sorted(data_dir.glob("pki/**/*"))):
        name = str(path.relative_to(data_dir))
        if _is_identity(name) and path.is_file() and not path.is_symlink():
            yield name, path.read_bytes()


def _is_identity(name: str) -> bool:
    directory, _, file = name.rpartition("/")
    if not file or file.startswith("."):
        return False
    if _PKI.fullmatch(directory):
        return file.endswith((".crt", ".key")) or file == "authorities.json"
    return not directory and (file in ("service-account.key", "cluster", VOLUME_MARK) or file.endswith("-token"))


def _put_file(draft: Path, name: object, data: object) -> None:
    if not isinstance(name, str) or not isinstance(data, str) or not _is_identity(name):
        raise ValueError(f"it has a file with the name {name!r}")
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the file {name}: {error}") from error
    path = draft / name
    path.parent.mkdir(exist_ok=True, parents=True, mode=0o700)
    write_private(path, content)


def _line(content: object) -> bytes:
    return orjson.dumps(content) + b"\n"


__all__ = ["BackupError", "Contents", "StoreDamaged", "back_up", "back_up_to_file", "restore"]
