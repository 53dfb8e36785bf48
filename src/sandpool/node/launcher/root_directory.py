"""The root directory of a container while it is being built: paths in it are resolved without leaving it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import PurePosixPath

from sandpool.node.launcher import syscalls
from sandpool.node.launcher.unprivileged import is_unprivileged
from sandpool.node.runtimes.runtime import NoSuchCommand, RuntimeFailure


class Root:
    """The root directory at ``path``. Files made in it belong to ``uid`` and ``gid``."""

    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.uid = uid
        self.gid = gid

    def close(self) -> None:
        os.close(self.descriptor)

    def place(self, target: str, *, directory: bool) -> int:
        """Open a mount point in the container; make it and its parent directories if needed."""
        at = "/"
        parts = PurePosixPath("/", target).parts[1:]
        if ".." in parts:
            raise RuntimeFailure(f"a mount path must not contain '..': {target}")
        for index, part in enumerate(parts):
            above, at = at, f"{at.rstrip('/')}/{part}"
            if not self.exists(at):
                self._make(above, part, directory=directory or index < len(parts) - 1)
        point = syscalls.open_within(self.descriptor, at)
        if stat.S_ISDIR(os.fstat(point).st_mode) != directory:
            os.close(point)
            raise RuntimeFailure(f"cannot mount {'a directory' if directory else 'a file'} at {target}")
        return point

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Write a file owned by the sandbox, replacing any existing file."""
        directory, name = path.rsplit("/", 1)
        parent = self.place(directory, directory=True)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=parent)
        os.write(file, content)
        os.fchown(file, self.uid, self.gid)
        os.close(file)
        os.close(parent)

    def bind(self, source: int, target: str, *, read_only: bool) -> None:
        point = self.place(target, directory=stat.S_ISDIR(os.fstat(source).st_mode))
        syscalls.mount(path_of(source), path_of(point), "", syscalls.MS_BIND)
        os.close(point)
        if read_only or not is_unprivileged():
            mounted = syscalls.open_within(self.descriptor, target)
            restrict_mount(path_of(mounted), read_only=read_only)
            os.close(mounted)

    def exists(self, path: str) -> bool:
        try:
            os.close(syscalls.open_within(self.descriptor, path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def check_program(self, program: str, cwd: str, path: str) -> None:
        """Raise ``NoSuchCommand`` if the program does not exist. Whether it is executable shows when it is executed."""
        if "/" in program:
            found, why = [PurePosixPath(cwd, program)], "no such file or directory"
        else:
            found = [PurePosixPath(cwd, each, program) for each in path.split(":")]
            why = "executable file not found in $PATH"
        if not any(self.exists(str(each)) for each in found):
            raise NoSuchCommand(f'exec: "{program}": {why}')

    def _make(self, above: str, name: str, *, directory: bool) -> None:
        parent = syscalls.open_within(self.descriptor, above)
        try:
            if directory:
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=parent))
            os.chown(name, self.uid, self.gid, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            raise RuntimeFailure(f"cannot make the mount point {above}/{name}: {error.strerror}") from error
        finally:
            os.close(parent)


def make_below(top: int, path: str, uid: int, gid: int) -> None:
    """Make a directory and its parents below ``top``, in which other processes may change files at the same time. A
    link that leads out of ``top`` is an error."""
    at = ""
    for part in PurePosixPath(path).parts:
        above = syscalls.open_within(top, at or ".", resolve=syscalls.RESOLVE_BENEATH)
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=above)
                os.chown(part, uid, gid, dir_fd=above, follow_symlinks=False)
        finally:
            os.close(above)
        at = f"{at}/{part}" if at else part


def restrict_mount(path: str, *, read_only: bool) -> None:
    """Remount a bind mount so that setuid bits and devices on it have no effect.

    Without root the kernel refuses to change flags that the host has locked, so callers without root only do this where
    it must be read-only; bwrap, the one runtime there, sets both flags itself."""
    flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("none", path, "", flags | (syscalls.MS_RDONLY if read_only else 0))


def path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
