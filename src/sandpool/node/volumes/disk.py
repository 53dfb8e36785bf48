"""Disks of a fixed size, in a file or in memory: what is full is full, whoever else has room left."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from sandpool.node.pods.interfaces import VolumeFailure

#: ext4 needs room for itself.
_SMALLEST: Final = 4 << 20


def is_mounted(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_dev != path.parent.stat().st_dev
    return False


def make_in_memory(target: Path, size: int) -> None:
    """Charged to whoever writes."""
    target.mkdir(parents=True, exist_ok=True)
    if not is_mounted(target):
        _run("mount", "-t", "tmpfs", "-o", f"size={size},nosuid,nodev", "sandpool", str(target))


def make(target: Path, size: int) -> None:
    """An empty disk mounted at ``target``; one that is mounted already stays as it is."""
    target.mkdir(parents=True, exist_ok=True)
    if is_mounted(target):
        return
    image = _image(target)
    if not image.exists():
        with image.open("wb") as file:
            os.truncate(file.fileno(), max(size, _SMALLEST))
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "root_owner=0:0", str(image))
    _run("mount", "-o", "loop,nosuid,nodev", str(image), str(target))
    with contextlib.suppress(FileNotFoundError):
        (target / "lost+found").rmdir()


def unmount(target: Path) -> None:
    """Made again, it is what it was if it is a file, and empty if it was in memory."""
    while is_mounted(target):
        _run("umount", "-l", str(target))


def remove(target: Path) -> None:
    """If there is one."""
    unmount(target)
    _image(target).unlink(missing_ok=True)


def _image(target: Path) -> Path:
    return target.with_name(f"{target.name}.disk")


def _run(tool: str, *arguments: str) -> None:
    program = shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise VolumeFailure(f"{tool} is not installed, so a volume cannot be given a size")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VolumeFailure(f"{tool}: {done.stderr.strip() or done.stdout.strip()}")
