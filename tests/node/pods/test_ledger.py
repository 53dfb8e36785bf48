"""What is written down about a pod for the next agent."""

from __future__ import annotations

from pathlib import Path

from sandpool.node.pods.ledger import Ledger, Run, read_ledger

LEDGER = Ledger("u", "space", "pod", 200_000, "bwrap", "pod", "/run/netns", ("10.1.0.1",))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ledger = LEDGER.with_run("main", Run("id", "image", 2, "2026-01-01T00:00:00Z"))
    ledger.write(tmp_path / "u")
    assert read_ledger(tmp_path / "u") == ledger
    assert [path.name for path in (tmp_path / "u").iterdir()] == ["pod.json"]


def test_nothing_was_started_if_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_ledger(tmp_path) is None
    assert read_ledger(tmp_path / "none") is None
    (tmp_path / "pod.json").write_text('{"uid": ')
    assert read_ledger(tmp_path) is None
    (tmp_path / "pod.json").write_text('{"uid": 5}')
    assert read_ledger(tmp_path) is None
    assert read_ledger(tmp_path / "pod.json") is None
