"""The checkpoint of a pod, which an agent writes for the next agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sandpool.node.pods.checkpoint import PodCheckpoint, Run, boot_id, read_checkpoint, read_run

CHECKPOINT = PodCheckpoint("u", "space", "pod", 200_000, "bwrap")


def run(restarts: int) -> Run:
    return Run(f"id-{restarts}", "image", restarts, "2026-01-01T00:00:00Z")


def test_checkpoint_is_read_as_written(tmp_path: Path) -> None:
    CHECKPOINT.write(tmp_path / "u")
    assert read_checkpoint(tmp_path / "u") == CHECKPOINT
    CHECKPOINT.write(tmp_path / "u")
    assert read_checkpoint(tmp_path / "u") == CHECKPOINT


def test_only_the_last_run_is_kept(tmp_path: Path) -> None:
    CHECKPOINT.write(tmp_path)
    assert read_run(tmp_path, "main") is None
    for restarts in (0, 9, 10):
        run(restarts).write(tmp_path, "main")
        run(restarts).write(tmp_path, "main-2")
        assert read_run(tmp_path, "main") == run(restarts)
    assert sorted(path.name for path in (tmp_path / "_runs").iterdir()) == ["main-2.10", "main.10"]


def test_missing_files_mean_nothing_was_started(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    assert read_checkpoint(tmp_path / "none") is None
    (tmp_path / "pod.json").write_text('{"uid": ')
    assert read_checkpoint(tmp_path) is None
    (tmp_path / "pod.json").write_text('{"uid": 5}')
    assert read_checkpoint(tmp_path) is None
    assert read_checkpoint(tmp_path / "pod.json") is None
    (tmp_path / "_runs").mkdir()
    (tmp_path / "_runs" / "main.0").write_text("{")
    assert read_run(tmp_path, "main") is None


def test_run_of_an_earlier_boot_is_recognised() -> None:
    assert not replace(run(0), boot=boot_id()).is_of_another_boot
    assert replace(run(0), boot="another").is_of_another_boot
    assert not run(0).is_of_another_boot  # it was not noted
