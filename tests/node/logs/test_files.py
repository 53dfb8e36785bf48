"""Log files have a bounded size, and the previous run is kept."""

from __future__ import annotations

from pathlib import Path

from sandpool.node.logs.files import LogFile, files_of


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_rotation_deletes_the_oldest_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path, 0, max_size=100, max_files=3)
    for number in range(100):
        log.write(b"line %03d\n" % number)
    log.close()
    assert names(tmp_path) == {"0.log", "0.log.1", "0.log.2"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 300
    kept = b"".join(path.read_bytes() for path in files_of(tmp_path, 0)).splitlines()
    assert kept[-1] == b"line 099" and kept == sorted(kept)


def test_write_larger_than_a_file_is_not_split(tmp_path: Path) -> None:
    log = LogFile(tmp_path, 0, max_size=10, max_files=1)
    log.write(b"x" * 50)
    log.write(b"y")
    log.close()
    assert (tmp_path / "0.log").read_bytes() == b"y"


def test_reopened_log_starts_on_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"whole\nhal")
    log = LogFile(tmp_path, 0)
    log.write(b"next\n")
    log.close()
    assert (tmp_path / "0.log").read_bytes() == b"whole\nhal\nnext\n"


def test_only_the_previous_run_is_kept(tmp_path: Path) -> None:
    for run in range(4):
        log = LogFile(tmp_path, run)
        log.write(b"run %d\n" % run)
        log.close()
    (tmp_path / "unrelated").write_text("stays")
    assert names(tmp_path) == {"2.log", "3.log", "unrelated"}
    assert files_of(tmp_path, 2) == [tmp_path / "2.log"]
    assert files_of(tmp_path, 7) == [] == files_of(tmp_path / "none", 0)


def test_only_the_node_can_read_log_files(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    LogFile(directory, 0).close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "0.log").stat().st_mode & 0o777 == 0o600
