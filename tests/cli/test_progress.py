"""What long actions show: in a terminal one line that changes, in a file a line for each change."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest

from sandpool.cli import progress as module
from sandpool.cli import streams
from sandpool.cli.cp import CopyProgress, local_size
from sandpool.cli.progress import Progress, line_if_slow, steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error from here on. Not a fixture: pytest replaces it between set-up and test."""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    return stream


def test_a_bar_fills_in_a_terminal_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    with steps() as progress:
        progress.bar(1, 4, "1 of 4")
        progress.bar(4, 4, "4 of 4")
    first, second, end = terminal.getvalue().removeprefix("\r\x1b[K").split("\r\x1b[K")
    assert (first, second, end) == ("[#####...............] 1 of 4 ...", f"[{'#' * 20}] 4 of 4 ...", "")


def test_a_bar_of_nothing_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    Progress().bar(0, 0, "none")
    assert f"[{'#' * 20}] none" in terminal.getvalue()


def test_in_a_file_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for done in (0, 0, 1, 1, 2):
        progress.bar(done, 2, f"{done} of 2")
    assert capsys.readouterr().err == "0 of 2\n1 of 2\n2 of 2\n"


def test_steps_for_a_terminal_alone_leave_files_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with steps(in_terminal_only=True) as progress:
        progress.step("importing")
    assert capsys.readouterr().err == ""


async def test_only_slow_waiting_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    with line_if_slow(said.put_nowait, "fast"):
        await asyncio.sleep(0)
    monkeypatch.setattr(module, "_SLOW", 0.0)
    with line_if_slow(said.put_nowait, "slow"):
        assert await said.get() == "slow"
    assert said.empty()


def test_lines_that_stay_are_above_the_step_and_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    progress = Progress()
    progress.show("before")
    progress.step("importing")
    progress.tick(61.2)
    progress.show("warning")
    progress.clear()
    progress.show("after")
    assert terminal.getvalue().split("\r\x1b[K") == [
        "before\n",
        "importing ...",
        "importing ... 61 s",
        "warning\n",
        "importing ... 61 s",
        "after\n",
    ]


def test_step_that_is_longer_than_the_terminal_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could not be removed."""
    terminal = as_terminal(monkeypatch)
    monkeypatch.setattr(streams, "terminal_size", lambda: (30, 10))
    progress = Progress()
    progress.step("importing " + "x" * 100)
    progress.tick(3)
    assert [len(line) for line in terminal.getvalue().split("\r\x1b[K")] == [0, 29, 29]
    assert terminal.getvalue().endswith("x 3 s")


def test_copying_shows_a_bar_that_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/large").write_bytes(bytes(3 << 20))
    (tmp_path / "tree/link").symlink_to("/etc")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    terminal = as_terminal(monkeypatch)
    progress = CopyProgress(sum(local_size(str(tmp_path / each)) for each in ("tree", "file", "missing")))
    progress.add(100)
    assert terminal.getvalue() == "", "nothing for a small copy"
    progress.add(2 << 20)
    progress.end()
    bar = f"[{'#' * 10}{'.' * 10}] 2.0 MiB of 4.0 MiB copied ..."
    assert terminal.getvalue() == f"\r\x1b[K{bar}\r\x1b[K"


def test_copying_of_unknown_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    progress = CopyProgress()
    progress.add(2 << 20)
    assert terminal.getvalue() == "\r\x1b[K2.0 MiB copied ..."


def test_copying_writes_nothing_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    progress = CopyProgress(4 << 20)
    progress.add(2 << 20)
    progress.end()
    assert capsys.readouterr().err == ""
