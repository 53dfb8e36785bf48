"""Log records and how they are assembled from pieces."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.logs.record import LONGEST, Record, Splitter, stamp

NOW = stamp(datetime(2026, 11, 16, 10, 0, 0, 123456, UTC))


def test_record_has_the_cri_format() -> None:
    assert Splitter("stderr").feed(b"hello\n", NOW) == b"2026-11-16T10:00:00.123456000Z stderr F hello\n"


def test_incomplete_line_is_held_back() -> None:
    splitter = Splitter("stdout")
    assert splitter.feed(b"hel", NOW) == b""
    assert Record.parse(splitter.feed(b"lo\nwor", NOW)[:-1]) == Record(NOW, "stdout", True, b"hello")
    assert Record.parse(splitter.finish(NOW)[:-1]) == Record(NOW, "stdout", False, b"wor")
    assert splitter.finish(NOW) == b""


def test_endless_line_is_split() -> None:
    splitter = Splitter("stdout")
    lines = (splitter.feed(b"x" * (2 * LONGEST + 5), NOW) + splitter.feed(b"\n", NOW)).splitlines()
    records = [record for line in lines if (record := Record.parse(line))]
    assert [(len(record.text), record.is_complete) for record in records] == [
        (LONGEST, False), (LONGEST, False), (5, True),
    ]  # fmt: skip


def test_malformed_line_is_ignored() -> None:
    for line in (b"", b"2026 stdout", b"2026 stdout X text"):
        assert Record.parse(line) is None


@given(st.lists(st.binary(max_size=3 * LONGEST), max_size=8))
def test_any_chunking_round_trips(pieces: list[bytes]) -> None:
    splitter = Splitter("stdout")
    kept = b"".join(splitter.feed(piece, NOW) for piece in pieces) + splitter.finish(NOW)
    records = [Record.parse(line) for line in kept.split(b"\n")[:-1]]
    assert all(record is not None and len(record.text) <= LONGEST for record in records)
    assert b"".join(record.written() for record in records if record) == b"".join(pieces)
