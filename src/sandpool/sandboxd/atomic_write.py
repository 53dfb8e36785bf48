"""Atomic replacement of files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from sandpool.sandboxd.root import Place


@contextlib.contextmanager
def atomic_writer(place: Place, mode: int) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``place`` at the end of the block. After an exception the old file stays."""
    with contextlib.suppress(FileNotFoundError):
        if not place.name or stat.S_ISDIR(place.stat().st_mode):
            raise IsADirectoryError(21, "Is a directory")
    temporary = f".{place.name[:100]}.{os.urandom(6).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place.directory)
    try:
        with open(handle, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fchmod(handle, mode)
        os.rename(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=place.directory)
        raise
