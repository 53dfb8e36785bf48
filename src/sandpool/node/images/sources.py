"""Sources of images: directories, archives and OCI layouts on this machine, and registries.

External tools do the unpacking: tar for file systems, skopeo for archives and registries, umoci for the layers of OCI
images. If one is missing, the error names it and an alternative.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson

from sandpool.node.images.config import ImageConfig, parse_oci_config
from sandpool.node.images.store import ROOTFS
from sandpool.node.launcher.messages import memfd

#: A download or an unpacking is ended if less of the disk is free than this share and this many bytes, or if it takes
#: more seconds. The author of a pod decides how large its image is, and how fast its registry answers.
RESERVED_SHARE: Final = 10
RESERVED_BYTES: Final = 10 << 30
LONGEST: Final = 1800.0
_WATCH_SECONDS: Final = 0.2
_LAYOUT: Final = "layout"
_BUNDLE: Final = "bundle"
_TAG: Final = "image"
_LOGGED: Final = re.compile(r'time=\S+ level=\w+ msg=("(?:[^"\\\x00-\x1f]|\\["\\nt])*")')


class SourceFailure(Exception):
    """The image cannot be read, pulled or unpacked; the message says why."""


class Unpacked(NamedTuple):
    id: str
    config: ImageConfig


def unpack(source: str, directory: Path, credentials_file: bytes = b"") -> Unpacked:
    """Unpack the files of an image into ``directory``/rootfs.

    ``source`` is a path or a name for skopeo such as ``docker://registry/name:tag``. ``credentials_file`` is the
    content of a credentials file; if it is empty, skopeo uses those of the machine."""
    if "://" in source:
        return _from_layout(_fetch(source, directory, credentials_file), directory)
    path = Path(source)
    if path.is_dir():
        return _from_layout(path, directory) if (path / "oci-layout").is_file() else _from_directory(path, directory)
    if not path.is_file():
        raise SourceFailure(f"{source}: no such file or directory")
    try:
        with tarfile.open(path) as archive:
            members = set(archive.getnames())
    except tarfile.TarError as error:
        raise SourceFailure(
            f"{source} is no image: it is neither a directory, a tar of a file system, nor an archive of podman or "
            "docker save"
        ) from error
    if "oci-layout" in members or "./oci-layout" in members:
        return _from_layout(_fetch(f"oci-archive:{path}", directory), directory)
    if "manifest.json" in members:
        return _from_layout(_fetch(f"docker-archive:{path}", directory), directory)
    return _from_tar(path, directory)


def _from_directory(path: Path, directory: Path) -> Unpacked:
    _run(directory, "cp", "-a", "--reflink=auto", f"{path}/.", f"{directory / ROOTFS}")
    return Unpacked(_digest(str(path.resolve()), os.fsencode(directory.name)), ImageConfig())


def _from_tar(path: Path, directory: Path) -> Unpacked:
    (directory / ROOTFS).mkdir()
    _run(
        directory,
        "tar",
        "--extract",
        "--numeric-owner",
        "--preserve-permissions",
        "--file",
        str(path),
        "-C",
        f"{directory / ROOTFS}",
    )
    with path.open("rb") as file:
        return Unpacked(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", ImageConfig())


def _fetch(source: str, directory: Path, credentials_file: bytes = b"") -> Path:
    layout = directory / _LAYOUT
    command = ["--insecure-policy", "copy", "--quiet", source, f"oci:{layout}:{_TAG}"]
    if not credentials_file:
        _run(directory, "skopeo", *command)
        return layout
    # In memory: credentials are never written to disk, and the directory becomes the image.
    file = memfd(credentials_file)
    try:
        _run(directory, "skopeo", *command, "--src-authfile", f"/proc/self/fd/{file}", inherited=(file,))
    finally:
        os.close(file)
    return layout


def _from_layout(layout: Path, directory: Path) -> Unpacked:
    index = orjson.loads((layout / "index.json").read_bytes())
    if not index.get("manifests"):
        raise SourceFailure(f"{layout} holds no image")
    chosen = index["manifests"][0]
    names = chosen.get("annotations") or {}
    tag = names.get("org.opencontainers.image.ref.name")
    if tag is None:
        raise SourceFailure(f"the image in {layout} has no name; give it one with: umoci tag")
    manifest = _blob(layout, chosen["digest"])
    config = _blob(layout, manifest["config"]["digest"])
    bundle = directory / _BUNDLE
    # Without root, files cannot be given owners; umoci then stores owners in extended attributes.
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    _run(directory, "umoci", "unpack", *rootless, "--image", f"{layout}:{tag}", str(bundle))
    (bundle / "rootfs").rename(directory / ROOTFS)
    shutil.rmtree(bundle)
    if layout.parent == directory:
        shutil.rmtree(layout)
    return Unpacked(str(manifest["config"]["digest"]), parse_oci_config(config))


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    kind, _, value = digest.partition(":")
    document: dict[str, Any] = orjson.loads((layout / "blobs" / kind / value).read_bytes())
    if "manifests" in document:
        raise SourceFailure(f"{layout} holds images for several platforms; choose one with: skopeo copy")
    return document


def _digest(*parts: str | bytes) -> str:
    """A digest for a source that has none."""
    content = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _run(directory: Path, tool: str, *arguments: str, inherited: tuple[int, ...] = ()) -> None:
    """Run a tool that writes below ``directory``, and end it if it fills the disk or takes too long."""
    program = shutil.which(tool)
    if program is None:
        raise SourceFailure(f"{tool} is not installed; as root run: apt-get install {tool}, or import a directory")
    end = monotonic() + LONGEST
    with subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=inherited,
    ) as running:
        try:
            while True:
                _check_space(directory)
                try:
                    _, errors = running.communicate(timeout=_WATCH_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if monotonic() > end:
                        raise SourceFailure(f"{tool}: not done within {LONGEST:g} s") from None
        finally:
            running.kill()  # unless it has ended
    if running.returncode != 0:
        raise SourceFailure(f"{tool}: {_last_error(errors)}")


def _check_space(directory: Path) -> None:
    """Raise ``SourceFailure`` if the disk has less free space, or fewer free inodes, than is reserved."""
    disk = os.statvfs(directory)
    free, reserved = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize // RESERVED_SHARE
    if free < min(reserved, RESERVED_BYTES) or (disk.f_files and disk.f_favail < disk.f_files // RESERVED_SHARE):
        raise SourceFailure(
            f"the disk of {directory.parent} has {free >> 20} MiB free, which are kept for other purposes; remove "
            "images with: sandpool image rm"
        )


def _last_error(text: str) -> str:
    """The last line of a tool's standard error. Of a Go log line only the message is kept: with its time, every retry
    would be a different event."""
    line = text.strip().splitlines()[-1] if text.strip() else "failed"
    logged = _LOGGED.fullmatch(line)
    return str(orjson.loads(logged[1])) if logged else line
