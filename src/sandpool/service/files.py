"""Files and trees, into and out of sandboxes, as tar streams through exec.

The image needs ``sh`` and ``tar``, as for ``kubectl cp``. Uploads are written in the GNU format, which GNU tar and
BusyBox read, with names of any bytes. A download comes from code that is not trusted: members are checked before they
are extracted, and none is written outside the destination.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, cast

from sandpool.kube.pod_client import STDERR
from sandpool.service.commands import NOT_FOUND, Command, Commands, Result
from sandpool.service.errors import FileError
from sandpool.service.filesystem import FAIL_SCRIPT, FULL, DiskFull
from sandpool.service.sandboxes import Sandbox

_PIECE: Final = 1 << 17
_BLOCK: Final = 512
_TYPES: Final = {b"d": "directory", b"f": "file", b"n": "nothing", b"": "nothing"}
_PROBE: Final = 'if [ -d "$0" ]; then echo d; elif [ -e "$0" ] || [ -L "$0" ]; then echo f; else echo n; fi'
# Files go to their places when all are complete: a full disk or a broken connection leaves no file that looks whole.
# Directories that exist are merged, everything else is moved, with one process for each tree that is new.
_UNPACK: Final = (
    FAIL_SCRIPT
    + """
to=$0 new=$0/$1 at=$0
place() {  # a directory moves only while its user may write to it
    if [ ! -d "$1" ] || [ -L "$1" ] || [ -w "$1" ]; then mv -f "$1" "$2"; return; fi
    chmod u+w "$1" && mv -f "$1" "$2" && chmod u-w "$2"
}
merge() {
    [ -w "$1" ] || chmod u+w "$1" || return
    for one in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ ! -e "$one" ] && [ ! -L "$one" ]; then continue; fi
        if [ -L "$one" ] && [ -L "$2/${one##*/}" ]; then rm -f "$2/${one##*/}"; fi
        if [ ! -d "$2/${one##*/}" ]; then
            place "$one" "$2/${one##*/}" || { at=$2; return 1; }
        elif [ -d "$one" ] && [ ! -L "$one" ]; then
            merge "$one" "$2/${one##*/}" || return
        else
            echo "$2/${one##*/}: Is a directory" >&2
            return 1
        fi
    done
}
{ mkdir -p "$to" && mkdir "$new"; } || fail "$to"
trap 'rm -rf "$new" 2>/dev/null || { chmod -R u+w "$new" && rm -rf "$new"; }' EXIT
trap 'exit 1' HUP INT TERM
{ tar -xof - -C "$new" && merge "$new" "$to"; } || fail "$at"
"""
)
_PACK: Final = 'cd "$0" && exec tar -cf - "$1"'

# Bytes of the output of a sandbox's tar or sh that are kept.
_MAX_OUTPUT: Final = 1 << 16
# Bytes of all headers between the contents of two members; tarfile holds them in memory.
_MAX_HEADERS: Final = 1 << 20

#: Receives the number of bytes that are copied.
Progress = Callable[[int], None]
#: Receives a line about something that was left out.
Warn = Callable[[str], None]


def _ignore(_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """A local file, directory or link that is uploaded under ``name``."""

    path: str
    name: str
    status: os.stat_result


class Files:
    """Copies files and directories."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    async def upload(
        self,
        sandbox: Sandbox,
        source: str | os.PathLike[str],
        destination: str,
        *,
        progress: Progress = _ignore,
        warn: Warn = _ignore,
    ) -> None:
        """Copy a local file or tree into a sandbox, with its modes and times.

        As with cp, a destination that is a directory receives the source under its own name. Missing parent
        directories are made. A relative destination is relative to the working directory of the image. Sockets and
        devices are left out; ``warn`` receives a line for each. Raises ``FileError``."""
        local = os.fspath(source)
        entry_name, is_directory = _local_source(local)
        kind = await self._kind(sandbox, destination or ".")
        if kind == "directory" or destination.endswith("/") or not destination:
            directory, name = destination or ".", entry_name
        else:
            directory, name = posixpath.split(destination)
        if local.endswith(("/.", "\\.")) or local == ".":
            directory, name = destination or ".", "."  # the content of the directory, as with cp
        elif kind == "file" and is_directory:
            raise FileError(f"{destination} in the sandbox is a file; a directory cannot replace it")
        # Read the tree first, so that a file that cannot be read is an error before anything is sent.
        try:
            entries = list(_walk(local, name, warn))
        except OSError as error:
            raise FileError(f"cannot read {error.filename or local}: {error.strerror}") from None
        command = Command(("sh", "-c", _UNPACK, _safe(directory or "."), f".sandpool-{os.urandom(8).hex()}"))
        result = await self.commands.run(sandbox, command, stdin=_packed(entries, progress), max_output=_MAX_OUTPUT)
        _raise_unless_done(result, f"cannot write {destination or name} in the sandbox")

    async def download(
        self,
        sandbox: Sandbox,
        source: str,
        destination: str | os.PathLike[str],
        *,
        progress: Progress = _ignore,
        warn: Warn = _ignore,
    ) -> None:
        """Copy a file or tree out of a sandbox.

        As with cp, a local directory receives the source under its own name. Links that lead out of the destination
        and devices are left out; ``warn`` receives a line for each. Raises ``FileError``."""
        directory, name = posixpath.split(source.rstrip("/") or source)
        if name in ("", ".", ".."):
            directory, name = source or ".", "."
        local = Path(destination)
        into, renamed = _place(local, name)
        command = Command(
            ("sh", "-c", _PACK, _safe(directory or ("/" if source.startswith("/") else ".")), _safe(name))
        )
        unpacker = _Unpacker(into, name, renamed, progress, warn)
        errors = bytearray()
        async with self.commands.start(sandbox, command) as running:
            unpacking = asyncio.create_task(asyncio.to_thread(unpacker.run))
            try:
                async for piece in running.output():
                    if piece.stream == STDERR:
                        errors += piece.data[: _MAX_OUTPUT - len(errors)]
                    elif not unpacker.write(piece.data):
                        break  # it has failed; the reason is below
            finally:
                unpacker.end()
                outcome = (await asyncio.gather(unpacking, return_exceptions=True))[0]
            if isinstance(outcome, OSError):
                raise FileError(f"cannot write {outcome.filename or local}: {outcome.strerror or outcome}") from None
            code = await running.wait() if outcome is None else 0
        if isinstance(outcome, BaseException):
            raise FileError(f"the sandbox sent a broken archive: {outcome}") from None
        # GNU tar ends with 1 if a file changed while it was read, which is not for us to judge.
        if code not in (0, 1) or not unpacker.members:
            _raise_unless_done(Result(code or 1, b"", bytes(errors)), f"cannot read {source} in the sandbox")

    async def _kind(self, sandbox: Sandbox, path: str) -> str:
        probe = Command(("sh", "-c", _PROBE, _safe(path)))
        result = await self.commands.run(sandbox, probe, max_output=_MAX_OUTPUT)
        _raise_unless_done(result, f"cannot look at {path} in the sandbox")
        kind = _TYPES.get(result.stdout.strip())
        if kind is None:
            raise FileError(f"cannot look at {path} in the sandbox: its sh answered something else than was asked for")
        return kind


