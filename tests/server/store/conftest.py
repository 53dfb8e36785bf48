from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.small_disk import disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for little more than an empty server."""
    directory = tmp_path / "small-disk"
    directory.mkdir()
    with disk(directory, "4m") as path:
        yield path


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for a reserve that is larger than the write-ahead log of a new server."""
    directory = tmp_path / "larger-disk"
    directory.mkdir()
    with disk(directory, "16m") as path:
        yield path
