from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from pathlib import Path

import pytest

from sandpool.server.store.journal import DATABASE, Batch, Journal, Row, StoreDamaged, StoreInUse, checksum


def row(id: int, value: bytes = b"{}", revision: int = 1) -> Row:
    return Row(id, "pods", "default", f"pod-{id}", revision, value)


def commit(journal: Journal, batch: Batch) -> Exception | None:
    done = threading.Event()
    failure: list[Exception | None] = []

    def finished(error: Exception | None) -> None:
        failure.append(error)
        done.set()

    journal.commit(batch, finished)
    assert done.wait(10)
    return failure[0]


def filled(directory: Path, count: int = 3) -> None:
    journal = Journal(directory)
    batch = Batch(revision=count, rows=count)
    for id in range(1, count + 1):
        batch.add(row(id, b'{"n":%d}' % id, id))
    assert commit(journal, batch) is None
    journal.close()


def checkpoint(directory: Path) -> None:
    """Move everything from the write-ahead log into the database file."""
    with contextlib.closing(sqlite3.connect(directory / DATABASE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def reopen(directory: Path) -> list[Row]:
    journal = Journal(directory)
    try:
        return list(journal.load())
    finally:
        journal.close()


def test_what_was_committed_is_there_again(tmp_path: Path) -> None:
    filled(tmp_path)
    journal = Journal(tmp_path)
    assert [(r.id, r.value) for r in journal.load()] == [(1, b'{"n":1}'), (2, b'{"n":2}'), (3, b'{"n":3}')]
    assert (journal.revision, journal.rows) == (3, 3)
    batch = Batch(revision=5, rows=2)
    batch.add(row(2, b"new", 4))
    batch.remove(1)
    assert commit(journal, batch) is None
    journal.close()
    assert [(r.id, r.value) for r in reopen(tmp_path)] == [(2, b"new"), (3, b'{"n":3}')]


@pytest.mark.parametrize("count", [1, 5, 63, 64, 65, 341])
def test_batches_of_every_size_are_written_whole(tmp_path: Path, count: int) -> None:
    filled(tmp_path, count)
    assert [(r.id, r.value) for r in reopen(tmp_path)] == [(id, b'{"n":%d}' % id) for id in range(1, count + 1)]


@pytest.mark.parametrize("size", [0, 1, 5119, 5120, 5121, 10240, 20000])
def test_the_checksum_of_pieces_is_that_of_the_whole(size: int) -> None:
    value = bytes(number % 251 for number in range(size))
    assert checksum(value) == zlib.crc32(value)


def test_a_batch_writes_the_last_state_of_a_row() -> None:
    batch = Batch()
    batch.add(row(1, b"a"))
    batch.remove(1)
    assert (batch.puts, batch.deletes) == ({}, {1})
    batch.add(row(1, b"b"))
    assert (batch.puts, batch.deletes) == ({1: row(1, b"b")}, set())


def test_one_server_per_directory(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(StoreInUse, match="in use by another server"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_flipped_bit_in_an_object_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint(tmp_path)
    path = tmp_path / DATABASE
    content = path.read_bytes()
    path.write_bytes(content.replace(b'{"n":2}', b'{"n":3}', 1))
    with pytest.raises(StoreDamaged, match=r'pods "default/pod-\d" do not match their checksum'):
        reopen(tmp_path)


def test_a_lost_row_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("DELETE FROM objects WHERE id = 2")
        db.commit()
    with pytest.raises(StoreDamaged, match="should hold 3 objects and holds 2"):
        reopen(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 4096, 5000, 9000])
def test_a_truncated_database_is_found(tmp_path: Path, keep: int) -> None:
    filled(tmp_path, 50)
    checkpoint(tmp_path)
    os.truncate(tmp_path / DATABASE, keep)
    with pytest.raises(StoreDamaged, match="Restore the directory from a backup"):
        reopen(tmp_path)


def killed_copy(directory: Path, commits: int) -> Path:
    """The state a killed server leaves: nothing checkpointed, the write-ahead log still there."""
    journal = Journal(directory)
    for revision in range(1, commits + 1):
        batch = Batch(revision=revision, rows=revision)
        batch.add(row(revision, b"v" * 5000, revision))
        assert commit(journal, batch) is None
    copy = directory / "copy"
    copy.mkdir()
    for name in (DATABASE, DATABASE + "-wal", "head"):
        (copy / name).write_bytes((directory / name).read_bytes())
    journal.close()
    return copy


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    assert len(reopen(killed_copy(tmp_path, 3))) == 3


def test_a_truncated_write_ahead_log_is_found(tmp_path: Path) -> None:
    copy = killed_copy(tmp_path, 3)
    log = copy / (DATABASE + "-wal")
    os.truncate(log, log.stat().st_size - 100)
    with pytest.raises(StoreDamaged, match="revision 3 was acknowledged but the database ends at 2"):
        reopen(copy)


def test_a_removed_write_ahead_log_is_found(tmp_path: Path) -> None:
    copy = killed_copy(tmp_path, 3)
    (copy / (DATABASE + "-wal")).unlink()
    with pytest.raises(StoreDamaged):
        reopen(copy)


def test_garbage_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreDamaged, match="file is not a database"):
        reopen(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("UPDATE meta SET format = 99")
        db.commit()
    with pytest.raises(StoreDamaged, match="has format 99; this version of sandpool reads format 1"):
        reopen(tmp_path)


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    journal = Journal(tmp_path)
    batch = Batch(revision=1, rows=1)
    batch.add(row(1))
    assert commit(journal, batch) is None
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("lock", "head", DATABASE, DATABASE + "-wal", DATABASE + "-shm"), "0o0"
    )
    journal.close()