def _local_source(path: str) -> tuple[str, bool]:
    """The name of a local file or directory, and whether it is a directory."""
    if not os.path.lexists(path):
        raise FileError(f"there is no file or directory {path}")
    return os.path.basename(os.path.abspath(path)), os.path.isdir(path)


def _place(local: Path, name: str) -> tuple[Path, str | None]:
    """The local directory that receives a download, and the name in it; None for the content of a directory."""
    if local.is_dir():
        return local, None if name == "." else name
    if not local.parent.is_dir():
        raise FileError(f"the directory {local.parent} does not exist")
    return local.parent, local.name


def _safe(path: str) -> str:
    """A path that no program takes for an option."""
    return f"./{path}" if path.startswith("-") else path


def _raise_unless_done(result: Result, what: str) -> None:
    if result.exit_code == 0:
        return
    if result.exit_code == NOT_FOUND:
        raise FileError(f"{what}: its image has no tar", "Use an image with tar to copy files.")
    if result.exit_code == FULL:
        raise DiskFull(
            f"{what}: its disk is full", "Remove files there, or use a template with more ephemeral-storage."
        )
    # tar reports the cause first, and at the end that it has failed.
    reason = next((line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()), "")
    raise FileError(f"{what}: {reason}" if reason else f"{what}: exit code {result.exit_code}")


