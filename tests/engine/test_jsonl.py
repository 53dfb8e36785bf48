"""A JSON lines file that never blocks its callers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sandpool.engine.jsonl import STANDARD_OUTPUT, JsonlWriter


class Numbered(NamedTuple):
    number: int

    def line(self) -> bytes:
        return b"entry number %07d\n" % self.number


def numbers(path: Path) -> list[int]:
    return [int(line.split()[-1]) for line in path.read_bytes().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[JsonlWriter]:
    made = JsonlWriter(tmp_path / "log")
    yield made
    made.close()


def test_log_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(2):
        log = JsonlWriter(path)
        log.note(Numbered(number))
        log.close()
    assert numbers(path) == [0, 1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rotation_keeps_the_newest_files(tmp_path: Path) -> None:
    log = JsonlWriter(tmp_path / "log", rotate_bytes=1, keep=2)
    for number in range(5):
        log.note(Numbered(number))
        log.flush()
    log.close()
    assert [numbers(path) for path in sorted(tmp_path.iterdir())] == [[4], [3], [2]]


def test_unwritable_path_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        JsonlWriter(tmp_path / "missing" / "log")


def test_full_disk_drops_entries_until_there_is_space(
    log: JsonlWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write

    def full(descriptor: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) - 15])

    monkeypatch.setattr("sandpool.engine.jsonl.os.write", full)
    log.note(Numbered(0))
    log.flush()
    log.note(Numbered(1))
    log.flush()
    assert log.dropped == 2
    assert caplog.text.count("dropping lines: [Errno 28]") == 1
    monkeypatch.undo()
    log.note(Numbered(2))
    log.flush()
    assert log.path.read_bytes().splitlines()[-1] == b"entry number 0000002", "a torn line does not spoil the next"


def test_too_many_pending_entries_are_dropped(log: JsonlWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.engine.jsonl._MOST_WAITING", 3)
    with log._writing:  # the thread cannot write, and callers of ``note`` do not wait for it
        for number in range(5):
            log.note(Numbered(number))
    log.flush()
    assert log.dropped == 2
    assert numbers(log.path) == [0, 1, 2]


def test_thread_writes_pending_entries_without_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandpool.engine.jsonl._WAKE_AT", 2)
    log = JsonlWriter(tmp_path / "log")
    for number in range(10):
        log.note(Numbered(number))
    log._closing = True
    log._wake.set()
    log._thread.join()
    assert numbers(log.path) == list(range(10))
    log.close()


def test_standard_output_is_never_rotated(capfd: pytest.CaptureFixture[str]) -> None:
    log = JsonlWriter(STANDARD_OUTPUT, rotate_bytes=1)
    for number in range(2):
        log.note(Numbered(number))
        log.flush()
    log.close()
    assert capfd.readouterr().out == "entry number 0000000\nentry number 0000001\n"
