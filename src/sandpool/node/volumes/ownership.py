"""Changes the owner of a directory tree.

A sandbox may have filled the directory with anything, and this runs as root, so it follows no link: directories are
opened one inside the other, and links are changed themselves.
"""

from __future__ import annotations

import os
from pathlib import Path


def give(directory: Path, uid: int, gid: int) -> bool:
    """Return False if the owner is right already. The top is changed last, so its owner is that of the whole tree."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(top)
        if (status.st_uid, status.st_gid) == (uid, gid):
            return False
        _give_content(top, uid, gid)
        os.fchown(top, uid, gid)
        return True
    finally:
        os.close(top)


def _give_content(parent: int, uid: int, gid: int) -> None:
    with os.scandir(parent) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                child = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                try:
                    _give_content(child, uid, gid)
                finally:
                    os.close(child)
            os.chown(entry.name, uid, gid, dir_fd=parent, follow_symlinks=False)