# -- packing ---------------------------------------------------------------------------------------------------------


def _walk(path: str, name: str, warn: Warn) -> Iterator[_Entry]:
    status = os.lstat(path) if not path.endswith("/") and name != "." else os.stat(path)
    yield from _tree(path, name, status, warn)


def _tree(path: str, name: str, status: os.stat_result, warn: Warn) -> Iterator[_Entry]:
    if stat.S_ISDIR(status.st_mode):
        yield _Entry(path, name, status)
        with os.scandir(path) as found:
            children = sorted(found, key=lambda each: each.name)
        for child in children:
            yield from _tree(child.path, f"{name}/{child.name}", child.stat(follow_symlinks=False), warn)
    elif stat.S_ISREG(status.st_mode):
        if not os.access(path, os.R_OK):
            raise PermissionError(13, "Permission denied", path)
        yield _Entry(path, name, status)
    elif stat.S_ISLNK(status.st_mode):
        yield _Entry(path, name, status)
    else:
        warn(f"left out {path}: it is neither a file, a directory nor a link")


def _packed(entries: list[_Entry], progress: Progress) -> Iterator[bytes]:
    for entry in entries:
        info = _info(entry)
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if info.isreg():
            try:
                with open(entry.path, "rb") as file:
                    for piece in _content(file, info.size, entry.path):
                        progress(len(piece))
                        yield piece
            except OSError as error:
                raise FileError(f"cannot read {entry.path}: {error.strerror}") from None
            yield bytes(-info.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _content(file: IO[bytes], size: int, path: str) -> Iterator[bytes]:
    """Exactly as many bytes as the header announces: the file may change meanwhile."""
    left = size
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise FileError(f"{path} became shorter while it was copied")
        left -= len(piece)
        yield piece


def _info(entry: _Entry) -> tarfile.TarInfo:
    status = entry.status
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.path)
    else:
        info.size = status.st_size
    return info


# Newer versions of Python ask how far an archive is trusted. ``_harmless`` has checked its members.
_CHECKED_HERE: Final[dict[str, Any]] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}


# -- unpacking -------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """A member of an archive that could write outside of the destination, or is no file."""


def _harmless(member: tarfile.TarInfo, into: Path, top: str) -> tarfile.TarInfo:
    """Return the member to extract, owned by this user and without special bits. Raises ``_Refused``.

    A member is refused if a link is on its way: links of an archive, or of an earlier one, lead nowhere. Links must not
    lead out of ``top``, the requested file or directory. In a path with ".." behind a name, that name may be a link
    too, and the path lead elsewhere than it reads, so such links are refused. Nothing is resolved: the system resolves
    overlong paths differently from Python. The filter "data" of tarfile is not used, because it allows links to
    siblings of ``top``, and because Python 3.11.2 of Debian 12 does not have it.
    """
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise _Refused("it is a special file")
    _check_way(into, posixpath.dirname(member.name))
    target = into / member.name
    if member.issym() and not _leads_into(top, posixpath.join(posixpath.dirname(member.name), member.linkname)):
        raise _Refused("it is a link that leads out of what was asked for")
    if (member.issym() or member.islnk()) and _turns_back(member.linkname):
        raise _Refused("it is a link with .. behind a name, which may lead anywhere")
    if member.islnk():
        if not _leads_into(top, member.linkname):
            raise _Refused("it is a link that leads out of what was asked for")
        _check_way(into, posixpath.dirname(posixpath.normpath(member.linkname)))
        if not stat.S_ISREG(os.lstat(into / member.linkname).st_mode):
            raise _Refused("it is a link to something that is no file")
    if member.isdir():
        if target.is_symlink():
            raise _Refused("there is a link of this name")
    elif target.is_symlink() or target.is_file():
        target.unlink()  # writing to it could write to another name of the same file
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return member


