"""The images that are on this machine.

An image is a directory with its files and what is known about it; a name is a link to it. Both appear and disappear in
one step each, so whoever looks sees an image whole or not at all, and a crash leaves at most something in ``incoming``,
which is swept away. Who changes what there is does so alone, be it a thread of the agent or a command of its operator:
an image that has no name yet must not be taken for one that nobody wants.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from sandpool.node.images.config import Config
from sandpool.node.images.reference import Reference

ROOT: Final = "rootfs"
_ABOUT: Final = "image.json"


class ImageInUse(Exception):
    """A container runs on it."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """``id`` is a digest; ``size`` is of its files, in bytes."""

    id: str
    directory: Path
    config: Config
    size: int
    source: str  # where it was imported or pulled from

    @property
    def root(self) -> Path:
        return self.directory / ROOT


class _About(msgspec.Struct):
    id: str
    config: Config
    size: int
    source: str


class ImageStore:
    """``used`` tells what the roots of containers are made of that are here."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]]) -> None:
        # By its one true name: paths are compared, and what is not among those that are named is removed.
        self.directory = directory.resolve()
        self.used = used
        self._images = self.directory / "images"
        self._names = self.directory / "names"
        self._incoming = self.directory / "incoming"

    def find(self, reference: Reference) -> StoredImage | None:
        link = self._link(reference)
        return self._read(link.resolve()) if link.is_symlink() else None

    def names(self) -> dict[str, StoredImage]:
        """Every name there is."""
        found: dict[str, StoredImage] = {}
        for link in sorted(self._names.iterdir()) if self._names.exists() else ():
            if (image := self._read(link.resolve())) is not None:
                found[unquote(link.name)] = image
        return found

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """An empty directory on the same disk, gone afterwards unless ``add`` has taken it."""
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self._incoming / secrets.token_hex(8)
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def add(self, reference: Reference, incoming: Path, id: str, config: Config, source: str) -> StoredImage:
        """Take over a directory that has the image's files in ``rootfs``, and name it."""
        about = _About(id, config, _size(incoming / ROOT), source)
        (incoming / _ABOUT).write_bytes(msgspec.json.encode(about))
        with self._alone():
            return self._take(reference, incoming, self._images / id.replace(":", "-"))

    def _take(self, reference: Reference, incoming: Path, target: Path) -> StoredImage:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            incoming.rename(target)
        self._names.mkdir(parents=True, exist_ok=True)
        before = self.find(reference)
        link = self._link(reference)
        pointer = link.with_name(f".{secrets.token_hex(8)}")
        pointer.symlink_to(Path(os.pardir, self._images.name, target.name))
        pointer.replace(link)
        if before is not None and before.directory != target:
            with contextlib.suppress(ImageInUse):  # it goes when the name of another image is removed
                self._remove_unnamed()
        stored = self._read(target)
        assert stored is not None
        return stored

    def remove(self, reference: Reference) -> bool:
        """Remove a name, and its image if that has no other. False: there is no such name."""
        if not self.directory.exists():
            return False
        with self._alone():
            return self._remove(reference)

    def _remove(self, reference: Reference) -> bool:
        image = self.find(reference)
        if image is None:
            return False
        others = [name for name, other in self.names().items() if other.id == image.id and name != str(reference)]
        if not others and self._is_in_use(image.directory):
            raise ImageInUse(f"{reference} is in use by a running container; delete its pod first")
        self._link(reference).unlink()
        self._remove_unnamed()
        return True

    def sweep(self) -> None:
        """What a crash has left."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remove_unnamed(self) -> None:
        named = {image.directory for image in self.names().values()}
        for directory in self._images.iterdir():
            if directory not in named and not self._is_in_use(directory):
                shutil.rmtree(directory)

    def _is_in_use(self, directory: Path) -> bool:
        # Neither alone: what runs may be somebody else's, and names of mounts begin where their disk does.
        return any(root.resolve().is_relative_to(directory) for root in self.used()) or is_in_use(directory)

    def _link(self, reference: Reference) -> Path:
        return self._names / quote(str(reference), safe="")

    def _read(self, directory: Path) -> StoredImage | None:
        try:
            about = msgspec.json.decode((directory / _ABOUT).read_bytes(), type=_About)
        except FileNotFoundError:
            return None
        return StoredImage(about.id, directory, about.config, about.size, about.source)


def is_in_use(directory: Path) -> bool:
    """Whether anything on this machine has files of the directory mounted, wherever and by whomever it was started."""
    wanted = str(directory)
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):  # a process that has ended
            if wanted in mounts.read_text(errors="replace"):
                return True
    return False


def _size(root: Path) -> int:
    total = 0
    for base, _, names in os.walk(root):
        total += sum(os.lstat(os.path.join(base, name)).st_size for name in names)
    return total
