"""Atomic replacement of files."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from sandpool.sandboxd.root import Place


class NoSpace(Exception):
    """The file does not fit on its disk, or into its volume."""


@contextlib.contextmanager
def atomic_writer(place: Place, mode: int, expected: int = 0) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``place`` at the end of the block. After an exception the old file stays.

    Raises ``NoSpace`` if the file does not fit: at once if ``expected`` bytes do not, else when the disk is full.
    """
    with contextlib.suppress(FileNotFoundError):
        if not place.name or stat.S_ISDIR(place.stat().st_mode):
            raise IsADirectoryError(21, "Is a directory")
    free = _free_bytes(place.directory)
    if expected > free:
        raise NoSpace(f"{expected} bytes do not fit: {free} bytes are free")
    temporary = f".{place.name[:100]}.{os.urandom(6).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=place.directory)
    try:
        with open(handle, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fchmod(handle, mode)
        os.rename(temporary, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException as error:
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = os.stat(temporary, dir_fd=place.directory).st_size
            os.unlink(temporary, dir_fd=place.directory)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"the disk is full after {size} bytes of this file; {free} bytes were free") from error
        raise


def _free_bytes(directory: int) -> int:
    status = os.fstatvfs(directory)
    return status.f_bavail * status.f_frsize