def _check_way(into: Path, directory: str) -> None:
    """Raise ``_Refused`` if a link is on the way to a directory."""
    way = into
    for part in directory.split("/") if directory else ():
        way = way / part
        if way.is_symlink():
            raise _Refused("a link is on the way to it")


def _leads_into(top: str, path: str) -> bool:
    """Whether a path, taken literally, is ``top`` or below; every relative path without ".." is, if that is empty."""
    plain = posixpath.normpath(path)
    if plain.startswith(("/", "../")) or plain == "..":
        return False
    return not top or plain == top or plain.startswith(f"{top}/")


def _turns_back(path: str) -> bool:
    """Whether a path has ".." behind a name."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return any(part == ".." != before for before, part in pairwise(parts))


class _LongHeaders(tarfile.TarError):
    """The headers before a member take more than ``_MAX_HEADERS`` bytes."""


class _BoundedHeaders:
    """The stream of an archive, with a limit on what is read for one member beyond its content.

    The limit covers every header that tarfile collects in memory: extended and global ones, long names, maps of sparse
    files, and any number of them in a row."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0
        self._limit = _MAX_HEADERS

    def next_member_at(self, offset: int) -> None:
        """Start counting where the content of a member ends."""
        self._limit = offset + _MAX_HEADERS

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._position += len(data)
        if self._position > self._limit:
            raise _LongHeaders("its headers are too long")
        return data


class _Unpacker:
    """Extracts a tar stream in a thread. ``write`` passes bytes on and blocks while the disk is slower."""

    def __init__(self, into: Path, name: str, renamed: str | None, progress: Progress, warn: Warn) -> None:
        self.into = into
        self.name = name
        self.renamed = renamed
        self.progress = progress
        self.warn = warn
        self.members = 0
        self._read, self._write = os.pipe()
        self._open = True

    def write(self, data: bytes) -> bool:
        """Pass bytes on; False if the thread has ended."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._write, view) :]
        except BrokenPipeError:
            return False
        return True

    def end(self) -> None:
        if self._open:
            self._open = False
            os.close(self._write)

    def run(self) -> None:
        with os.fdopen(self._read, "rb") as stream:
            try:
                headers = _BoundedHeaders(stream)
                with tarfile.open(fileobj=cast(IO[bytes], headers), mode="r|", errorlevel=1) as archive:
                    while (member := archive.next()) is not None:
                        headers.next_member_at(archive.offset)
                        self._extract(archive, member)
                        # tarfile keeps all members and global headers, of which there may be any number.
                        collected: Any = archive  # the type of a TarFile lacks its members
                        collected.members.clear()
                        collected.pax_headers.clear()
            except tarfile.ReadError:
                if self.members:
                    raise
            # Padding after the end of the archive.
            while stream.read(_PIECE):
                pass

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = self._local(member.name)
        if name is None:
            self.warn(f"left out {member.name}: it was not asked for")
            return
        self.members += 1
        if not name:
            return  # the directory itself
        local = copy(member)
        local.name = name
        if member.islnk():
            local.linkname = self._local(member.linkname) or member.linkname
        try:
            archive.extract(_harmless(local, self.into, self.renamed or ""), self.into, **_CHECKED_HERE)
        except _Refused as error:
            self.warn(f"left out {member.name}: {error}")
        except (OSError, tarfile.TarError):
            # A full disk or a broken connection must not leave a file that looks complete.
            if member.isreg():
                (self.into / name).unlink(missing_ok=True)
            raise
        self.progress(member.size)

    def _local(self, name: str) -> str | None:
        """The name below the destination of a member; None if it does not belong to what was asked for."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            return None
        if self.name != ".":
            if parts[:1] != [self.name]:
                return None
            parts = parts[1:]
        return "/".join([*([] if self.renamed is None else [self.renamed]), *parts])
