"""Gives a directory with everything in it to a user.

A sandbox may have filled the directory with anything, and we are root, so nothing is followed: directories are opened
one inside the other, and links are changed themselves.
"""

from __future__ import annotations

import os
from pathlib import Path


def give(directory: Path, uid: int, gid: int) -> bool:
    """False: it was theirs already. Who owns the top owns the rest, because the top is changed last."""
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
