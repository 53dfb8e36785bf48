from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import zlib
from pathlib import Path

import pytest

from sandpool.server.store.journal import (
    DATABASE,
    RESERVE,
    Batch,
    Journal,
    Row,
    StoreDamaged,
    StoreInUse,
    checksum,
)


def row(number: int, value: bytes = b"{}", revision: int = 1) -> Row:
    return Row(number, "pods", "default", f"pod-{number}", revision, value)


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
    for number in range(1, count + 1):
        batch.add(row(number, b'{"n":%d}' % number, number))
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


def test_committed_rows_are_loaded_again(tmp_path: Path) -> None:
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
def test_batches_of_every_size_are_written_completely(tmp_path: Path, count: int) -> None:
    filled(tmp_path, count)
    assert [(r.id, r.value) for r in reopen(tmp_path)] == [
        (number, b'{"n":%d}' % number) for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("size", [0, 1, 5119, 5120, 5121, 10240, 20000])
def test_checksum_of_pieces_equals_that_of_the_whole(size: int) -> None:
    value = bytes(number % 251 for number in range(size))
    assert checksum(value) == zlib.crc32(value)


def test_batch_writes_the_last_state_of_a_row() -> None:
    batch = Batch()
    batch.add(row(1, b"a"))
    batch.remove(1)
    assert (batch.puts, batch.deletes) == ({}, {1})
    batch.add(row(1, b"b"))
    assert (batch.puts, batch.deletes) == ({1: row(1, b"b")}, set())


def test_second_server_on_a_directory_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(StoreInUse, match="in use by another server"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_flipped_bit_is_detected(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint(tmp_path)
    path = tmp_path / DATABASE
    content = path.read_bytes()
    path.write_bytes(content.replace(b'{"n":2}', b'{"n":3}', 1))
    with pytest.raises(StoreDamaged, match=r'pods "default/pod-\d" do not match their checksum'):
        reopen(tmp_path)


def test_lost_row_is_detected(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("DELETE FROM objects WHERE id = 2")
        db.commit()
    with pytest.raises(StoreDamaged, match="should hold 3 objects and holds 2"):
        reopen(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 4096, 5000, 9000])
def test_truncated_database_is_detected(tmp_path: Path, keep: int) -> None:
    filled(tmp_path, 50)
    checkpoint(tmp_path)
    os.truncate(tmp_path / DATABASE, keep)
    with pytest.raises(StoreDamaged, match="Restore the directory from a backup"):
        reopen(tmp_path)


def change(directory: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(directory / DATABASE)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE objects SET name = 'other' WHERE id = 2",
        "UPDATE objects SET namespace = 'kube-system' WHERE id = 2",
        "UPDATE objects SET resource = 'secrets' WHERE id = 2",
        "UPDATE objects SET revision = 1 WHERE id = 2",
        "UPDATE objects SET id = 7 WHERE id = 2",
        "UPDATE objects SET value = (SELECT value FROM objects WHERE id = 1) WHERE id = 2",
    ],
)
def test_changed_column_is_detected(tmp_path: Path, statement: str) -> None:
    filled(tmp_path)
    change(tmp_path, statement)
    with pytest.raises(StoreDamaged, match="do not match their checksum"):
        reopen(tmp_path)


def test_duplicate_key_is_detected(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    batch = Batch(revision=2, rows=2)
    batch.add(Row(1, "pods", "default", "twin", 1, b"{}"))
    batch.add(Row(2, "pods", "default", "twin", 2, b"{}"))
    assert commit(journal, batch) is None
    journal.close()
    with pytest.raises(StoreDamaged, match="1 objects are there twice"):
        reopen(tmp_path)


def test_outdated_row_is_detected(tmp_path: Path) -> None:
    """A page that was not written, or came back: each row on it is sound by itself."""
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        earlier = db.execute("SELECT * FROM objects WHERE id = 2").fetchone()
    journal = Journal(tmp_path)
    list(journal.load())
    batch = Batch(revision=4, rows=3)
    batch.add(row(2, b"new", 4))
    assert commit(journal, batch) is None
    journal.close()
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)", earlier)
        db.commit()
    with pytest.raises(StoreDamaged, match="rows of an earlier state"):
        reopen(tmp_path)


def test_lost_row_and_restored_row_are_detected_together(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        removed = db.execute("SELECT * FROM objects WHERE id = 2").fetchone()
    journal = Journal(tmp_path)
    list(journal.load())
    batch = Batch(revision=4, rows=2)
    batch.remove(2)
    assert commit(journal, batch) is None
    journal.close()
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)", removed)
        db.execute("DELETE FROM objects WHERE id = 3")
        db.commit()
    with pytest.raises(StoreDamaged, match="rows of an earlier state"):
        reopen(tmp_path)


def test_swapped_pages_are_detected(tmp_path: Path) -> None:
    filled(tmp_path, 1000)
    checkpoint(tmp_path)
    path = tmp_path / DATABASE
    content = path.read_bytes()
    pages = [content[start : start + 4096] for start in range(0, len(content), 4096)]
    for first in range(2, len(pages) - 1):
        swapped = [*pages]
        swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
        path.write_bytes(b"".join(swapped))
        with pytest.raises(StoreDamaged):
            reopen(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_is_detected_or_harmless(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    filled(tmp_path, 100)
    before = reopen(tmp_path)
    checkpoint(tmp_path)
    path = tmp_path / DATABASE
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 8, 512))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(bytes(content))
    with contextlib.suppress(StoreDamaged):
        assert reopen(tmp_path) == before


def as_format_1(directory: Path) -> None:
    """Turn the database into one of the version before: no digest, checksums of values only."""
    with contextlib.closing(sqlite3.connect(directory / DATABASE)) as db:
        for number, value in db.execute("SELECT id, value FROM objects").fetchall():
            db.execute("UPDATE objects SET crc = ? WHERE id = ?", (zlib.crc32(value), number))
        db.execute("ALTER TABLE meta DROP COLUMN digest")
        db.execute("UPDATE meta SET format = 1")
        db.commit()


def test_database_of_the_previous_format_is_opened_and_checked_from_then_on(tmp_path: Path) -> None:
    filled(tmp_path)
    as_format_1(tmp_path)
    journal = Journal(tmp_path)
    assert [r.id for r in journal.load()] == [1, 2, 3]
    batch = Batch(revision=4, rows=3)
    batch.add(row(1, b"new", 4))
    assert commit(journal, batch) is None
    journal.close()
    assert [(r.id, r.value) for r in reopen(tmp_path)] == [(1, b"new"), (2, b'{"n":2}'), (3, b'{"n":3}')]
    change(tmp_path, "UPDATE objects SET name = 'other' WHERE id = 2")
    with pytest.raises(StoreDamaged, match="rows of an earlier state"):
        reopen(tmp_path)


def test_damage_in_a_database_of_the_previous_format_is_detected(tmp_path: Path) -> None:
    filled(tmp_path)
    as_format_1(tmp_path)
    change(tmp_path, "UPDATE objects SET value = x'7b7d' WHERE id = 2")
    with pytest.raises(StoreDamaged, match="do not match their checksum"):
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


def test_killed_server_loses_nothing(tmp_path: Path) -> None:
    assert len(reopen(killed_copy(tmp_path, 3))) == 3


def test_truncated_write_ahead_log_is_detected(tmp_path: Path) -> None:
    copy = killed_copy(tmp_path, 3)
    log = copy / (DATABASE + "-wal")
    os.truncate(log, log.stat().st_size - 100)
    with pytest.raises(StoreDamaged, match="revision 3 was acknowledged but the database ends at 2"):
        reopen(copy)


def test_removed_write_ahead_log_is_detected(tmp_path: Path) -> None:
    copy = killed_copy(tmp_path, 3)
    (copy / (DATABASE + "-wal")).unlink()
    with pytest.raises(StoreDamaged):
        reopen(copy)


def test_file_that_is_no_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreDamaged, match="file is not a database"):
        reopen(tmp_path)


def test_unknown_format_is_rejected(tmp_path: Path) -> None:
    filled(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("UPDATE meta SET format = 99")
        db.commit()
    with pytest.raises(StoreDamaged, match="has format 99; this version of sandpool reads format 2"):
        reopen(tmp_path)


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    journal = Journal(tmp_path)
    batch = Batch(revision=1, rows=1)
    batch.add(row(1))
    assert commit(journal, batch) is None
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("lock", "head", RESERVE, DATABASE, DATABASE + "-wal", DATABASE + "-shm"), "0o0"
    )
    journal.close()
