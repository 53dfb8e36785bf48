"""Log files of one container: one per run, rotated by size, with the previous run kept.

``3.log`` is what the third restart writes now, ``3.log.1`` what it wrote before the last rotation, and so on. ``2.log``
and its rotations are shown by ``kubectl logs --previous``. Together they have a bounded size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_SIZE: Final = 10 << 20
MAX_FILES: Final = 5

_NAME: Final = re.compile(r"(\d+)\.log(?:\.(\d+))?")


class LogFile:
    """The log of one run. Existing content of this run is kept."""

    def __init__(self, directory: Path, run: int, *, max_size: int = MAX_SIZE, max_files: int = MAX_FILES) -> None:
        self.directory = directory
        self.run = run
        self.max_size = max_size
        self.max_files = max_files
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._forget_runs()
        self._open()

    def write(self, lines: bytes) -> None:
        if self._size and self._size + len(lines) > self.max_size:
            self._cut()
        self._file.write(lines)
        self._file.flush()
        self._size += len(lines)

    def close(self) -> None:
        self._file.close()

    @property
    def _path(self) -> Path:
        return self.directory / f"{self.run}.log"

    def _open(self) -> None:
        # Readable by the node alone: containers may write secrets to their output.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "ab")
        self._size = self._file.tell()
        if self._size:
            self._end_line()

    def _end_line(self) -> None:
        """Terminate a line that a crash cut off, so that the next one does not become part of it."""
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self.write(b"\n")

    def _cut(self) -> None:
        self._file.close()
        oldest = self.max_files - 1
        for number in range(oldest, 0, -1):
            older = self.directory / f"{self.run}.log.{number}"
            if number == oldest:
                older.unlink(missing_ok=True)
            else:
                with suppress(FileNotFoundError):
                    older.rename(self.directory / f"{self.run}.log.{number + 1}")
        if oldest > 0:
            self._path.rename(self.directory / f"{self.run}.log.1")
        else:
            self._path.unlink()
        self._open()

    def _forget_runs(self) -> None:
        for run, _, path in _all(self.directory):
            if run < self.run - 1:
                path.unlink(missing_ok=True)


def files_of(directory: Path, run: int) -> list[Path]:
    """Return the files of a run, the oldest first."""
    return [path for _, _, path in sorted((found for found in _all(directory) if found[0] == run), key=lambda f: -f[1])]


def _all(directory: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield (run, age, path); age 0 is the file being written."""
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if (found := _NAME.fullmatch(name)) is not None:
                yield int(found[1]), int(found[2] or 0), directory / name
