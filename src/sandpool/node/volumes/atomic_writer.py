"""Replaces the files of a volume atomically.

Readers see the old files or the new ones, never a mixture. The files are in a directory of their own, the link
``..data`` points to it, the visible names point through that link, and an update replaces this one link. Programs that
watch mounted configuration expect this layout of kubelet.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandpool.node.volumes.projection import File

_CURRENT: Final = "..data"


def publish(directory: Path, files: Mapping[str, File], uid: int, gid: int) -> bool:
    """Make ``directory`` hold exactly these files. Returns False if it does already."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    if _published(directory) == dict(files):
        return False
    version = directory / f"..{secrets.token_hex(8)}"
    version.mkdir(mode=0o755)
    for path, file in files.items():
        target = version / path
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
        os.chown(target, uid, gid)
    current = directory / _CURRENT
    before = current.readlink() if current.is_symlink() else None
    pointer = directory / f"..next-{version.name}"
    pointer.symlink_to(version.name)
    pointer.replace(current)
    _point(directory, {path.split("/", 1)[0] for path in files})
    if before is not None:
        shutil.rmtree(directory / before, ignore_errors=True)
    return True


def _published(directory: Path) -> dict[str, File] | None:
    current = directory / _CURRENT
    if not current.exists():
        return None
    return {
        str(path.relative_to(current)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in current.rglob("*")
        if path.is_file()
    }


def _point(directory: Path, names: set[str]) -> None:
    """Maintain the visible names: links through ``..data`` that never change."""
    for path in directory.iterdir():
        if not path.name.startswith("..") and path.name not in names:
            path.unlink()
    for name in names:
        pointer = directory / name
        if not pointer.is_symlink():
            pointer.symlink_to(f"{_CURRENT}/{name}")
