"""The store of images on this machine.

An image is a directory with its files and metadata; a name is a symbolic link to it. Each of them appears and
disappears atomically, so a reader sees an image complete or not at all, and a crash leaves at most files in
``incoming``, which the next import removes. Writers, threads of the agent and commands of the operator alike,
hold a lock: an image that has no name yet must not be taken for an unused one.

An image that was built has no files of its own. It consists of layers, which images share, above an imported or a
built-in image. A layer is named by a digest of everything that went into it, so that the next build finds it. A layer
of no image is removed with the next image, unless a build is under way.

Other users of the machine cannot enter the directories of files: an image may have device files, and programs that run
as root for every user. In sandboxes those have no effect.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from sandpool.node.images.config import ImageConfig
from sandpool.node.images.reference import Reference

ROOTFS: Final = "rootfs"
_METADATA: Final = "image.json"
_PRIVATE: Final = 0o700
_IF_FREE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB


class ImageInUse(Exception):
    """A container uses the image."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """``id`` is a digest; ``size`` is the size of its files in bytes. ``built_in`` is the ID of the built-in image
    below its layers, if there is one."""

    id: str
    directory: Path
    config: ImageConfig
    size: int
    source: str  # where it was imported or pulled from, or what it was built from
    layers: tuple[Path, ...]  # directories with its files, the topmost first
    built_in: str = ""


#: What an image is built on: a stored image, or the ID of a built-in one.
Below = StoredImage | str


class _Metadata(msgspec.Struct):
    """``layers`` are the names of its layers, and ``base`` is that of the image below them. An image with neither has
    files of its own."""

    id: str
    config: ImageConfig
    size: int
    source: str
    layers: list[str] = []
    base: str = ""
    built_in: str = ""


class ImageStore:
    """``used`` returns the root directories of existing containers."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]]) -> None:
        # Resolved, because paths are compared to find unused images, which are removed.
        self.directory = directory.resolve()
        self.used = used
        self._images = self.directory / "images"
        self._names = self.directory / "names"
        self._incoming = self.directory / "incoming"
        self._layers = self.directory / "layers"

    def close_to_others(self) -> None:
        """Close the directories of files to other users, also those that an earlier version made."""
        for directory in (self._images, self._layers):
            if directory.is_dir():
                directory.chmod(_PRIVATE)

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
        """An empty directory on the same file system. It is removed afterwards unless ``add`` has moved it.

        Its lock tells it from the directories of writers that were killed, which are removed first."""
        self._incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as stack:
            with self._locked():  # a directory without a lock is abandoned, unless it was created just now
                self._remove_abandoned()
                directory = self._incoming / secrets.token_hex(8)
                directory.mkdir()
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
                stack.enter_context(_flock(directory, fcntl.LOCK_EX))
            yield directory

    def _remove_abandoned(self) -> None:
        for directory in self._incoming.iterdir():
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _flock(directory, _IF_FREE):
                shutil.rmtree(directory, ignore_errors=True)

    def add(self, reference: Reference, incoming: Path, image_id: str, config: ImageConfig, source: str) -> StoredImage:
        """Move a directory with the image's files in ``rootfs`` into the store, and name the image."""
        about = _Metadata(image_id, config, _size(incoming / ROOTFS), source)
        (incoming / _METADATA).write_bytes(msgspec.json.encode(about))
        with self._locked():
            return self._commit(reference, incoming, self._images / image_id.replace(":", "-"))

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Keep layers that belong to no image, until the block ends."""
        _make_private(self._layers)
        with _flock(self._layers, fcntl.LOCK_SH):
            yield

    def layer(self, key: str) -> Path | None:
        """Return the files of a layer, or None if it does not exist."""
        directory = self._layers / key / ROOTFS
        return directory if directory.is_dir() else None

    def add_layer(self, key: str, incoming: Path) -> Path:
        """Move a directory with the layer's files in ``rootfs`` into the store."""
        target = self._layers / key
        _make_private(target.parent)
        with contextlib.suppress(FileExistsError, OSError):  # another build may have added the same
            incoming.rename(target)
        return target / ROOTFS

    def add_built(
        self,
        reference: Reference,
        image_id: str,
        config: ImageConfig,
        source: str,
        layers: Sequence[Path],
        below: Below,
    ) -> StoredImage:
        """Name an image that consists of these layers above ``below``."""
        own = [
            *layers,
            *((path for path in below.layers if self._is_layer(path)) if isinstance(below, StoredImage) else ()),
        ]
        base = "" if not isinstance(below, StoredImage) else self._base_of(below)
        built_in = below.built_in if isinstance(below, StoredImage) else below
        lowest = [] if not base else [self._images / base / ROOTFS]
        about = _Metadata(
            id=image_id,
            config=config,
            size=sum(map(_size, (*own, *lowest))),
            source=source,
            layers=[path.parent.name for path in own],
            base=base,
            built_in=built_in,
        )
        with self.incoming() as incoming:
            (incoming / _METADATA).write_bytes(msgspec.json.encode(about))
            with self._locked():
                return self._commit(reference, incoming, self._images / image_id.replace(":", "-"))

    def _is_layer(self, path: Path) -> bool:
        return path.is_relative_to(self._layers)

    def _base_of(self, image: StoredImage) -> str:
        """The name of the image with files of its own that this one ends with; empty if that is a built-in one."""
        lowest = [path for path in image.layers if not self._is_layer(path)]
        return lowest[0].parent.name if lowest else ""

    def _commit(self, reference: Reference, incoming: Path, target: Path) -> StoredImage:
        _make_private(target.parent)
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
        others = [other for name, other in self.names().items() if name != str(reference)]
        shared = {path for other in others for path in (other.directory, *other.layers[:1])}
        own = {image.directory, *image.layers[:1]}
        if not own & shared and any(map(self._is_needed, own)):
            raise ImageInUse(f"{reference} is in use by a running container; delete its pod first")
        self._link(reference).unlink()
        self._remove_unnamed()
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _flock(self.directory, fcntl.LOCK_EX):
            yield

    def _remove_unnamed(self) -> None:
        named = list(self.names().values())
        kept = {image.directory for image in named} | {path.parent for image in named for path in image.layers}
        for directory in self._images.iterdir():
            if directory not in kept and not self._is_needed(directory):
                shutil.rmtree(directory)
        if self._layers.is_dir():
            with contextlib.suppress(BlockingIOError), _flock(self._layers, _IF_FREE):
                for directory in self._layers.iterdir():
                    if directory not in kept and not self._is_needed(directory):
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
        layers = tuple(self._layers / name / ROOTFS for name in about.layers)
        if about.base:
            layers = (*layers, self._images / about.base / ROOTFS)
        elif not about.built_in:
            layers = (*layers, directory / ROOTFS)
        return StoredImage(about.id, directory, about.config, about.size, about.source, layers, about.built_in)


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(_PRIVATE)


@contextlib.contextmanager
def _flock(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


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
