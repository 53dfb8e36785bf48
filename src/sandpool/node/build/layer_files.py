"""Layers as directories: what a command wrote, and files copied from the build context."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from sandpool.node.build.recipe import MOUNTED, BuildFailure
from sandpool.node.pods.identity import Identity

# Written by the launcher for every container; the image's own are below.
_GENERATED: Final = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
_GENERATED_FOR_TOOLCHAINS: Final = ("etc/passwd", "etc/group", "etc/nsswitch.conf")
_MOST_LINKS: Final = 40


def take_writes(scratch: Path, target: Path, host_user: int, owner: Identity, *, toolchain: bool) -> None:
    """Turn what a container wrote into the files of a layer: without what was there for the container alone, and owned
    by ``owner`` instead of the host's user. /usr of a toolchain always belongs to root."""
    upper = scratch / "upper"
    shutil.rmtree(upper / MOUNTED[1:], ignore_errors=True)
    for name in (*_GENERATED, *(_GENERATED_FOR_TOOLCHAINS if toolchain else ())):
        # A command may have replaced /etc by a link, which would lead to files of this machine.
        if not (upper / name).parent.is_symlink():
            (upper / name).unlink(missing_ok=True)
    if (scratch / "usr").is_dir():
        with suppress(FileNotFoundError):
            (upper / "usr").rmdir()  # where it was mounted
        if any((scratch / "usr").iterdir()):
            _give(scratch / "usr", host_user, Identity(0, 0))
            (scratch / "usr").rename(upper / "usr")
    _give(upper, host_user, owner)
    upper.rename(target)


def _give(directory: Path, host_user: int, owner: Identity) -> None:
    for path in (str(directory), *_below(str(directory))):
        found = os.lstat(path)
        mine = found.st_uid == host_user, found.st_gid == host_user
        if any(mine):
            os.lchown(path, owner.uid if mine[0] else -1, owner.gid if mine[1] else -1)
            if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o6000:
                os.chmod(path, stat.S_IMODE(found.st_mode))  # a change of the owner clears these bits


def _below(directory: str) -> Iterator[str]:
    for base, directories, files in os.walk(directory):
        for name in (*directories, *files):
            yield f"{base}/{name}"


