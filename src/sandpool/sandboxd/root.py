"""Paths below one directory, however they are spelled and whatever links are in the way.

The code in the sandbox may change the tree at any moment, so a path that was checked is not a path that is used. Here a
path is walked one name at a time, each opened inside the one before without following links; links are read and walked
in turn, and whatever leads above the root is refused. What comes back is an open directory and a name in it.
"""

from __future__ import annotations

import os

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as the kernel has it


class PathEscape(Exception):
    """The path leads out of the root."""


class Root:
    """``path`` is made if it is not there. Absolute paths, and absolute links that point into the root, start there."""

    def __init__(self, path: str) -> None:
        os.makedirs(path, mode=0o755, exist_ok=True)
        self.path = os.path.realpath(path)
        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """The file or directory a path leads to."""
        with self.find(path) as place:
            return place.open(flags)

    def find(self, path: str, *, create_parents: bool = False, follow: bool = True) -> Place:
        """Where a path leads. The last name need not exist; unless ``follow``, it may be a link that is meant itself.
        The caller closes the place."""
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
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not make us wait
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
    """Open directories from the root to where we are, so that ".." is a step back and never out."""

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
        if self.links > _MOST_LINKS:
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
        """Where a link points; None if it is none, or nothing."""
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
    """The rest of a path that begins with the root."""
    if path == root:
        return ""
    prefix = root if root.endswith("/") else root + "/"
    return path[len(prefix) :] if path.startswith(prefix) else None
