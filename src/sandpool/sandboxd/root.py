"""Resolution of paths below a root directory, safe against links and concurrent changes.

The code in the sandbox may change the tree at any moment, so checking a path before using it is a race. The walk opens
one name at a time, relative to the directory before it and without following links. It reads links and walks their
targets the same way, and rejects every path that leads above the root. The result is an open directory and a name.
"""

from __future__ import annotations

import os

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # the limit of the kernel


class PathEscape(Exception):
    """The path leads out of the root."""


class Root:
    """Root directory, created if missing. Absolute paths, and absolute links into the root, are relative to it."""

    def __init__(self, path: str) -> None:
        os.makedirs(path, mode=0o755, exist_ok=True)
        self.path = os.path.realpath(path)
        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open the file or directory at a path."""
        with self.find(path) as place:
            return place.open(flags)

    def find(self, path: str, *, create_parents: bool = False, follow: bool = True) -> Place:
        """Resolve a path. The last name need not exist; without ``follow`` a link there is not followed. The caller
        closes the place."""
        walk = _Walk(self, create_parents)
        try:
            return walk.to(path, follow)
        except BaseException:
            walk.close()
            raise

    def handle(self) -> int:
        return os.dup(self._handle)

    def close(self) -> None:
        os.close(self._handle)


class Place:
    """A name in an open directory; an empty name is the directory itself."""

    def __init__(self, directory: int, name: str) -> None:
        self.directory = directory
        self.name = name

    def open(self, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # open() of a FIFO must not block
        if not self.name:
            return os.open(".", flags, dir_fd=self.directory)
        return os.open(self.name, flags, mode, dir_fd=self.directory)

    def stat(self) -> os.stat_result:
        if not self.name:
            return os.fstat(self.directory)
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)

    def close(self) -> None:
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Walk:
    """Stack of open directories from the root to the current one, so that ".." pops and never leaves the root."""

    def __init__(self, root: Root, create: bool) -> None:
        self.root = root
        self.create = create
        self.handles = [root.handle()]
        self.links = 0

    def to(self, path: str, follow: bool) -> Place:
        if "\0" in path:
            raise FileNotFoundError(path)
        names = _names(path)
        while names:
            name = names.pop(0)
            if name == "..":
                if len(self.handles) == 1:
                    raise PathEscape(path)
                os.close(self.handles.pop())
                continue
            target = self._link(name) if names or follow else None
            if target is not None:
                names = self._through(target, path) + names
            elif names:
                self._enter(name)
            else:
                return self._place(name)
        return self._place("")

    def _through(self, target: str, path: str) -> list[str]:
        self.links += 1
        if self.links > _MAX_LINKS:
            raise OSError(40, os.strerror(40), path)
        if not target.startswith("/"):
            return _names(target)
        inside = _below(target, self.root.path)
        if inside is None:
            raise PathEscape(path)
        while len(self.handles) > 1:
            os.close(self.handles.pop())
        return _names(inside)

    def _link(self, name: str) -> str | None:
        """Return the target of a link; None if the name is no link or does not exist."""
        try:
            return os.readlink(name, dir_fd=self.handles[-1])
        except OSError:
            return None

    def _enter(self, name: str) -> None:
        here = self.handles[-1]
        if self.create:
            try:  # noqa: SIM105 - contextlib is not imported
                os.mkdir(name, 0o755, dir_fd=here)
            except FileExistsError:
                pass
        self.handles.append(os.open(name, _DIRECTORY, dir_fd=here))

    def _place(self, name: str) -> Place:
        place = Place(self.handles.pop(), name)
        self.close()
        return place

    def close(self) -> None:
        while self.handles:
            os.close(self.handles.pop())


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _below(path: str, root: str) -> str | None:
    """Return a path relative to the root; None if it is outside."""
    if path == root:
        return ""
    prefix = root if root.endswith("/") else root + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None
