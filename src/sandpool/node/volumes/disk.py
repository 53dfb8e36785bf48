"""File systems of a fixed size, on disk or in memory, mounted at a directory of the host.

A volume that is a plain directory shares the host's free space with everything else, so one sandbox can use up all of
it. A file system of its own gives the volume a size that the kernel enforces. Project quotas would be cheaper, but only
some file systems have them, and only if they were mounted for it; a loop device works on all of them. The image file is
sparse: it takes up what was written to it and a few megabytes for ext4 itself. Making and mounting one takes 30 ms.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from sandpool.node.launcher import syscalls
from sandpool.node.pods.interfaces import VolumeFailure

#: ext4 needs room for itself.
SMALLEST: Final = 4 << 20


def is_mounted(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_dev != path.parent.stat().st_dev
    return False


def make_in_memory(target: Path, size: int, *, mode: int = 0o777) -> None:
    """Mount an empty tmpfs. Its pages are charged to the cgroup of the process that writes them."""
    target.mkdir(parents=True, exist_ok=True)
    if is_mounted(target):
        return
    try:
        syscalls.mount(
            "sandpool", str(target), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"size={size},mode={mode:o}"
        )
    except OSError as error:
        raise VolumeFailure(f"cannot mount a tmpfs: {error.strerror}") from error


def make(target: Path, size: int) -> None:
    """Mount a file system on disk, empty when it is made. One that is mounted already stays as it is."""
    target.mkdir(parents=True, exist_ok=True)
    if is_mounted(target):
        return
    image = _image(target)
    if not image.exists():
        # Under another name until it is complete: the node may be killed while mkfs runs.
        draft = image.with_name(f".{image.name}")
        make_image(draft, size)
        draft.rename(image)
    _run("mount", "-o", "loop,nosuid,nodev", str(image), str(target))
    with contextlib.suppress(FileNotFoundError):
        (target / "lost+found").rmdir()


def make_image(path: Path, size: int) -> None:
    """Write the image of an empty file system to a sparse file. With its tables side by side, without room for it to
    grow and with few copies of the superblock it takes up 80 KB for 10 GiB."""
    with path.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        os.truncate(file.fileno(), max(size, SMALLEST))
    layout = ("-m", "0", "-G", "256", "-O", "^has_journal,^resize_inode,^sparse_super,sparse_super2")
    extra = ("-E", "root_owner=0:0,lazy_itable_init=1,nodiscard")
    _run("mkfs.ext4", "-q", "-F", *layout, *extra, str(path))


def exists(target: Path) -> bool:
    """Whether a file system on disk was made for this directory, mounted or not."""
    return _image(target).exists()


def unmount(target: Path) -> None:
    """Keep the image: ``make`` mounts it again with its content. What was in memory is lost."""
    while is_mounted(target):
        syscalls.unmount(str(target))


def unmount_below(directory: Path) -> None:
    """Unmount all file systems below a directory, the innermost first."""
    prefix = f"{directory.resolve()}/"
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()]
    for target in reversed(targets):
        path = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), target)  # a space is written as \\040
        if path.startswith(prefix):
            syscalls.unmount(path)


def remove(target: Path) -> None:
    """Unmount and delete the file system, if there is one. The directory stays."""
    unmount(target)
    _image(target).unlink(missing_ok=True)


def unavailable(directory: Path) -> str:
    """The reason why no file system of a fixed size can be made below this directory; empty if one can."""
    target = directory / ".volume-test"
    try:
        make(target, SMALLEST)
    except (VolumeFailure, OSError) as error:
        return str(error)
    finally:
        with contextlib.suppress(OSError):
            remove(target)
            target.rmdir()
    return ""


def _image(target: Path) -> Path:
    return target.with_name(f"{target.name}.disk")


def _run(tool: str, *arguments: str) -> None:
    program = shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise VolumeFailure(f"{tool} is not installed, so a volume cannot be given a size")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VolumeFailure(f"{tool}: {done.stderr.strip() or done.stdout.strip()}")
