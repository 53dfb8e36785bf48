"""The mounts of a sandbox: what they reveal about the host, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from sandpool.node.runtimes.runtime import Bind, DataFile, ImageLayers, Tmpfs
from tests.support.isolation import Rig
from tests.support.tiny_image import copy_programs

pytestmark = pytest.mark.isolation


class Mounted(NamedTuple):
    """A line of /proc/self/mountinfo."""

    root: str  # in its file system
    target: str
    options: frozenset[str]
    source: str
    file_system_options: str


def parse(mountinfo: str) -> list[Mounted]:
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, target, options, *_ = before.split()
        _, source, *rest = after.split(maxsplit=2)
        found.append(Mounted(root, target, frozenset(options.split(",")), source, "".join(rest)))
    return found


async def mounts_of(boxes: Rig, **spec: object) -> list[Mounted]:
    result, output, errors = await boxes.run("cat", "/proc/self/mountinfo", **spec)
    assert result.code == 0, errors
    return parse(output)


async def test_mountinfo_names_no_host_path_of_an_image(boxes: Rig, tmp_path: Path) -> None:
    image = tmp_path / "image-of-the-host"
    (image / "bin").mkdir(parents=True)
    copy_programs(image, "/bin/cat")
    mounts = (Tmpfs("/memory", 1 << 20), DataFile("/etc/token", b"secret"))
    found = await mounts_of(boxes, root=ImageLayers((image,)), env={"PATH": "/bin"}, mounts=mounts)
    assert found
    for mount in found:
        assert str(tmp_path) not in " ".join((mount.root, mount.target, mount.source, mount.file_system_options))
        assert str(boxes.directory) not in " ".join(map(str, mount))


async def test_mountinfo_names_only_system_directories_of_the_host(boxes: Rig) -> None:
    """/usr and parts of /etc are mounted at their own paths, so mountinfo reveals nothing new."""
    for mount in await mounts_of(boxes, mounts=(DataFile("/etc/token", b"secret"),)):
        if mount.source.startswith("/dev/"):
            assert mount.root.startswith(("/usr/", "/etc/")) or mount.root in ("/usr", mount.target)


async def test_mountinfo_names_at_most_the_directory_of_a_volume(boxes: Rig, tmp_path: Path) -> None:
    """The kernel shows where in its file system the root of a bind mount is, so this one cannot be hidden. Nothing else
    of the host is named."""
    volume = tmp_path / "volume"
    volume.mkdir()
    found = await mounts_of(boxes, mounts=(Bind(volume, "/data"),))
    naming = [mount for mount in found if str(tmp_path) in " ".join(map(str, mount))]
    assert {mount.target for mount in naming} <= {"/data"}


@pytest.mark.parametrize("read_only", [False, True])
async def test_volumes_are_mounted_nodev_and_nosuid(boxes: Rig, tmp_path: Path, read_only: bool) -> None:
    if boxes.has_own_kernel:
        pytest.skip("its kernel shows mounts of its own")
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "file").touch()
    wanted = (
        Bind(volume, "/data", read_only=read_only),
        Bind(tmp_path / "file", "/file", read_only=read_only),
        Bind(tmp_path / "file", "/dev/message", read_only=read_only),
    )
    found = {mount.target: mount.options for mount in await mounts_of(boxes, mounts=wanted)}
    for bind in wanted:
        assert {"nosuid", "nodev", "ro" if read_only else "rw"} <= found[bind.target]
