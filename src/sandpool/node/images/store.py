"""The store of images on this machine.

An image is a directory with its files and metadata; a name is a symbolic link to it. Each of them appears and
disappears atomically, so a reader sees an image complete or not at all, and a crash leaves at most files in
``incoming``, which are removed at the next start. Writers, threads of the agent and commands of the operator alike,
hold a lock: an image that has no name yet must not be taken for an unused one.
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

from sandpool.node.images.config import ImageConfig
from sandpool.node.images.reference import Reference

ROOTFS: Final = "rootfs"
_METADATA: Final = "image.json"


class ImageInUse(Exception):
    """A container uses the image."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """``id`` is a digest; ``size`` is the size of its files in bytes."""

    id: str
    directory: Path
    config: ImageConfig
    size: int
    source: str  # where it was imported or pulled from

    @property
    def root(self) -> Path:
        return self.directory / ROOTFS


class _Metadata(msgspec.Struct):
    id: str
    config: ImageConfig
    size: int
    source: str


class ImageStore:
    """``used`` returns the root directories of existing containers."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]]) -> None:
        # Resolved, because paths are compared to find unused images, which are removed.
        self.directory = directory.resolve()
        self.used = used
        self._images = self.directory / "images"
        self._names = self.directory / "names"
        self._incoming = self.directory / "incoming"

    def find(self, reference: Reference) -> StoredImage | None:
        link = self._link(reference)
        return self._read(link.resolve()) if link.is_symlink() else None

    def names(self) -> dict[str, StoredImage]:
        """All names with their images."""
        found: dict[str, StoredImage] = {}
        for link in sorted(self._names.iterdir()) if self._names.exists() else ():
            if (image := self._read(link.resolve())) is not None:
                found[unquote(link.name)] = image
        return found

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """An empty directory on the same file system. It is removed afterwards unless ``add`` has moved it."""
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory = self._incoming / secrets.token_hex(8)
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def add(self, reference: Reference, incoming: Path, id: str, config: ImageConfig, source: str) -> StoredImage:
        """Move a directory with the image's files in ``rootfs`` into the store, and name the image."""
        about = _Metadata(id, config, _size(incoming / ROOTFS), source)
        (incoming / _METADATA).write_bytes(msgspec.json.encode(about))
        with self._locked():
            return self._commit(reference, incoming, self._images / id.replace(":", "-"))

    def _commit(self, reference: Reference, incoming: Path, target: Path) -> StoredImage:
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
            with contextlib.suppress(ImageInUse):  # removed with the next unused image
                self._remove_unnamed()
        stored = self._read(target)
        assert stored is not None
        return stored

    def remove(self, reference: Reference) -> bool:
        """Remove a name, and its image if it has no other name. Returns False if the name does not exist. Raises
        ``ImageInUse``."""
        if not self.directory.exists():
            return False
        with self._locked():
            return self._remove(reference)

    def _remove(self, reference: Reference) -> bool:
        image = self.find(reference)
        if image is None:
            return False
        others = [name for name, other in self.names().items() if other.id == image.id and name != str(reference)]
        if not others and self._is_needed(image.directory):
            raise ImageInUse(f"{reference} is in use by a running container; delete its pod first")
        self._link(reference).unlink()
        self._remove_unnamed()
        return True

    def remove_incomplete(self) -> None:
        """Remove incomplete images that a crash has left."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remove_unnamed(self) -> None:
        named = {image.directory for image in self.names().values()}
        for directory in self._images.iterdir():
            if directory not in named and not self._is_needed(directory):
                shutil.rmtree(directory)

    def _is_needed(self, directory: Path) -> bool:
        # Both checks are needed: another agent's containers are not in ``used``, and mountinfo has paths relative to
        # the file system, which may not begin at the root directory.
        return any(root.resolve().is_relative_to(directory) for root in self.used()) or is_mounted(directory)

    def _link(self, reference: Reference) -> Path:
        return self._names / quote(str(reference), safe="")

    def _read(self, directory: Path) -> StoredImage | None:
        try:
            about = msgspec.json.decode((directory / _METADATA).read_bytes(), type=_Metadata)
        except FileNotFoundError:
            return None
        return StoredImage(about.id, directory, about.config, about.size, about.source)


def is_mounted(directory: Path) -> bool:
    """Whether any process of this machine has files of the directory mounted."""
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