class Context:
    """The directory that COPY takes files from, without what its .dockerignore lists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        file = self.directory / ".dockerignore"
        lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
        self._ignored = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]

    def find(self, source: str) -> list[Path]:
        """Return the files and directories of a source, which may have wildcards. Raises ``BuildFailure``."""
        relative = os.path.normpath(source.lstrip("/") or ".")
        if relative.startswith(".."):
            raise BuildFailure(f"COPY {source}: it is outside of {self.directory}")
        if not glob.has_magic(relative):
            found = [self.directory / relative]
        else:
            found = sorted(map(Path, glob.glob(f"{glob.escape(str(self.directory))}/{relative}")))
        if any(not path.parent.resolve().is_relative_to(self.directory) for path in found):
            raise BuildFailure(f"COPY {source}: a link leads out of {self.directory}")
        found = [path for path in found if os.path.lexists(path) and not self.is_ignored(path)]
        if not found:
            raise BuildFailure(f"COPY {source}: there is no such file in {self.directory}")
        return found

    def is_ignored(self, path: Path) -> bool:
        name = str(path.relative_to(self.directory))
        ignored = False
        for line in self._ignored:
            pattern = line.removeprefix("!").strip("/")
            parents = [name, *map(str, PurePosixPath(name).parents)]
            if any(fnmatch.fnmatchcase(each, pattern.removeprefix("**/")) for each in parents) or (
                pattern.startswith("**/") and any(fnmatch.fnmatchcase(each, pattern) for each in parents)
            ):
                ignored = not line.startswith("!")
        return ignored

    def entries(self, path: Path) -> Iterator[Path]:
        """The path itself and, if it is a directory, everything below it in a fixed order."""
        yield path
        if path.is_dir() and not path.is_symlink():
            for each in sorted(path.iterdir()):
                if not self.is_ignored(each):
                    yield from self.entries(each)

    def digest(self, paths: Sequence[Path]) -> str:
        """A digest of names, modes and contents."""
        return digest((top, path) for top in paths for path in self.entries(top))


def directory_digest(directory: Path) -> str:
    """A digest of the names, modes and contents of everything in a directory."""
    top = directory.resolve()
    return digest((top, Path(path)) for path in sorted((str(top), *_below(str(top)))))


def digest(entries: Iterable[tuple[Path, Path]]) -> str:
    """A digest of names, modes and contents of paths, each with the directory that its name is relative to."""
    found = hashlib.sha256()
    for top, path in entries:
        about = path.lstat()
        found.update(os.fsencode(f"{path.relative_to(top)}\0{path.name}\0{about.st_mode:o}\0"))
        if path.is_symlink():
            found.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


class LayerWriter:
    """Writes files into a new layer at ``root``, above ``layers`` (the topmost first). Paths are those that a container
    sees: links in the layers below are followed, inside of the image."""

    def __init__(self, root: Path, layers: Sequence[Path], uid: int, gid: int) -> None:
        self.root = root
        self.layers = layers
        self.uid = uid
        self.gid = gid
        root.mkdir(parents=True, exist_ok=True)
        top = layers[0].stat() if layers else None
        os.chmod(root, 0o755 if top is None else stat.S_IMODE(top.st_mode))
        os.chown(root, uid if top is None else top.st_uid, gid if top is None else top.st_gid)

    def copy(self, context: Context, sources: Sequence[Path], target: str, working_dir: str) -> None:
        place = PurePosixPath(working_dir or "/", target)
        into = target.endswith("/") or target in (".", "..") or self._is_directory(place)
        if len(sources) > 1 and not into:
            raise BuildFailure(
                f"COPY of several files: the destination {target} has to be a directory, with a / at its end"
            )
        for source in sources:
            if source.is_dir() and not source.is_symlink():
                self._copy_tree(context, source, place)
            else:
                self._copy_file(source, place / source.name if into else place)

    def _copy_tree(self, context: Context, source: Path, place: PurePosixPath) -> None:
        self._directory(place)
        for path in context.entries(source):
            inside = place / path.relative_to(source)
            if path.is_dir() and not path.is_symlink():
                self._directory(inside)
            else:
                self._copy_file(path, inside)

    def _copy_file(self, source: Path, place: PurePosixPath) -> None:
        if not (source.is_symlink() or source.is_file()):
            raise BuildFailure(f"COPY {source}: it is neither a file nor a directory")
        target = self._directory(place.parent) / place.name
        target.unlink(missing_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        os.lchown(target, self.uid, self.gid)

    def _directory(self, place: PurePosixPath) -> Path:
        """Make a directory of the image in this layer, with owner and mode of the one below, and return its path."""
        place = self._resolve(place)
        at = self.root
        for number, part in enumerate(place.parts[1:], 2):
            at = at / part
            if at.is_dir() and not at.is_symlink():
                continue
            below = self._find(PurePosixPath(*place.parts[:number]))
            at.mkdir(mode=0o755)
            if below is not None and below.is_dir() and not below.is_symlink():
                os.chmod(at, stat.S_IMODE(below.lstat().st_mode))
                os.chown(at, below.lstat().st_uid, below.lstat().st_gid)
            else:
                os.chown(at, self.uid, self.gid)
        return at

    def _is_directory(self, place: PurePosixPath) -> bool:
        found = self._find(self._resolve(place))
        return found is not None and found.is_dir()

    def _resolve(self, place: PurePosixPath) -> PurePosixPath:
        """Follow the links on the way to a path."""
        done, left, links = PurePosixPath("/"), list(place.parts[1:]), 0
        while left:
            part = left.pop(0)
            if part in (".", ".."):
                done = done.parent if part == ".." else done
                continue
            found = self._find(done / part)
            if found is None or not found.is_symlink():
                done /= part
                continue
            links += 1
            if links > _MOST_LINKS:
                raise BuildFailure(f"{place}: too many links")
            to = PurePosixPath(os.readlink(found))
            done = PurePosixPath("/") if to.is_absolute() else done
            left = [*(part for part in to.parts if part != "/"), *left]
        return done

    def _find(self, place: PurePosixPath) -> Path | None:
        """The file at a path whose parents are no links, in the topmost layer that has one."""
        for layer in (self.root, *self.layers):
            path = layer / str(place).lstrip("/")
            with suppress(OSError):
                found = path.lstat()
                is_removed = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
                return None if is_removed else path
        return None
