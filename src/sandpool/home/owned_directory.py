"""A directory that belongs to one user, written safely by root.

Root hands files to the user who called sudo, in directories that this user can change at any moment. A path is
therefore resolved once, to a descriptor. The directory behind it must belong to the user, and files are created and
replaced relative to the descriptor, without following links. Root thereby writes nothing that the user could not have
written.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 1 << 20
_BACKLOG: Final = 128  # connections that wait to be accepted


class NotOwned(OSError):
    """The file or directory belongs to another user, so nothing was read or written."""


def read_owned(path: Path, uid: int) -> bytes:
    """Return the content of a small file that belongs to ``uid``: what others wrote is not believed. Neither waits for
    a pipe nor follows a link in place of the file. Raises ``OSError``."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise OSError(errno.EINVAL, "Not a small regular file", str(path))
        if status.st_uid != uid:
            raise NotOwned(errno.EPERM, f"Belongs to the user with id {status.st_uid}", str(path))
        return stream.read(_MAX_BYTES)


class OwnedDirectory:
    """Writes private files (mode 0600) into one directory, atomically. Made by ``open_directory``."""

    def __init__(self, path: Path, descriptor: int, uid: int, gid: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._uid = uid
        self._gid = gid

    def write(self, name: str, data: bytes) -> Path:
        """Create or replace a file; return its path."""
        draft = f".{name}.{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(draft, flags, 0o600, dir_fd=self._descriptor)
        try:
            with os.fdopen(file, "wb") as stream:
                if os.geteuid() == 0:
                    os.fchown(stream.fileno(), self._uid, self._gid)
                stream.write(data)
            os.rename(draft, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=self._descriptor)
            raise
        return self.path / name

    def listen(self, name: str) -> socket.socket:
        """Listen at a Unix socket in the directory, in place of one that is there; only the user may connect."""
        self.remove(name)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            # An address has at most 107 bytes, which a path through the descriptor never exceeds.
            server.bind(f"/proc/self/fd/{self._descriptor}/{name}")
            file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._descriptor)
            try:
                self._give(file, f"/proc/self/fd/{file}")
            finally:
                os.close(file)
            server.listen(_BACKLOG)  # connecting fails before
        except BaseException:
            server.close()
            raise
        return server

    def _give(self, file: int, path: str) -> None:
        """Give a new socket to the user. The user may have put another file in its place, which stays as it is."""
        status = os.fstat(file)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise NotOwned(errno.EPERM, "Was replaced while it was made", path)
        os.chmod(path, 0o600)
        if os.geteuid() == 0:
            os.chown(path, self._uid, self._gid)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._descriptor)
        except OSError:
            return None
        with os.fdopen(file, "rb") as stream:
            return stream.read()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)


@contextmanager
def open_directory(base: Path, *names: str, uid: int, gid: int) -> Iterator[OwnedDirectory]:
    """Open ``base/names...``, creating what is missing with mode 0700. Raises ``OSError``."""
    path = base
    descriptor = _open(base)
    try:
        for name in names:
            path = path / name
            descriptor = _enter(descriptor, name, path, uid, gid)
        _check(descriptor, path, uid)
        yield OwnedDirectory(path, descriptor, uid, gid)
    finally:
        os.close(descriptor)


def _enter(parent: int, name: str, path: Path, uid: int, gid: int) -> int:
    """Open a subdirectory, created if missing, and close its parent. On failure the parent stays open."""
    try:
        child = _open(name, parent)
    except FileNotFoundError:
        _check(parent, path.parent, uid)
        os.mkdir(name, 0o700, dir_fd=parent)
        child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
        if os.geteuid() == 0:
            os.fchown(child, uid, gid)
    os.close(parent)
    return child


def _open(path: str | Path, parent: int | None = None) -> int:
    # Follows links: users link ~/.local/share elsewhere. The owner of the result is what counts.
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)


def _check(descriptor: int, path: Path, uid: int) -> None:
    owner = os.fstat(descriptor).st_uid
    if owner != uid:
        raise NotOwned(f"{path} belongs to the user with id {owner}, not {uid}: nothing was written there")
